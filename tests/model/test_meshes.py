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
        for norm, feed_forward, attention in zip(self.norms, self.feed_forwards, self.attentions, strict=True):
            for options in ({}, {"window": 2}, {"window": 2, "is_causal": True}):
                y_BTD = self.residual.pre(norm(x_BTD))
                y_BTD = attention(y_BTD, y_BTD, context.replace(**options))
                x_BTD = self.residual.add(x_BTD, feed_forward(y_BTD, deterministic), deterministic)
        logits_BTN = self.embedding.logits(x_BTD)
        loss, _ = label_smoothed_cross_entropy(logits_BTN, tokens_BT, tokens_BT != 0)
        heads_BTHK = x_BTD[:, :, None] * jnp.ones((1, 1, 2, 1))
        output, _ = scaled_dot_product_attention(heads_BTHK, heads_BTHK, heads_BTHK, causal(tokens_BT))
        return loss, output, logits_BTN


def causal(tokens_BT):
    return padding_mask(tokens_BT) & jnp.tril(jnp.ones((1, 1, LENGTH, LENGTH), bool))


class Stacks(nn.Module):
    """The layers with an encoding, and one more of the encoder for each of the other encodings."""

    def setup(self):
        self.embedding = Embedding(20, WIDTH)
        config = small(d_model=WIDTH, d_k=4, d_v=4)
        encodings = [
            functools.partial(build.positions, config, False),
            *(functools.partial(encoding.from_config, config, False) for encoding in ENCODINGS.values()),
        ]
        self.encoders = [
            Encoder(functools.partial(EncoderLayer, **LAYER), 1, encoding, dropout=0.2, remat=bool(number % 2))
            for number, encoding in enumerate(encodings)
        ]
        self.decoder = Decoder(functools.partial(DecoderLayer, placement="pre", **LAYER), 2, final_norm_cls=LayerNorm)

    def __call__(self, tokens_BT, deterministic):
        x_BTD, mask = self.embedding(tokens_BT), padding_mask(tokens_BT)
        context = Context(mask, deterministic=deterministic)
        encoded = [encoder(x_BTD, context) for encoder in self.encoders]
        decoded, _ = self.decoder(x_BTD, encoded[0], Context(causal(tokens_BT), deterministic=deterministic), context)
        return encoded, decoded


class Model(nn.Module):
    """The model, whole and step by step. A window, grouped heads, separate vocabularies."""

    def setup(self):
        changes = {"num_key_value_heads": 1, "output_bias": True, "tie_embeddings": "none", "window": 2, "dropout": 0.2}
        self.model = Transformer(small(**{**ATTENTION, **changes}))

    def __call__(self, tokens_BT, deterministic):
        logits_BTN = self.model(tokens_BT, tokens_BT, deterministic=deterministic)
        memory_BSD = self.model.encode(tokens_BT)
        cache, steps = self.model.new_cache(memory_BSD, 4), []
        for i in range(2):
            step, cache = self.model.step(tokens_BT[:, i : i + 1], cache, padding_mask(tokens_BT))
            steps.append(step)
        return logits_BTN, steps


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


MESHES = [
    ((4,), ("data",), AxisType.Explicit),
    ((2, 2), ("data", "tensor"), AxisType.Explicit),
    ((2, 2), ("data", "tensor"), AxisType.Auto),
    pytest.param((4,), ("data",), AxisType.Auto, marks=pytest.mark.drill),
]


@pytest.mark.parametrize(("sizes", "axes", "kind"), MESHES, ids=str)
@pytest.mark.parametrize("module", [Parts(), Stacks(), Model()], ids=lambda module: type(module).__name__)
def test_values_and_gradients_are_those_of_one_device(module, sizes, axes, kind):
    """With dropout. The mesh is only in the arrays."""
    mesh = jax.make_mesh(sizes, axes, axis_types=(kind,) * len(axes), devices=jax.devices()[:4])
    variables, expected = alone(module)
    tokens_BT = jax.device_put(TOKENS, NamedSharding(mesh, PartitionSpec("data")))
    variables = jax.tree_util.tree_map_with_path(
        lambda path, leaf: jax.device_put(leaf, NamedSharding(mesh, spec_of(path, leaf, axes))), variables
    )
    found = jax.jit(functools.partial(value_and_gradient, module))(variables, tokens_BT)
    jax.tree.map(functools.partial(assert_close, within=1e-4), found, expected)
