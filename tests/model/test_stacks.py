"""The encoder and the decoder: their layers, depths, final norms, and the limit of position encodings."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.support.small_models import (
    SOURCE,
    TARGET,
    applied,
    assert_close,
    built,
    every_norm,
    small,
    variables_of,
)
from transformer_jax import (
    T5,
    Context,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    Positions,
    Relative,
    Rotary,
    Transformer,
    padding_mask,
)
from transformer_jax.config import PartsConfig
from transformer_jax.model import build
from transformer_jax.model.stacks import attention_weights_of

X_BTD, MEMORY_BSD = (
    jnp.asarray(np.random.default_rng(seed).normal(size=(2, length, 8)), jnp.float32)
    for seed, length in enumerate((4, 5))
)


@every_norm
def test_layers_are_their_sublayers_in_the_papers_order(norm):
    """Self-attention, (attention to the memory,) feed-forward: the layer equals them called one by one."""
    config = small(norm=norm)
    for layer, memory in ((build.layer(config, "encoder"), ()), (build.layer(config, "decoder"), (MEMORY_BSD,))):
        arguments = (X_BTD, *memory, *[Context()] * (1 + len(memory)))
        variables = variables_of(layer, *arguments)

        def one_by_one(layer, x, memory=memory):
            names = ["self_attention", *["cross_attention"] * len(memory), "feed_forward"]
            for name in names:
                residual = getattr(layer, f"{name}_residual")
                y = residual.pre(x)
                inputs = {"self_attention": (y, y), "cross_attention": (y, *memory), "feed_forward": (y,)}[name]
                x = residual.add(x, getattr(layer, name)(*inputs), True)
            return x

        output = applied(layer, variables, *arguments)
        output = output[0] if memory else output
        assert_close(output, applied(layer, variables, X_BTD, method=one_by_one), within=1e-6)


def test_layers_can_be_rematerialized_with_dropout():
    fields = functools.partial(MultiHeadAttention, 2), functools.partial(FeedForward, 12)
    context = Context(jnp.ones((1, 1, 1, 4), bool), encoding=Rotary(), deterministic=False)
    variables = variables_of(EncoderLayer(*fields), X_BTD, context)

    def gradient(layer_cls):
        layer, rngs = layer_cls(*fields, dropout=0.5), {"dropout": jax.random.key(1)}
        return jax.jit(jax.grad(lambda variables: jnp.sum(layer.apply(variables, X_BTD, context, rngs=rngs) ** 3)))

    jax.tree.map(assert_close, gradient(nn.remat(EncoderLayer))(variables), gradient(EncoderLayer)(variables))


class LogDistance(Positions):
    @nn.compact
    def bias(self, q_BTHK, queries_BT, keys_BS):
        depth = self.param("depth", nn.initializers.normal(1.0), (1, q_BTHK.shape[2], 1, 1))
        return -depth * jnp.log1p(jnp.abs(keys_BS[:, None, None, :] - queries_BT[:, None, :, None]))


@pytest.mark.parametrize("share_layers", [False, True])
@pytest.mark.parametrize("positions_cls", [T5, functools.partial(Relative, 4, 4), LogDistance], ids=str)
def test_layers_with_parameters_of_positions_can_be_rematerialized(positions_cls, share_layers):
    """By flax, and by the field of a stack; initialized, too."""
    fields = {"attention_cls": functools.partial(MultiHeadAttention, 2), "dropout": 0.5}
    fields["feed_forward_cls"] = functools.partial(FeedForward, 12)
    context = Context(jnp.ones((1, 1, 1, 4), bool), deterministic=False)

    def gradient(layer_cls, **changes):
        stack = Encoder(functools.partial(layer_cls, **fields), 2, positions_cls, share_layers=share_layers, **changes)
        variables, rngs = variables_of(stack, X_BTD, Context()), {"dropout": jax.random.key(1)}
        loss = lambda variables: jnp.sum(stack.apply(variables, X_BTD, context, rngs=rngs) ** 3)  # noqa: E731
        text = str(jax.make_jaxpr(jax.grad(loss))(variables))
        return jax.jit(jax.grad(loss))(variables), "remat" in text.replace("attended", "")

    (plain, _), (by_flax, _), (by_field, is_again) = (
        gradient(EncoderLayer),
        gradient(nn.remat(EncoderLayer)),
        gradient(EncoderLayer, remat=True),
    )
    jax.tree.map(assert_close, by_flax, plain)
    jax.tree.map(assert_close, by_field, plain)
    assert is_again


@pytest.mark.parametrize("captured", [True, lambda *_: True], ids=["calls", "all methods"])
def test_flax_captures_what_modules_return(captured):
    """The output of each attention among them."""
    model, variables = built()
    apply = functools.partial(model.apply, capture_intermediates=captured)
    shown = jax.jit(apply)(variables, SOURCE, TARGET)[1]["intermediates"]
    layer = shown["decoder"]["layers_0"]
    for attention in ("self_attention", "cross_attention"):
        (output,), (projected,) = layer[attention]["__call__"], layer[attention]["output"]["__call__"]
        assert output.shape == (2, 4, 8) and (output == projected).all()


def test_a_model_of_rematerialized_layers_is_the_model():
    parts = PartsConfig(encoder_layer=nn.remat(EncoderLayer), decoder_layer=nn.remat(DecoderLayer))
    shapes = [
        jax.eval_shape(Transformer(small(**changes)).init_with_output, jax.random.key(0), SOURCE, TARGET)
        for changes in ({}, {"parts": parts})
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("positions", ["learned", "relative"])
def test_all_but_learned_go_beyond_max_length(positions):
    model = Transformer(small(positions=positions, max_length=3))
    tokens = np.full((1, 4), 5)
    if positions == "learned":
        for call in (
            lambda: model.init(jax.random.key(0), tokens, tokens),
            lambda: model.init(jax.random.key(0), jnp.zeros((1, 2, 8)), 4, method="new_cache"),
        ):
            with pytest.raises(ValueError, match="max_length"):
                call()
    else:
        logits = jax.eval_shape(model.init_with_output, jax.random.key(0), tokens, tokens)[0]
        assert logits.shape == (1, 4, model.config.vocab_size)


def test_shared_layers_equal_separate_ones_with_the_same_parameters():
    """Logits with a head of one application masked, a cached step, and the attention weights of each application."""
    depths = {"num_encoder_layers": 2, "num_decoder_layers": 2, "positions": "relative"}
    shared, variables = built(share_layers=True, **depths)
    separate, params = Transformer(small(**depths)), {**variables["params"]}
    for stack, depth in (("encoder", 2), ("decoder", 2)):
        assert set(params[stack]) == {"layers_0", "positions_0"}
        params[stack] = {f"{name[:-1]}{i}": leaf for name, leaf in params[stack].items() for i in range(depth)}

    @functools.partial(jax.jit, static_argnums=0)
    def results(model, variables):
        head_masks = {"decoder": jnp.ones((2, 2)).at[1, 0].set(0.0)}
        masked, shown = model.apply(variables, SOURCE, TARGET, head_masks=head_masks, mutable=["intermediates"])
        cache = model.apply(variables, jnp.ones((2, 5, 8)), 2, method="new_cache")
        step, cache = model.apply(variables, TARGET[:, :1], cache, padding_mask(SOURCE), method="step")
        return masked, step, cache, attention_weights_of(shown["intermediates"]["decoder"], "self_attention")

    ours, theirs = results(shared, variables), results(separate, {"params": params})
    assert len(ours[-1]) == 2
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), ours, theirs)


def test_a_decoder_layer_returns_the_cache_of_its_self_attention_also_where_it_reads_the_memory_anew():
    layer = DecoderLayer(functools.partial(MultiHeadAttention, 2), functools.partial(FeedForward, 12))
    context = Context(cache=MultiHeadAttention(2).new_cache(len(X_BTD), 5, 8))
    (_, caches), _ = layer.init_with_output(jax.random.key(0), X_BTD, X_BTD, context, Context())
    assert caches.keys() == {"self"} and caches["self"]["filled"] == X_BTD.shape[1]


def test_only_pre_norm_has_a_final_norm():
    for norm, expected in (("post", False), ("deepnorm", False), ("pre", True), ("sandwich", True)):
        _, variables = built(norm=norm)
        assert all(("final_norm" in variables["params"][stack]) is expected for stack in ("encoder", "decoder"))
