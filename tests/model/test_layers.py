"""Feed-forward, residual connections and the two layers, each against its equation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from flax import linen as nn

from tests.support.small_models import SOURCE, TARGET, assert_close, every_norm, small, variables_of
from transformer_jax import (
    Context,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    MultiHeadAttention,
    Residual,
    Rotary,
    Transformer,
)
from transformer_jax.config import PartsConfig
from transformer_jax.model import build

X_BTD = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 8)), jnp.float32)
MEMORY_BSD = jnp.asarray(np.random.default_rng(1).normal(size=(2, 5, 8)), jnp.float32)
DEFINITIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + scipy.special.erf(x / np.sqrt(2))) / 2,
    "swish": lambda x: x / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("activation", DEFINITIONS)
def test_feed_forward_is_equation_2(activation):
    layer = FeedForward(d_ff=12, activation=activation)
    variables = variables_of(layer, X_BTD)
    inner, outer = variables["params"]["inner"], variables["params"]["outer"]
    hidden = DEFINITIONS[activation](np.asarray(X_BTD @ inner["kernel"] + inner["bias"][None, None]))
    assert_close(layer.apply(variables, X_BTD), hidden @ outer["kernel"] + outer["bias"][None, None])


@pytest.mark.parametrize(
    ("activation", "of_gate"),
    [
        ("glu", lambda x: 1 / (1 + np.exp(-x))),
        ("bilinear", lambda x: x),
        ("reglu", DEFINITIONS["relu"]),
        ("geglu", DEFINITIONS["gelu"]),
        ("swiglu", DEFINITIONS["swish"]),
    ],
)
def test_gates_have_a_third_matrix(activation, of_gate):
    """Shazeer 2020, equation 6: (f(x W) * x V) W_2; `inner` is their V."""
    layer = FeedForward(d_ff=12, activation=activation, use_bias=False)
    variables = variables_of(layer, X_BTD)
    x, inner, gate, outer = (
        np.float64(each)
        for each in (X_BTD, *(variables["params"][name]["kernel"] for name in ("inner", "gate", "outer")))
    )
    assert_close(layer.apply(variables, X_BTD), (of_gate(x @ gate) * (x @ inner)) @ outer)


def test_feed_forward_biases_are_a_switch():
    variables = variables_of(FeedForward(d_ff=12, use_bias=False), X_BTD)
    assert all(set(linear) == {"kernel"} for linear in variables["params"].values())


@every_norm
def test_layers_are_their_sublayers_in_the_papers_order(norm):
    """Self-attention, (attention to the memory,) feed-forward: the layer equals them called one by one."""
    config = small(norm=norm)
    for layer, memory in ((build.encoder_layer(config), ()), (build.decoder_layer(config), (MEMORY_BSD,))):
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

        output = layer.apply(variables, *arguments)
        output = output[0] if memory else output
        np.testing.assert_array_equal(output, layer.apply(variables, X_BTD, method=one_by_one))


def standardised(x):
    """Layer normalisation before its scale and bias."""
    x = np.asarray(x, np.float64)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


def test_post_norm_normalises_the_sum():
    """Section 3.1: LayerNorm(x + Sublayer(x))."""
    residual = Residual()
    variables = residual.init(jax.random.key(0), X_BTD, X_BTD, True, method="add")
    assert_close(residual.apply(variables, X_BTD, method="pre"), X_BTD, within=0)
    assert_close(residual.apply(variables, X_BTD, X_BTD**2, True, method="add"), standardised(X_BTD + X_BTD**2))


def test_pre_norm_normalises_what_enters_and_leaves_the_sum_alone():
    residual = Residual("pre")
    variables = residual.init(jax.random.key(0), X_BTD, method="pre")
    assert_close(residual.apply(variables, X_BTD, method="pre"), standardised(X_BTD))
    assert_close(residual.apply(variables, X_BTD, X_BTD**2, True, method="add"), X_BTD + X_BTD**2, within=0)


def test_dropout_falls_on_the_sublayer_and_not_on_the_residual():
    """Section 5.4: "to the output of each sub-layer, before it is added to the sub-layer input and normalized"."""
    residual = Residual("pre", dropout=0.5)
    variables = residual.init(jax.random.key(0), X_BTD, method="pre")
    added = residual.apply(
        variables, X_BTD, jnp.ones_like(X_BTD), False, method="add", rngs={"dropout": jax.random.key(0)}
    )
    difference = np.unique(np.round(np.asarray(added - X_BTD), 4))
    np.testing.assert_allclose(difference, [0, 2], atol=1e-4)


def test_the_norms_epsilon_is_the_configs():
    residual = Residual(norm_cls=functools.partial(LayerNorm, 1.0))
    variables = residual.init(jax.random.key(0), X_BTD, X_BTD, True, method="add")
    x = np.asarray(X_BTD, np.float64)
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1.0)
    assert_close(residual.apply(variables, X_BTD, jnp.zeros_like(X_BTD), True, method="add"), expected)


def applied(residual, sublayer):
    """x through one residual connection around `sublayer`, as a new model has it."""

    def through(residual, x_BTD):
        return residual.add(x_BTD, sublayer(residual.pre(x_BTD)), True)

    variables = residual.init(jax.random.key(0), X_BTD, method=through)
    return residual.apply(variables, X_BTD, method=through)


def test_sandwich_normalises_what_enters_and_what_the_sublayer_returns():
    """Ding et al. 2021: x + LN(Sublayer(LN(x))), so that no branch grows with depth."""
    x = np.float64(X_BTD)
    assert_close(applied(Residual("sandwich"), jnp.exp), x + standardised(np.exp(standardised(x))))


def test_sandwich_drops_before_the_second_norm():
    """As CogView's code does: dropout is the end of the sub-layer. After the norm the mean would not be zero."""
    residual = Residual("sandwich", dropout=0.5)
    variables = residual.init(jax.random.key(0), X_BTD, X_BTD, True, method="add")
    rngs = {"dropout": jax.random.key(0)}
    added = residual.apply(variables, jnp.zeros_like(X_BTD), X_BTD, False, method="add", rngs=rngs)
    np.testing.assert_allclose(added.mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(added.std(-1), 1, rtol=1e-4)


# Wang et al. 2022, figure 2, for encoder-decoder models of N and M layers: alpha and beta.
N, M = 3, 5
DEEPNORM = {
    "encoder": (0.81 * (N**4 * M) ** (1 / 16), 0.87 * (N**4 * M) ** (-1 / 16)),
    "decoder": ((3 * M) ** (1 / 4), (12 * M) ** (-1 / 4)),
}


@pytest.mark.parametrize("stack", DEEPNORM)
def test_deepnorm_scales_x_in_the_sum(stack):
    config = small(norm="deepnorm", num_encoder_layers=N, num_decoder_layers=M)
    x = np.float64(X_BTD)
    residual = Residual("deepnorm", alpha=build.deepnorm_scaling(config, stack).alpha)
    assert_close(applied(residual, jnp.exp), standardised(DEEPNORM[stack][0] * x + np.exp(x)))


def test_deepnorm_scales_the_initial_feed_forward_value_and_output_weights():
    def initial(norm):
        model = Transformer(small(norm=norm, num_encoder_layers=N, num_decoder_layers=M))
        return jax.jit(model.init)(jax.random.key(0), SOURCE, TARGET)["params"]

    deepnorm, post = initial("deepnorm"), initial("post")
    for stack, (_, beta) in DEEPNORM.items():
        for (path, scaled), plain in zip(
            jax.tree_util.tree_leaves_with_path(deepnorm[stack]), jax.tree.leaves(post[stack]), strict=True
        ):
            gain = beta if path[-2].key in ("value", "output", "inner", "outer") else 1.0
            np.testing.assert_allclose(scaled, gain * plain, rtol=1e-5, err_msg=str(path))


@pytest.mark.parametrize("deterministic", [True, False])
def test_layers_can_be_rematerialized_with_dropout(deterministic):
    fields = functools.partial(MultiHeadAttention, 2), functools.partial(FeedForward, 12)
    context = Context(jnp.ones((1, 1, 1, 4), bool), encoding=Rotary(), deterministic=deterministic)
    variables = EncoderLayer(*fields).init(jax.random.key(0), X_BTD, context)

    def gradient(layer_cls):
        layer, rngs = layer_cls(*fields, dropout=0.5), {"dropout": jax.random.key(1)}
        return jax.jit(jax.grad(lambda variables: jnp.sum(layer.apply(variables, X_BTD, context, rngs=rngs) ** 3)))

    jax.tree.map(assert_close, gradient(nn.remat(EncoderLayer))(variables), gradient(EncoderLayer)(variables))


def test_a_model_of_rematerialized_layers_is_the_model():
    parts = PartsConfig(encoder_layer=nn.remat(EncoderLayer), decoder_layer=nn.remat(DecoderLayer))
    for positions in ("rotary", "relative"):
        plain, remat = (Transformer(small(positions=positions, **changes)) for changes in ({}, {"parts": parts}))
        variables = variables_of(plain, SOURCE, TARGET)
        assert_close(remat.apply(variables, SOURCE, TARGET), plain.apply(variables, SOURCE, TARGET))
