"""Layer normalisation (Ba et al. 2016), with a gradient of its own that needs little memory."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis, in float32 whatever x's type."""

    epsilon: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones_init(), (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros_init(), (x.shape[-1],))
        unit = normalised(x.astype(jnp.float32), self.epsilon)
        axes = (1,) * (x.ndim - 1)
        return (unit * scale.reshape(*axes, -1) + bias.reshape(*axes, -1)).astype(self.dtype)


@jax.custom_jvp
def normalised(x: jax.Array, epsilon: float) -> jax.Array:
    """x with mean 0 and variance 1 over the last axis."""
    return _unit_and_rate(x, epsilon)[0]


def _unit_and_rate(x: jax.Array, epsilon: float) -> tuple[jax.Array, jax.Array]:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    rate = jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + epsilon)
    return centred * rate, rate


@normalised.defjvp
def _derivative(inputs: tuple[Any, Any], changes: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    """The change without its parts along 1 and along the result, for those change nothing.

    Only the result is needed for it, and a number a row; left to itself JAX keeps two more arrays as large as x.
    """
    (unit, rate), (change, _) = _unit_and_rate(*inputs), changes
    along_one = jnp.mean(change, axis=-1, keepdims=True)
    along_unit = jnp.mean(change * unit, axis=-1, keepdims=True)
    return unit, rate * (change - along_one - unit * along_unit)
