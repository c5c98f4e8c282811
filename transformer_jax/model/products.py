"""The two products of equation 1, whose heads may share keys and values, and the softmax between them."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from transformer_jax.model.checks import check_multiple
from transformer_jax.model.meshes import product, reshaped

# Finite, so that a row in which everything is masked has a softmax, and a gradient, without NaN.
MASKED = -1e30
# The name of the weights for a `jax.checkpoint` policy.
WEIGHTS = "attention_weights"


def scores_of(q_BTHK: jax.Array, k_BSHK: jax.Array) -> jax.Array:
    """Q K^T in float32, BHTS."""
    (batch, length, heads, _), (_, keys, groups, _) = q_BTHK.shape, k_BSHK.shape
    if groups == heads:
        return product("bthk,bshk->bhts", q_BTHK, k_BSHK, jnp.float32)
    # Queries and their heads as one axis M: XLA for CPUs cannot run a product of bfloat16 with two of them in a loop.
    q_BTRGK = jnp.moveaxis(_grouped(q_BTHK, 2, groups), 2, 3)
    q_BMGK = reshaped(q_BTRGK, batch, length * (heads // groups), *q_BTRGK.shape[3:])
    scores_BGMS = product("bmgk,bsgk->bgms", q_BMGK, k_BSHK, jnp.float32)
    scores_BGTRS = reshaped(scores_BGMS, batch, groups, length, heads // groups, keys)
    return reshaped(jnp.moveaxis(scores_BGTRS, 3, 2), batch, heads, length, keys)


def weighted_values(weights_BHTS: jax.Array, v_BSHV: jax.Array) -> jax.Array:
    """The second half of equation 1, weights times V, BTHV."""
    weights_BHTS, heads, groups = weights_BHTS.astype(v_BSHV.dtype), weights_BHTS.shape[1], v_BSHV.shape[2]
    if groups == heads:
        return product("bhts,bshv->bthv", weights_BHTS, v_BSHV)
    heads_BTGRV = product("bgrts,bsgv->btgrv", _grouped(weights_BHTS, 1, groups), v_BSHV)
    return reshaped(heads_BTGRV, *heads_BTGRV.shape[:2], heads, heads_BTGRV.shape[-1])


def _grouped(x: jax.Array, axis: int, groups: int) -> jax.Array:
    """The axis of the queries' H heads as two: G heads of keys and values, and the R = H / G heads that share each."""
    heads = x.shape[axis]
    check_multiple(groups, "the heads of keys and values", heads=heads)
    return reshaped(x, *x.shape[:axis], groups, heads // groups, *x.shape[axis + 1 :])


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def masked_softmax(scores: jax.Array, mask: jax.Array | None, dtype: Any = jnp.float32) -> jax.Array:
    """Softmax over the last axis where the mask is True, and 0 elsewhere; a row that is entirely masked is 0.

    It is computed in the type of the scores and rounded to `dtype`.
    """
    if mask is None:
        return jax.nn.softmax(scores).astype(dtype)
    return jnp.where(mask, jax.nn.softmax(jnp.where(mask, scores, MASKED)), 0.0).astype(dtype)


@masked_softmax.defjvp
def _softmax_derivative(dtype: Any, inputs: tuple[Any, Any], changes: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    """The tangent, from the weights alone; by default JAX keeps several arrays of their size."""
    weights, (change, _) = checkpoint_name(masked_softmax(*inputs, dtype), WEIGHTS), changes
    exact = weights.astype(change.dtype)
    return weights, (exact * (change - jnp.sum(change * exact, axis=-1, keepdims=True))).astype(dtype)
