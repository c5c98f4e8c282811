"""Masks of attention: boolean, True = may attend, and broadcasting to BHTS (batch, heads, queries, keys)."""

import functools

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from transformer_jax.model.checks import check_shapes, check_type


def padding_mask(tokens_BS: ArrayLike, pad_id: int = 0) -> jax.Array:
    """Hides the *columns* of padding, B11S: no query attends to a key that is `pad_id`."""
    check_shapes(tokens_BL=tokens_BS)
    check_type(jnp.integer, tokens=tokens_BS)
    return (jnp.asarray(tokens_BS) != pad_id)[:, None, None, :]


def causal_mask(length: int) -> jax.Array:
    """Position t attends to positions 0..t, 11TT (section 3.2.3: "preventing leftward information flow")."""
    return jnp.tril(jnp.ones((1, 1, length, length), dtype=bool))


def segment_mask(query_segments_BT: ArrayLike, key_segments_BS: ArrayLike) -> jax.Array:
    """Separates sentences packed into one row, B1TS: attends within a segment only; segment 0 is padding."""
    queries_BT1, keys_B1S = jnp.asarray(query_segments_BT)[:, :, None], jnp.asarray(key_segments_BS)[:, None, :]
    return ((queries_BT1 == keys_B1S) & (keys_B1S != 0))[:, None]


def cache_mask(filled: ArrayLike, new: int, slots: int) -> jax.Array:
    """The default mask over a cache that is about to receive new tokens, 11TL: each sees the slots up to its own."""
    slots_L, own_T = jnp.arange(slots), filled + jnp.arange(new)
    return (slots_L[None] <= own_T[:, None])[None, None]


def near_mask(distances: jax.Array, window: int, is_causal: bool) -> jax.Array:
    """Keys at distances (key - query) of at most `window`; if `is_causal`, none that are later."""
    return (-window <= distances) & (distances <= (0 if is_causal else window))


def combine_masks(*masks: ArrayLike | None) -> jax.Array | None:
    """True where every mask is True; None allows everything."""
    given = [jnp.asarray(mask) for mask in masks if mask is not None]
    for mask in given:
        check_type(jnp.bool_, mask=mask)
        if mask.ndim != 4:
            raise ValueError(
                f"mask has the shape {mask.shape}: must be [batch, heads, queries, keys]; [batch, keys] is "
                "mask[:, None, None, :]"
            )
    shapes = [mask.shape for mask in given]
    if any(len({1, *sizes}) > 2 for sizes in zip(*shapes, strict=True)):
        raise ValueError(f"masks have the shapes {' and '.join(map(str, shapes))}: an axis must be of one size, or 1")
    return functools.reduce(jnp.logical_and, given) if given else None
