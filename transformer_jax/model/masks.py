"""Who may attend to whom: boolean masks, True = may attend, that broadcast to B1TS (batch, heads, queries, keys)."""

from collections.abc import Sequence

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


def checked_mask(mask: jax.Array | None, shape_BHTS: Sequence[int]) -> jax.Array | None:
    """A mask for attention, as booleans: of any axis it has all, or 1 for all alike. Others are refused.

    What merely broadcasts is not enough: of a mask [batch, keys], batch would stand for queries wherever the two are
    equal. And a mask that is to be added, 0 and -1e9, would mean its opposite.
    """
    if mask is None:
        return None
    mask = jnp.asarray(mask)
    if not (mask.dtype == bool or jnp.issubdtype(mask.dtype, jnp.integer)):
        raise ValueError(
            f"mask is {mask.dtype}: must be bool, True = may attend; of one that is to be added, 0 and -1e9, that is "
            "mask == 0"
        )
    if mask.ndim != 4 or any(size not in (1, full) for size, full in zip(mask.shape, shape_BHTS, strict=True)):
        raise ValueError(
            f"mask has the shape {mask.shape}: must be [batch, heads, queries, keys] = {tuple(shape_BHTS)}, with 1 for "
            "any that it is the same for; padding_mask and causal_mask make such, and of a mask [batch, keys] it is "
            "mask[:, None, None, :]"
        )
    return mask.astype(bool)
