"""Operations over the vocabulary: the largest logits, and their log-probabilities.

Logits stay as the model makes them, a row for each target: as [B, K, V] TPUs would copy all of them at every step.
Where the mesh axis `axis` divides the vocabulary, each device looks at its own logits, and only what it finds is sent.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

# The log-probability of a token with logit -inf. Finite, so that a target that contains it ranks below every possible
# one without creating a NaN; -inf is reserved for what the search itself forbids.
RULED_OUT = -1e9
# In a larger vocabulary the C largest of each row are found among the C blocks with the largest maxima: one cheap pass
# over all logits in place of a sort (on CPU 4 to 8 times faster than `lax.top_k`, which is faster than `argmax`).
_BLOCK = 64


def largest_entries(values_RV: Array, count: int, axis: str | None = None) -> tuple[Array, Array]:
    """The `count` largest values of each row, largest first, and their indices; the lowest index first among equals."""
    if axis is None:
        return _largest_entries(values_RV, count)

    def of_part(values_RV: Array) -> tuple[Array, Array]:
        values_RC, indices_RC = _largest_entries(values_RV, count)
        indices_RC = indices_RC + lax.axis_index(axis) * values_RV.shape[1]
        # The parts follow each other in the order of the indices, so that ties break the same way.
        values_RC, indices_RC = lax.all_gather((values_RC, indices_RC), axis, axis=1, tiled=True)
        values_RC, order_RC = lax.top_k(values_RC, min(count, values_RC.shape[1]))
        return values_RC, jnp.take_along_axis(indices_RC, order_RC, axis=1)

    return _for_each_part(of_part, axis)(values_RV)


def _largest_entries(values_RV: Array, count: int) -> tuple[Array, Array]:
    rows, width = values_RV.shape
    count = min(count, width)
    if width <= count * _BLOCK:
        values_RC, indices_RC = lax.top_k(values_RV, count)
        return values_RC, indices_RC
    padding = ((0, 0), (0, -width % _BLOCK))
    maxima = lax.reduce_window(values_RV, -jnp.inf, lax.max, (1, _BLOCK), (1, _BLOCK), padding)
    # Sorted, so that the gathered blocks keep the order of the indices and ties break the same way.
    blocks = jnp.sort(lax.top_k(maxima, count)[1], axis=1)
    indices = (blocks[:, :, None] * _BLOCK + jnp.arange(_BLOCK)[None, None, :]).reshape(rows, -1)
    gathered = values_RV.at[jnp.arange(rows)[:, None], indices].get(mode="fill", fill_value=-jnp.inf)
    values_RC, order_RC = lax.top_k(gathered, count)
    return values_RC, jnp.take_along_axis(indices, order_RC, axis=1)


def log_probabilities(logits_RV: Array, tokens_RC: Array, axis: str | None = None) -> Array:
    """log softmax(logits)[tokens], computed for these tokens alone. Never above 0; NaN beyond the vocabulary."""
    # Not from `largest_entries`: on CPUs the sum then takes four times as long as with a pass of its own.
    largest_R1 = jnp.max(logits_RV, axis=1, keepdims=True)
    largest_R1 = jnp.where(jnp.isfinite(largest_R1), largest_R1, 0.0)

    def of_part(logits_RV: Array, tokens_RC: Array, largest_R1: Array) -> tuple[Array, Array]:
        sum_R1 = jnp.sum(jnp.exp(logits_RV - largest_R1), axis=1, keepdims=True)
        if axis is None:
            return sum_R1, jnp.take_along_axis(logits_RV, tokens_RC, axis=1)
        width = logits_RV.shape[1]
        own_RC = tokens_RC - lax.axis_index(axis) * width
        logits_RC = jnp.take_along_axis(logits_RV, jnp.clip(own_RC, 0, width - 1), axis=1)
        return lax.psum((sum_R1, jnp.where((own_RC >= 0) & (own_RC < width), logits_RC, 0.0)), axis)

    of_all = of_part if axis is None else _for_each_part(of_part, axis, PartitionSpec(), PartitionSpec())
    sum_R1, logits_RC = of_all(logits_RV, tokens_RC, largest_R1)
    normalizer_R1 = jnp.log(sum_R1) + largest_R1
    values_RC = jnp.clip(logits_RC - jnp.maximum(normalizer_R1, RULED_OUT), RULED_OUT, 0.0)
    return jnp.where((tokens_RC >= 0) & (tokens_RC < logits_RV.shape[1]), values_RC, jnp.nan)


def _for_each_part(function: Callable[..., Any], axis: str, *others: PartitionSpec) -> Callable[..., Any]:
    """The function of logits whose vocabulary this axis of the mesh divides, and of `others`; its result is whole."""
    specs: dict[str, Any] = {"in_specs": (PartitionSpec(None, axis), *others), "out_specs": PartitionSpec()}
    return jax.shard_map(function, axis_names={axis}, check_vma=False, **specs)


def is_possible(log_probabilities: Array) -> Array:
    """Whether the model gives a target with this log-probability any chance."""
    return log_probabilities > RULED_OUT / 2
