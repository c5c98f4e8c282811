"""Each norm against its formula, and its gradient against that of flax's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from transformer_jax.model.norm import NORMS

X_BTD, CHANGE_BTD = (jnp.asarray(np.random.default_rng(seed).normal(size=(2, 4, 8)), jnp.float32) for seed in range(2))


FLAXS = {
    "layer": lambda dtype: nn.LayerNorm(1e-6, dtype=dtype, use_fast_variance=False),
    "rms": lambda dtype: nn.RMSNorm(1e-6, dtype=dtype),
}
PARAMS = {"scale": jnp.linspace(0.5, 2, 8), "bias": jnp.linspace(-1, 1, 8)}


def test_rms_norm_is_its_formula():
    """Zhang and Sennrich 2019, equation 4: no mean is subtracted, and there is no bias."""
    x_BTD, scale_D = np.float64(X_BTD) * 3 + 5, np.float64(PARAMS["scale"])
    expected = x_BTD / np.sqrt((x_BTD**2).sum(-1, keepdims=True) / 8) * scale_D
    norm = NORMS["rms"](epsilon=1e-6)
    assert list(norm.init(jax.random.key(0), X_BTD)["params"]) == ["scale"]
    ours = norm.apply({"params": {"scale": PARAMS["scale"]}}, jnp.float32(x_BTD))
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_norm_and_its_gradient_are_flaxs(kind, dtype):
    """Rows far from zero and a constant row included. Each number is held to the largest of its array."""
    x_BTD = (X_BTD * 3 + 5).at[0, 0].set(2.0).astype(dtype)
    params = PARAMS if kind == "layer" else {"scale": PARAMS["scale"]}

    def value_and_gradients(norm):
        def total(params, x_BTD):
            y_BTD = norm.apply({"params": params}, x_BTD)
            return jnp.sum(y_BTD.astype("float32") * CHANGE_BTD), y_BTD

        (_, y_BTD), gradients = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(params, x_BTD)
        return y_BTD, gradients

    ours, theirs = value_and_gradients(NORMS[kind](1e-6, dtype)), value_and_gradients(FLAXS[kind](dtype))
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert mine.dtype == other.dtype
        scale = float(jnp.max(jnp.abs(other)))
        np.testing.assert_allclose(
            np.float32(mine), np.float32(other), atol=scale * (2e-5 if dtype == "float32" else 2e-2)
        )
