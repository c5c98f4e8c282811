"""Linear maps, norms, feed-forward, residual connections and embeddings, each against its formula."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from flax import linen as nn

from tests.support.small_models import assert_close, variables_of
from transformer_jax.model.layers import (
    NORMS,
    Embedding,
    FeedForward,
    LayerNorm,
    Linear,
    Residual,
    xavier,
)
from transformer_jax.model.tpu import products_for_tpus

X_BTD, CHANGE_BTD = (jnp.asarray(np.random.default_rng(seed).normal(size=(2, 4, 8)), jnp.float32) for seed in range(2))


# Linear maps.


def test_a_linear_map_is_the_same_on_any_number_of_axes():
    linear = Linear()
    variables = variables_of(linear, X_BTD, 3)
    kernel, bias = variables["params"]["kernel"], variables["params"]["bias"]
    assert_close(linear.apply(variables, X_BTD, 3), X_BTD @ kernel + bias[None, None])
    assert_close(linear.apply(variables, X_BTD[0, 0], 3), X_BTD[0, 0] @ kernel + bias)


def test_initial_weights_are_xavier_uniform_and_biases_zero():
    params, larger = (
        Linear(kernel_init=init).init(jax.random.key(0), jnp.zeros((1, 300)), 200)["params"]
        for init in (Linear.kernel_init, xavier(gain=2.0))
    )
    limit = np.sqrt(6 / (300 + 200))
    assert np.abs(params["kernel"]).max() <= limit
    np.testing.assert_allclose(params["kernel"].std(), limit / np.sqrt(3), rtol=0.02)
    np.testing.assert_allclose(larger["kernel"], 2 * params["kernel"], rtol=1e-6)
    assert (params["bias"] == 0).all()


def test_both_gradients_of_a_product_are_computed_before_either_is_used_where_that_is_wanted():
    linear = Linear(use_bias=False)
    params = variables_of(linear, X_BTD, 3)
    gradients = jax.grad(lambda params, x: jnp.sum(linear.apply(params, x, 3) ** 2), argnums=(0, 1))

    def reverse(*inputs):
        return jax.jit(lambda *inputs: gradients(*inputs))(*inputs)  # traced anew

    def barriers():
        equations = jax.make_jaxpr(lambda *inputs: gradients(*inputs))(params, X_BTD).eqns
        return sum(each.primitive.name == "optimization_barrier" for each in equations)

    plain = reverse(params, X_BTD)
    assert barriers() == 0
    with products_for_tpus(True):
        assert barriers() == 1
        jax.tree.map(assert_close, reverse(params, X_BTD), plain)
        rows = jax.vmap(reverse, (None, 0))(params, X_BTD[:, None])[1]  # as runs that train together
    assert_close(rows[:, 0], plain[1])


# Norms.

FLAXS = {
    "layer": lambda dtype: nn.LayerNorm(1e-6, dtype=dtype, use_fast_variance=False),
    "rms": lambda dtype: nn.RMSNorm(1e-6, dtype=dtype),
}


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_norm_and_its_gradient_are_flaxs(kind, dtype):
    """Rows far from zero and a constant row included. Each number is held to the largest of its array."""
    x_BTD = (X_BTD * 3 + 5).at[0, 0].set(2.0).astype(dtype)
    params = {"scale": jnp.linspace(0.5, 2, 8), **({"bias": jnp.linspace(-1, 1, 8)} if kind == "layer" else {})}
    assert NORMS[kind]().init(jax.random.key(0), x_BTD)["params"].keys() == params.keys()

    def value_and_gradients(norm):
        def total(params, x_BTD):
            y_BTD = norm.apply({"params": params}, x_BTD)
            return jnp.sum(y_BTD.astype("float32") * CHANGE_BTD), y_BTD

        (_, y_BTD), gradients = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))(params, x_BTD)
        return y_BTD, gradients

    ours, theirs = value_and_gradients(NORMS[kind](1e-6, dtype)), value_and_gradients(FLAXS[kind](dtype))
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert mine.dtype == other.dtype
        assert_close(mine, other, within=2e-5 if dtype == "float32" else 2e-2)


# Feed-forward.

SILU = lambda x: x / (1 + np.exp(-x))  # noqa: E731
RELU = lambda x: np.maximum(x, 0)  # noqa: E731
GELU = lambda x: x * (1 + scipy.special.erf(x / np.sqrt(2))) / 2  # noqa: E731


@pytest.mark.parametrize(
    ("activation", "function"), [("relu", RELU), ("gelu", GELU), ("swish", SILU), (jnp.tanh, np.tanh)]
)
def test_feed_forward_is_equation_2(activation, function):
    layer = FeedForward(d_ff=12, activation=activation)
    variables = variables_of(layer, X_BTD)
    inner, outer = variables["params"]["inner"], variables["params"]["outer"]
    hidden = function(np.asarray(X_BTD @ inner["kernel"] + inner["bias"][None, None]))
    assert_close(layer.apply(variables, X_BTD), hidden @ outer["kernel"] + outer["bias"][None, None])


@pytest.mark.parametrize(
    ("activation", "of_gate"),
    [("glu", scipy.special.expit), ("bilinear", lambda x: x), ("reglu", RELU), ("geglu", GELU), ("swiglu", SILU)],
)
def test_gates_have_a_third_matrix(activation, of_gate):
    """Shazeer 2020, equation 6: (f(x W) * x V) W_2; `inner` is their V."""
    layer = FeedForward(d_ff=12, activation=activation, use_bias=False)
    variables = variables_of(layer, X_BTD)
    assert all(set(linear) == {"kernel"} for linear in variables["params"].values())
    inner, gate, outer = (np.float64(variables["params"][name]["kernel"]) for name in ("inner", "gate", "outer"))
    x = np.float64(X_BTD)
    assert_close(layer.apply(variables, X_BTD), (of_gate(x @ gate) * (x @ inner)) @ outer)


# Residual connections.


def standardised(x, epsilon=1e-6):
    """Layer normalisation before its scale and bias."""
    x = np.asarray(x, np.float64)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


X = np.float64(X_BTD)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, standardised(X + np.exp(X))),  # section 3.1: LayerNorm(x + Sublayer(x))
        ({"norm_cls": functools.partial(LayerNorm, 1.0)}, standardised(X + np.exp(X), 1.0)),
        ({"placement": "pre"}, X + np.exp(standardised(X))),
        # Ding et al. 2021: x + LN(Sublayer(LN(x))), so that no branch grows with depth.
        ({"placement": "sandwich"}, X + standardised(np.exp(standardised(X)))),
        ({"placement": "deepnorm", "alpha": 3.0}, standardised(3 * X + np.exp(X))),
    ],
    ids=["post", "epsilon", "pre", "sandwich", "deepnorm"],
)
def test_a_residual_connection_is_its_formula(fields, expected):
    residual = Residual(**fields)

    def through(residual, x_BTD):
        return residual.add(x_BTD, jnp.exp(residual.pre(x_BTD)), True)

    variables = residual.init(jax.random.key(0), X_BTD, method=through)
    assert_close(residual.apply(variables, X_BTD, method=through), expected)


def added_with_dropout(placement, x, sublayer):
    residual, rngs = Residual(placement, dropout=0.5), {"dropout": jax.random.key(0)}
    variables = residual.init(jax.random.key(0), x, method=lambda residual, x: residual.add(residual.pre(x), x, True))
    return residual.apply(variables, x, sublayer, False, method="add", rngs=rngs)


def test_dropout_falls_on_the_sublayer_and_not_on_the_residual():
    """Section 5.4: "to the output of each sub-layer, before it is added to the sub-layer input and normalized"."""
    difference = added_with_dropout("pre", X_BTD, jnp.ones_like(X_BTD)) - X_BTD
    np.testing.assert_allclose(np.unique(np.round(difference, 4)), [0, 2], atol=1e-4)


def test_layer_dropout_skips_the_sublayer_of_whole_rows():
    """Kept ones are scaled, so that the mean stays."""
    x = jnp.zeros((64, 3, 2), jnp.bfloat16)
    residual, rngs = Residual("pre", layer_dropout=0.1), {"dropout": jax.random.key(0)}
    variables = residual.init(jax.random.key(0), x, method=lambda residual, x: residual.add(residual.pre(x), x, True))
    added = residual.apply(variables, x, jnp.full_like(x, 9.0), False, method="add", rngs=rngs)
    assert added.dtype == jnp.bfloat16 and {*np.unique(added).tolist()} == {0.0, 10.0}
    assert (added == added[:, :1, :1]).all() and 0 < (added == 0).all((1, 2)).sum() < 16


# Embeddings.

TOKENS = np.arange(4000)[None]


def test_bfloat16_embeddings_are_scaled_by_the_root_itself():
    """The root of 40 is 0.19 % smaller in bfloat16; rounding the vectors themselves averages out."""
    table_ND = np.random.default_rng(0).normal(size=(4000, 40)).astype(np.float32)
    vectors = Embedding(4000, 40, dtype=jnp.bfloat16).apply({"params": {"table": jnp.asarray(table_ND)}}, TOKENS)
    vectors, table = (np.abs(np.asarray(array, np.float64)).sum() for array in (vectors, table_ND))
    assert abs(vectors / table / 40**0.5 - 1) < 1e-4


@pytest.mark.parametrize(
    ("kind", "deviation", "furthest"),
    [
        ("normal", 40**-0.5, None),
        ("unit", 1.0, None),
        ("xavier", (2 / 4040) ** 0.5, (6 / 4040) ** 0.5),  # of a matrix 4000 x 40
        ("kaiming", (2 / 40) ** 0.5, None),  # fan_in is the width of a row
    ],
)
def test_initial_tables(kind, deviation, furthest):
    table = np.asarray(Embedding(4000, 40, initial=kind).init(jax.random.key(0), TOKENS)["params"]["table"])
    assert abs(table.std() / deviation - 1) < 0.01
    assert abs(table.mean()) < 0.01 * deviation
    assert furthest is None or 0.99 * furthest < np.abs(table).max() <= furthest
    assert furthest is not None or np.abs(table).max() > 3.5 * deviation
