"""Operations over the vocabulary: the largest logits, and their log-probabilities.

Logits stay as the model makes them, a row for each target: as [B, K, V] TPUs would copy all of them at every step.
"""

import jax.numpy as jnp
from jax import Array, lax

# The log-probability of a token with logit -inf. Finite, so that a target that contains it ranks below every possible
# one without creating a NaN; -inf is reserved for what the search itself forbids.
RULED_OUT = -1e9
# In a larger vocabulary the C largest of each row are found among the C blocks with the largest maxima: one cheap pass
# over all logits in place of a sort (on CPU 4 to 8 times faster than `lax.top_k`, which is faster than `argmax`).
_BLOCK = 64


def largest_entries(values_RV: Array, count: int) -> tuple[Array, Array]:
    """The `count` largest values of each row, largest first, and their indices; the lowest index first among equals."""
    rows, width = values_RV.shape
    count = min(count, width)
    if width <= count * _BLOCK:
        values_RC, indices_RC = lax.top_k(values_RV, count)
        return values_RC, indices_RC
    padding = ((0, 0), (0, -width % _BLOCK))
    maxima = lax.reduce_window(values_RV, -jnp.inf, lax.max, (1, _BLOCK), (1, _BLOCK), padding)
    # Sorted, so that the gathered blocks keep the order of the indices and ties break the same way.
    blocks = jnp.sort(lax.top_k(maxima, count)[1], axis=1)
    indices = (blocks[:, :, None] * _BLOCK + jnp.arange(_BLOCK, dtype=jnp.int32)[None, None, :]).reshape(rows, -1)
    gathered = values_RV.at[jnp.arange(rows)[:, None], indices].get(mode="fill", fill_value=-jnp.inf)
    values_RC, order_RC = lax.top_k(gathered, count)
    return values_RC, jnp.take_along_axis(indices, order_RC, axis=1)


def log_probabilities(logits_RV: Array, tokens_RC: Array) -> Array:
    """log softmax(logits)[tokens], computed for these tokens alone. Never above 0; NaN beyond the vocabulary."""
    # Not from `largest_entries`: on CPUs the sum then takes four times as long as with a separate pass.
    largest_R1 = jnp.max(logits_RV, axis=1, keepdims=True)
    largest_R1 = jnp.where(jnp.isfinite(largest_R1), largest_R1, 0.0)
    normalizer_R1 = jnp.log(jnp.sum(jnp.exp(logits_RV - largest_R1), axis=1, keepdims=True)) + largest_R1
    logits_RC = jnp.take_along_axis(logits_RV, tokens_RC, axis=1)
    values_RC = jnp.clip(logits_RC - jnp.maximum(normalizer_R1, RULED_OUT), RULED_OUT, 0.0)
    return jnp.where((tokens_RC >= 0) & (tokens_RC < logits_RV.shape[1]), values_RC, jnp.nan)


def is_possible(log_probabilities: Array) -> Array:
    """Whether the model gives a target with this log-probability any chance."""
    return log_probabilities > RULED_OUT / 2
