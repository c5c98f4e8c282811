"""Layer normalization (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019), whose gradients need little memory."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis, computed in float32."""

    epsilon: float = 1e-6
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones_init(), (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros_init(), (x.shape[-1],))
        unit = normalized(x.astype(jnp.float32), self.epsilon)
        axes = (1,) * (x.ndim - 1)
        return (unit * scale.reshape(*axes, -1) + bias.reshape(*axes, -1)).astype(self.dtype)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * scale over the last axis, computed in float32."""

    epsilon: float = 1e-6
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones_init(), (x.shape[-1],))
        unit = scaled_to_one(x.astype(jnp.float32), self.epsilon)
        return (unit * scale.reshape(*(1,) * (x.ndim - 1), -1)).astype(self.dtype)


NORMS: dict[str, type[nn.Module]] = {"layer": LayerNorm, "rms": RMSNorm}


@jax.custom_jvp
def normalized(x: jax.Array, epsilon: float) -> jax.Array:
    """x with mean 0 and variance 1 over the last axis."""
    return _unit_and_rate(_centred(x), epsilon)[0]


@normalized.defjvp
def _derivative(inputs: tuple[Any, Any], changes: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    """The tangent without its components along 1 and along the result, which have no effect.

    It needs only the result and one number per row; by default JAX keeps two more arrays as large as x.
    """
    (x, epsilon), (change, _) = inputs, changes
    unit, rate = _unit_and_rate(_centred(x), epsilon)
    along_one = jnp.mean(change, axis=-1, keepdims=True)
    along_unit = jnp.mean(change * unit, axis=-1, keepdims=True)
    return unit, rate * (change - along_one - unit * along_unit)


@jax.custom_jvp
def scaled_to_one(x: jax.Array, epsilon: float) -> jax.Array:
    """x with a mean square of 1 over the last axis."""
    return _unit_and_rate(x, epsilon)[0]


@scaled_to_one.defjvp
def _derivative_of_scaling(inputs: tuple[Any, Any], changes: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    """The tangent without its component along the result; as above, without the one along 1."""
    (unit, rate), (change, _) = _unit_and_rate(*inputs), changes
    return unit, rate * (change - unit * jnp.mean(change * unit, axis=-1, keepdims=True))


def _centred(x: jax.Array) -> jax.Array:
    return x - jnp.mean(x, axis=-1, keepdims=True)


def _unit_and_rate(x: jax.Array, epsilon: float) -> tuple[jax.Array, jax.Array]:
    rate = jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + epsilon)
    return x * rate, rate
