"""Feed-forward and the two layers, each against its equation."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from tests.support.small_models import assert_close, every_norm, small, variables_of
from transformer_jax.model.attention import Context
from transformer_jax.model.layers import DecoderLayer, EncoderLayer, FeedForward

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
    for layer, memory in ((EncoderLayer(config), ()), (DecoderLayer(config), (MEMORY_BSD,))):
        arguments = (X_BTD, *memory, *[Context()] * (1 + len(memory)))
        variables = variables_of(layer, *arguments)

        def one_by_one(layer, x, memory=memory):
            names = ["self_attention", *["cross_attention"] * len(memory), "feed_forward"]
            for name in names:
                residual = getattr(layer, f"{name}_residual")
                y = residual.enter(x)
                inputs = {"self_attention": (y, y), "cross_attention": (y, *memory), "feed_forward": (y,)}[name]
                x = residual.leave(x, getattr(layer, name)(*inputs), True)
            return x

        output = layer.apply(variables, *arguments)
        output = output[0] if memory else output
        np.testing.assert_array_equal(output, layer.apply(variables, X_BTD, method=one_by_one))
