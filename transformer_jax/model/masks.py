"""Who may attend to whom: boolean masks, True = may attend, that broadcast to B1TS (batch, heads, queries, keys)."""

import jax
import jax.numpy as jnp


def padding_mask(tokens_BS: jax.Array, pad_id: int = 0) -> jax.Array:
    """Hides the *columns* of padding: no query attends to a key that is `pad_id`. Shape B11S."""
    return (jnp.asarray(tokens_BS) != pad_id)[:, None, None, :]


def causal_mask(length: int) -> jax.Array:
    """Position t attends to positions 0..t (section 3.2.3: "preventing leftward information flow"). Shape 11TT."""
    return jnp.tril(jnp.ones((1, 1, length, length), dtype=bool))


def segment_mask(query_segments_BT: jax.Array, key_segments_BS: jax.Array) -> jax.Array:
    """Keeps sentences packed into one row apart: attends within a segment only; segment 0 is padding. Shape B1TS."""
    queries_BT1, keys_B1S = query_segments_BT[:, :, None], key_segments_BS[:, None, :]
    return ((queries_BT1 == keys_B1S) & (keys_B1S != 0))[:, None]


def combine_masks(*masks: jax.Array | None) -> jax.Array | None:
    """Attends where every mask allows it; None allows everything."""
    given = [mask for mask in masks if mask is not None]
    if not given:
        return None
    combined = given[0]
    for mask in given[1:]:
        combined = combined & mask
    return combined
