"""The linear map, and its initial weights."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.support.small_models import assert_close, variables_of
from transformer_jax.model.linear import Linear, gradients_at_once, xavier

X_BTD = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 8)), jnp.float32)


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
    """And nothing else changes: neither the forward pass, nor the derivatives' values, forward or reverse."""
    linear = Linear(use_bias=False)
    params = variables_of(linear, X_BTD, 3)

    def total(params, x):
        return jnp.sum(linear.apply(params, x, 3) ** 2)

    def barriers(function):
        equations = jax.make_jaxpr(lambda *inputs: function(*inputs))(params, X_BTD).eqns  # traced anew
        found = [each for each in equations if each.primitive.name == "optimization_barrier"]
        return [sorted(var.aval.shape for var in each.outvars) for each in found]

    reverse = jax.grad(total, argnums=(0, 1))
    plain = reverse(params, X_BTD)
    assert barriers(reverse) == []
    with gradients_at_once(True):
        assert barriers(reverse) == [[(8, 3), (8, 8)]] and barriers(total) == []
        jax.tree.map(assert_close, reverse(params, X_BTD), plain)
        direction = jax.tree.map(jnp.ones_like, (params, X_BTD))
        _, forward = jax.jvp(total, (params, X_BTD), direction)
        for only in (0, 1):
            assert barriers(jax.grad(total, argnums=only)) == []
            jax.tree.map(assert_close, jax.grad(total, argnums=only)(params, X_BTD), plain[only])
        rows = jax.vmap(jax.grad(total, argnums=1), (None, 0))(params, X_BTD[:, None])
    assert_close(forward, sum(jnp.vdot(*pair) for pair in zip(*map(jax.tree.leaves, (plain, direction)), strict=True)))
    assert_close(rows[:, 0], plain[1])
    assert barriers(reverse) == []
