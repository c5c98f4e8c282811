"""Layer normalization against flax's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from transformer_jax.model.norm import LayerNorm

X_BTD, CHANGE_BTD = (jnp.asarray(np.random.default_rng(seed).normal(size=(2, 4, 8)), jnp.float32) for seed in range(2))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_norm_and_its_gradient_are_flaxs(dtype):
    """Rows far from zero and a constant row included. Each number is held to the largest of its array."""
    x_BTD = (X_BTD * 3 + 5).at[0, 0].set(2.0).astype(dtype)
    params = {"scale": jnp.linspace(0.5, 2, 8), "bias": jnp.linspace(-1, 1, 8)}

    def value_and_gradients(norm):
        def total(params, x_BTD):
            y_BTD = norm.apply({"params": params}, x_BTD)
            return jnp.sum(y_BTD.astype("float32") * CHANGE_BTD), y_BTD

        (_, y_BTD), gradients = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(params, x_BTD)
        return y_BTD, gradients

    flaxs = nn.LayerNorm(1e-6, dtype=dtype, use_fast_variance=False)
    ours, theirs = value_and_gradients(LayerNorm(1e-6, dtype)), value_and_gradients(flaxs)
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert mine.dtype == other.dtype
        scale = float(jnp.max(jnp.abs(other)))
        np.testing.assert_allclose(
            np.float32(mine), np.float32(other), atol=scale * (2e-5 if dtype == "float32" else 2e-2)
        )
