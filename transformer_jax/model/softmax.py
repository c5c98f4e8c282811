"""The softmax of masked scores, with a custom gradient that needs little memory."""

from typing import Any

import jax
import jax.numpy as jnp

# Finite, so that a row in which everything is masked has a softmax, and a gradient, without NaN.
MASKED = -1e30


@jax.custom_jvp
def masked_softmax(scores: jax.Array, mask: jax.Array) -> jax.Array:
    """Softmax over the last axis where the mask is True, and 0 elsewhere; a row that is entirely masked is 0."""
    return jnp.where(mask, jax.nn.softmax(jnp.where(mask, scores, MASKED)), 0.0)


@masked_softmax.defjvp
def _derivative(inputs: tuple[Any, Any], changes: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    """The tangent, from the weights alone; by default JAX keeps several arrays of their size."""
    weights, (change, _) = masked_softmax(*inputs), changes
    return weights, weights * (change - jnp.sum(change * weights, axis=-1, keepdims=True))
