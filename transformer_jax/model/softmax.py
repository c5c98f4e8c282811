"""The softmax of masked scores, with a custom gradient that needs little memory."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

# Finite, so that a row in which everything is masked has a softmax, and a gradient, without NaN.
MASKED = -1e30
# The name of the weights for a `jax.checkpoint` policy.
WEIGHTS = "attention_weights"


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def masked_softmax(scores: jax.Array, mask: jax.Array | None, dtype: Any = jnp.float32) -> jax.Array:
    """Softmax over the last axis where the mask is True, and 0 elsewhere; a row that is entirely masked is 0.

    It is computed in the type of the scores and rounded to `dtype`.
    """
    if mask is None:
        return jax.nn.softmax(scores).astype(dtype)
    return jnp.where(mask, jax.nn.softmax(jnp.where(mask, scores, MASKED)), 0.0).astype(dtype)


@masked_softmax.defjvp
def _derivative(dtype: Any, inputs: tuple[Any, Any], changes: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    """The tangent, from the weights alone; by default JAX keeps several arrays of their size.

    They are named with the last two axes as one: short rows would be padded in the memory of TPUs.
    """
    weights, (change, _) = masked_softmax(*inputs, dtype), changes
    weights = checkpoint_name(weights.reshape(*weights.shape[:-2], -1), WEIGHTS).reshape(weights.shape)
    exact = weights.astype(change.dtype)
    return weights, (exact * (change - jnp.sum(change * exact, axis=-1, keepdims=True))).astype(dtype)
