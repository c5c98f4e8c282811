"""Public modules on meshes that other code makes, with explicit or automatic axes: equal to one device's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tests.support.small_models import ATTENTION, assert_close, numbers_for, small
from transformer_jax import (
    Context,
    Decoder,
    DecoderLayer,
    Embedding,
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    MultiHeadAttention,
    Residual,
    RMSNorm,
    Transformer,
    label_smoothed_cross_entropy,
    padding_mask,
    scaled_dot_product_attention,
)
from transformer_jax.model import build
from transformer_jax.model.dropout import Dropout
from transformer_jax.model.positions import ENCODINGS

ROWS, LENGTH, WIDTH = 4, 6, 8
TOKENS = np.array([[3, 4, 5, 6, 7, 8], [8, 9, 10, 0, 0, 0], [5, 5, 2, 2, 0, 0], [9, 8, 7, 6, 5, 0]])
ATTENTION_CLS = functools.partial(MultiHeadAttention, 2, use_bias=True)
LAYER = {"attention_cls": ATTENTION_CLS, "feed_forward_cls": functools.partial(FeedForward, 12)}


class Parts(nn.Module):
    """Every module that is no stack, with the functions of arrays."""

    def setup(self):
        self.embedding = Embedding(20, WIDTH)
        self.norms = [LayerNorm(), RMSNorm()]
        self.residual = Residual("sandwich", dropout=0.2)
        self.feed_forwards = [FeedForward(12, "swiglu", dropout=0.2), FeedForward(12)]
        self.attentions = [ATTENTION_CLS(dropout=0.2), ATTENTION_CLS(num_key_value_heads=1)]

    def __call__(self, tokens_BT, deterministic):
        x_BTD = self.embedding(tokens_BT)
        context = Context(padding_mask(tokens_BT), deterministic=deterministic)
        windows = {}, {"window": 2, "is_causal": True}
        for *parts, window in zip(self.norms, self.feed_forwards, self.attentions, windows, strict=True):
            norm, feed_forward, attention = parts
            y_BTD = self.residual.pre(norm(x_BTD))
            y_BTD = attention(y_BTD, y_BTD, context.replace(**window))
            x_BTD = self.residual.add(x_BTD, feed_forward(y_BTD, deterministic), deterministic)
        logits_BTN = self.embedding.logits(x_BTD)
        loss, _ = label_smoothed_cross_entropy(logits_BTN, tokens_BT, tokens_BT != 0)
        heads_BTHK = x_BTD[:, :, None] * jnp.ones((1, 1, 2, 1))
        output, _ = scaled_dot_product_attention(heads_BTHK, heads_BTHK, heads_BTHK, causal(tokens_BT))
        return loss, output, logits_BTN


def causal(tokens_BT):
    return padding_mask(tokens_BT) & jnp.tril(jnp.ones((1, 1, LENGTH, LENGTH), bool))


class Stacks(nn.Module):
    """The stacks, with an encoder for each encoding; every second one computes its layers again."""

    encodings: tuple[str, ...] = ("relative", "t5")

    def setup(self):
        self.embedding = Embedding(20, WIDTH)
        configs = [small(d_model=WIDTH, d_k=4, d_v=4, positions=each) for each in self.encodings]
        layer = functools.partial(EncoderLayer, **LAYER)
        self.encoders = [
            Encoder(layer, 1, functools.partial(build.positions, config, False), 0.2, remat=bool(number % 2))
            for number, config in enumerate(configs)
        ]
        self.decoder = Decoder(functools.partial(DecoderLayer, placement="pre", **LAYER), 1, final_norm_cls=LayerNorm)

    def __call__(self, tokens_BT, deterministic):
        x_BTD, mask = self.embedding(tokens_BT), padding_mask(tokens_BT)
        context = Context(mask, deterministic=deterministic)
        encoded = [encoder(x_BTD, context) for encoder in self.encoders]
        decoded, _ = self.decoder(x_BTD, encoded[0], Context(causal(tokens_BT), deterministic=deterministic), context)
        return encoded, decoded


class Model(nn.Module):
    """The model with a window, grouped heads and separate vocabularies."""

    def setup(self):
        changes = {"num_key_value_heads": 1, "output_bias": True, "tie_embeddings": "none", "window": 2, "dropout": 0.2}
        self.model = Transformer(small(**{**ATTENTION, **changes}))

    def __call__(self, tokens_BT, deterministic):
        return self.model(tokens_BT, tokens_BT, deterministic=deterministic)

    def step_by_step(self, tokens_BT):
        memory_BSD = self.model.encode(tokens_BT)
        cache, steps = self.model.new_cache(memory_BSD, 4), []
        for i in range(2):
            step, cache = self.model.step(tokens_BT[:, i : i + 1], cache, padding_mask(tokens_BT))
            steps.append(step)
        return steps


def value_and_gradient(module, variables, tokens_BT):
    """With dropout, except in `init`."""

    def loss(variables):
        outputs = module.apply(variables, tokens_BT, False, rngs={"dropout": jax.random.key(0)})
        return sum(jnp.sum(jnp.sin(each)) for each in jax.tree.leaves(outputs)), outputs

    (_, outputs), gradients = jax.value_and_grad(loss, has_aux=True)(variables)
    return outputs, gradients


def spec_of(path, leaf, axes):
    """Heads, the inner width and the vocabulary are divided over `tensor`."""
    *_, module, name = (key.key for key in path)
    if "tensor" in axes and name in ("kernel", "bias", "table") and leaf.size > 2:
        if module in ("query", "key", "value", "inner", "gate"):
            return PartitionSpec(*[None] * (leaf.ndim - 1), "tensor")
        if (module in ("output", "outer") and name == "kernel") or "embedding" in module:
            return PartitionSpec("tensor")
    return PartitionSpec()


@functools.cache
def alone(module):
    variables = numbers_for(jax.eval_shape(lambda: module.init(jax.random.key(0), TOKENS, True)))
    return variables, jax.jit(functools.partial(value_and_gradient, module))(variables, TOKENS)


DATA, TENSOR = ((4,), ("data",)), ((2, 2), ("data", "tensor"))
MESHES = [
    (*TENSOR, AxisType.Explicit),
    *(
        pytest.param(mesh, marks=pytest.mark.drill)
        for mesh in ((*DATA, AxisType.Explicit), (*TENSOR, AxisType.Auto), (*DATA, AxisType.Auto))
    ),
]
MODULES = [Parts(), Stacks(), pytest.param(Stacks((*ENCODINGS,)), marks=pytest.mark.drill), Model()]


def on_mesh(variables, sizes, axes, kind):
    """The variables and the tokens, divided over such a mesh."""
    mesh = jax.make_mesh(sizes, axes, axis_types=(kind,) * len(axes), devices=jax.devices()[:4])
    tokens_BT = jax.device_put(TOKENS, NamedSharding(mesh, PartitionSpec("data")))
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jax.device_put(leaf, NamedSharding(mesh, spec_of(path, leaf, axes))), variables
    ), tokens_BT


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("module", MODULES, ids=lambda module: type(module).__name__)
def test_values_and_gradients_are_those_of_one_device(module, mesh):
    """With dropout. The mesh is only in the arrays."""
    variables, expected = alone(module)
    found = jax.jit(functools.partial(value_and_gradient, module))(*on_mesh(variables, *mesh))
    for ours, theirs in zip(found, expected, strict=True):  # outputs, gradients; that of a bias of keys is zero
        largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(theirs))
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5 * largest), ours, theirs)


@pytest.mark.parametrize("division", [("data",), ("data", None, "tensor"), (("data", "tensor"),)], ids=str)
def test_a_mesh_that_is_set_drops_what_one_device_drops(division):
    mesh, x = jax.make_mesh((2, 2), ("data", "tensor"), devices=jax.devices()[:4]), jnp.ones((4, 6, 8))
    dropped = functools.partial(Dropout(0.5).apply, {}, deterministic=False, rngs={"dropout": jax.random.key(0)})
    expected = dropped(x)
    with jax.set_mesh(mesh):
        divided = jax.device_put(x, NamedSharding(mesh, PartitionSpec(*division)))
        for found in (
            dropped(divided),
            jax.jit(dropped)(divided),
            jax.jit(jax.grad(lambda x: dropped(x).sum()))(divided),
        ):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "module",
    [Parts(), *(pytest.param(module, marks=pytest.mark.drill) for module in (Stacks((*ENCODINGS,)), Model()))],
    ids=lambda module: type(module).__name__,
)
def test_a_mesh_may_be_set(module):
    variables, expected = alone(module)
    arrays = on_mesh(variables, *TENSOR, AxisType.Explicit)
    with jax.set_mesh(arrays[1].sharding.mesh):
        found = jax.jit(functools.partial(value_and_gradient, module))(*arrays)
    for ours, theirs in zip(found, expected, strict=True):
        largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(theirs))
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5 * largest), ours, theirs)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_decoding_step_by_step_is_that_of_one_device(mesh):
    module = Model()
    variables, _ = alone(module)
    decoded = jax.jit(functools.partial(module.apply, method="step_by_step"))
    jax.tree.map(assert_close, decoded(*on_mesh(variables, *mesh)), decoded(variables, TOKENS))
