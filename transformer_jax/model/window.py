"""Self-attention in which each query attends to the keys near it."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from transformer_jax.model.context import Context
from transformer_jax.model.masks import combine_masks, near_mask, segment_mask
from transformer_jax.model.meshes import reshaped


def is_long(context: Context, length: int) -> bool:
    """Whether blocks save memory. A mask or bias of queries x keys is quadratic in the length in any case.

    In jax.export a length may be of any size, and blocks have none.
    """
    has_row = context.mask is None or context.mask.shape[1:3] == (1, 1)
    if jax.export.is_symbolic_dim(length):
        return False
    return context.window is not None and length > 2 * context.window and has_row and context.bias is None


def mask_of(context: Context, length: int) -> jax.Array | None:
    """The mask of the context and of its window, 11TS, or B1TS within segments."""
    if context.window is None:
        return context.mask
    distances_TS = jnp.arange(length)[None] - jnp.arange(length)[:, None]
    near_11TS = near_mask(distances_TS, context.window, context.is_causal)[None, None]
    segments_BT = context.segments_BT
    of_segments = None if segments_BT is None else segment_mask(segments_BT, segments_BT)
    return combine_masks(context.mask, near_11TS, of_segments)


def in_blocks(
    attend: Callable[..., jax.Array], q_BTHK: jax.Array, k_BTHK: jax.Array, v_BTHV: jax.Array, context: Context
) -> jax.Array:
    """Attention to a window of keys, in memory linear in the length.

    Each block of `window` queries is a row for `attend`, with the blocks of keys beside it.
    """
    (batch, length), window = q_BTHK.shape[:2], context.window or 0
    count, beside = -(-length // window), (0, 1) if context.is_causal else (0, 1, 2)

    def blocks(x: Any, beside: Sequence[int]) -> jax.Array:
        """Rows of x in blocks, each with those before (0), itself (1) and after (2); zeros outside of x."""
        x = jnp.asarray(x)
        x = jnp.broadcast_to(x, (batch, *x.shape[1:]))
        padded = jnp.pad(x, ((0, 0), (window, (count + 1) * window - length), *[(0, 0)] * (x.ndim - 2)))
        padded = reshaped(padded, batch, count + 2, window, *x.shape[2:])
        joined = jnp.concatenate([padded[:, i : i + count] for i in beside], axis=2)
        return reshaped(joined, batch * count, len(beside) * window, *x.shape[2:])

    seen_BS = jnp.ones((1, length), bool) if context.mask is None else context.mask[:, 0, 0]
    seen_NS = blocks(jnp.broadcast_to(seen_BS, (seen_BS.shape[0], length)), beside)
    distances_TS = (jnp.arange(seen_NS.shape[1]) - window)[None] - jnp.arange(window)[:, None]
    mask = seen_NS[:, None, None] & near_mask(distances_TS, window, context.is_causal)[None, None]
    if context.segments_BT is not None:
        mask &= segment_mask(blocks(context.segments_BT, (1,)), blocks(context.segments_BT, beside))
    changes: dict[str, Any] = {"window": None, "mask": mask, "lengths_B": None, "is_causal": False, "segments_BT": None}
    if context.encoding is not None:
        changes["positions_BT"] = blocks(context.positions_BT, (1,))
        changes["key_positions_BS"] = blocks(context.key_positions_BS, beside)
    heads_NTHV = attend(
        blocks(q_BTHK, (1,)), blocks(k_BTHK, beside), blocks(v_BTHV, beside), context.replace(**changes)
    )
    return reshaped(heads_NTHV, batch, count * window, *heads_NTHV.shape[2:])[:, :length]
