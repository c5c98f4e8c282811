"""Layer normalization (Ba et al. 2016), with a custom gradient that needs little memory."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis, computed in float32."""

    epsilon: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones_init(), (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros_init(), (x.shape[-1],))
        unit = normalized(x.astype(jnp.float32), self.epsilon)
        axes = (1,) * (x.ndim - 1)
        return (unit * scale.reshape(*axes, -1) + bias.reshape(*axes, -1)).astype(self.dtype)


@jax.custom_jvp
def normalized(x: jax.Array, epsilon: float) -> jax.Array:
    """x with mean 0 and variance 1 over the last axis."""
    return _unit_and_rate(x, epsilon)[0]


def _unit_and_rate(x: jax.Array, epsilon: float) -> tuple[jax.Array, jax.Array]:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    rate = jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + epsilon)
    return centred * rate, rate


@normalized.defjvp
def _derivative(inputs: tuple[Any, Any], changes: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    """The tangent without its components along 1 and along the result, which have no effect.

    It needs only the result and one number for each row; by default JAX keeps two more arrays as large as x.
    """
    (unit, rate), (change, _) = _unit_and_rate(*inputs), changes
    along_one = jnp.mean(change, axis=-1, keepdims=True)
    along_unit = jnp.mean(change * unit, axis=-1, keepdims=True)
    return unit, rate * (change - along_one - unit * along_unit)
