"""What attention is given besides its inputs, and how it is resolved: positions are counted, masks combined."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from transformer_jax.model.cache import Cache, is_of_memory
from transformer_jax.model.checks import broadcasting, check_shapes, check_whole
from transformer_jax.model.masks import cache_mask, causal_mask, combine_masks, near_mask, segment_mask
from transformer_jax.model.positions import IN_ATTENTION, Positions, check_encoding, relative_distances

ARRAYS = (
    "mask", "bias", "positions_BT", "key_positions_BS", "cache", "head_mask", "lengths_B", "segments_BT",
)  # fmt: skip
FLAGS = ("is_causal", "window", "deterministic")


@dataclasses.dataclass(frozen=True)
class Context:
    """The arguments of attention besides its inputs. Stacks and layers pass it to all their attention modules.

    A query attends to the keys that `mask`, `is_causal`, `window` and `segments_BT` all allow. The last three are of
    self-attention.

    - `mask`: boolean, True = may attend, of the shape [B or 1, H or 1, T or 1, S or 1]. Without one each query attends
      to all keys; with a cache of self-attention, to the slots up to its own.
    - `encoding`: the position encoding, if it acts in attention; stacks make their own, from `positions_cls`.
    - `positions_BT`: the positions of the queries, one row per sentence or one for all; by default 0, 1, 2 ..., with a
      cache those after the filled slots.
    - `key_positions_BS`: the positions of the keys, by default as of the queries; with a cache, of all its slots, by
      default 0, 1, 2 ...
    - `cache`: for decoding. The cache of self-attention, from `new_cache`, gets the new keys and values appended; the
      cache of cross-attention, from `project_memory`, is only read.
    - `head_mask`: a factor for each head's output, "H"; for a stack "NH", with a row per layer.
    - `lengths_B`: the number of keys of each row that `mask` does not hide, all at its beginning. Fused kernels read
      these numbers instead of the mask; they give NaN in rows where it shows the last query other keys.
    - `is_causal`: no query attends to later keys.
    - `window`: a query attends to keys at most this far before it and, unless `is_causal`, after it: in places of the
      row, with a cache in positions.
    - `segments_BT`: the number of each token's segment. A query attends within its segment; segment 0 is padding.
    - `bias`: added to the scores, of such a shape as `mask`.
    - `deterministic`: False applies dropout, and needs `rngs={"dropout": key}`.
    """

    mask: Any = None
    encoding: Positions | None = None
    positions_BT: Any = None
    key_positions_BS: Any = None
    cache: Cache | None = None
    head_mask: ArrayLike | None = None
    lengths_B: ArrayLike | None = None
    is_causal: bool = False
    window: int | None = None
    segments_BT: ArrayLike | None = None
    bias: Any = None
    deterministic: bool = True

    def replace(self, **changes: Any) -> "Context":
        return dataclasses.replace(self, **changes)


def _flatten(context: Context) -> tuple[list[Any], Any]:
    # An encoding with a scope has parameters. As a leaf it is found by nn.remat and others, which lift its scope, too.
    is_bound = context.encoding is not None and getattr(context.encoding, "scope", True) is not None
    bound, fixed = (context.encoding, None) if is_bound else (None, context.encoding)
    return [getattr(context, name) for name in ARRAYS] + [bound], (fixed, *(getattr(context, name) for name in FLAGS))


def _unflatten(static: Any, leaves: Any) -> Context:
    fixed, *flags = static
    *arrays, bound = leaves
    fields = dict(zip((*ARRAYS, *FLAGS), (*arrays, *flags), strict=True))
    return Context(encoding=fixed if bound is None else bound, **fields)


jax.tree_util.register_pytree_node(Context, _flatten, _unflatten)


def check_context(**contexts: Any) -> None:
    for name, context in contexts.items():
        if not isinstance(context, Context):
            kind = type(context).__name__
            raise TypeError(f"{name} is of the type {kind}: must be a Context; a mask is given as Context(mask)")


def resolved(context: Context, query: Any, key_value: Any, heads: int) -> Context:
    """The context of attention with these inputs, checked.

    It has positions where the encoding or a window needs them, and one mask of all that its fields hide; a window
    without a cache stays one, whose mask would be quadratic in the length.
    """
    _check(context, query, key_value)
    cache, encoding = context.cache, context.encoding
    if encoding is not None and encoding.scope is None:
        # It was made outside of linen modules: flax cannot capture what its methods return.
        context = context.replace(encoding=encoding.bind({}))
    if encoding is not None or (cache is not None and context.window is not None):
        context = _with_positions(context, query, key_value)
    batch, length, _ = jnp.shape(query)
    keys = jnp.shape(key_value)[1] if cache is None else cache["keys"].shape[-1]
    return _with_mask(context, (batch, heads, length, keys))


def _check(context: Context, query: Any, key_value: Any) -> None:
    check_context(context=context)
    check_whole(window=context.window)
    if isinstance(context.is_causal, jax.Array):
        raise ValueError("is_causal is an array: must be True or False; a mask may be traced, as causal_mask(length)")
    cache, encoding = context.cache, context.encoding
    of_self = context.is_causal or context.window is not None or context.segments_BT is not None
    if cache is not None and is_of_memory(cache):
        check_shapes(query_BTD=query, cache_BGKS=cache["keys"])
        if encoding is not None or key_value is not None or of_self:
            raise ValueError(
                "cache is of a memory, from project_memory: key_value, encoding, is_causal, window and "
                "segments_BT must not be given"
            )
        return
    check_shapes(query_BTD=query, key_value_BSE=key_value)
    if cache is not None:
        check_shapes(query_BTD=query, key_value_BTE=key_value)
        check_shapes(cache_BGKL=cache["keys"], key_value_BTE=key_value)
        if context.segments_BT is not None:
            raise ValueError(
                "segments_BT: must not be given with a cache, which does not hold the segments of its slots"
            )
    elif of_self and jnp.shape(query)[1] != jnp.shape(key_value)[1]:
        lengths = f"{jnp.shape(query)[1]} queries and {jnp.shape(key_value)[1]} keys"
        raise ValueError(f"is_causal, window and segments_BT are for self-attention: here are {lengths}")
    if context.segments_BT is not None:
        check_shapes(query_BTD=query, segments_BT=context.segments_BT)
    if context.mask is None and context.lengths_B is not None:
        raise ValueError("mask is None, but lengths_B describes one: pass it, as from padding_mask(tokens)")
    if context.lengths_B is not None:
        check_shapes(query_BTD=query, lengths_B=context.lengths_B)
    if encoding is not None:
        check_encoding(encoding, IN_ATTENTION, "it has no effect in attention")


def _with_positions(context: Context, query: Any, key_value: Any) -> Context:
    """The context with positions of queries and keys, given or counted."""
    cache, queries_BT, keys_BS = context.cache, context.positions_BT, context.key_positions_BS
    if queries_BT is None:
        queries_BT = (0 if cache is None else cache["filled"]) + jnp.arange(jnp.shape(query)[1])[None]
    if keys_BS is None:
        keys_BS = queries_BT if cache is None else jnp.arange(cache["keys"].shape[-1])[None]
    check_shapes(query_BTD=query, positions_PT=queries_BT)
    keys = {"key_value_BSE": key_value} if cache is None else {"cache_BGKS": cache["keys"]}
    check_shapes(**keys, key_positions_PS=keys_BS)
    return context.replace(positions_BT=jnp.asarray(queries_BT), key_positions_BS=jnp.asarray(keys_BS))


def _with_mask(context: Context, shape_BHTS: tuple[int, int, int, int]) -> Context:
    """The context with the mask that its fields describe, except for a window without a cache."""
    mask = broadcasting("mask", context.mask, jnp.bool_, shape_BHTS)
    context = context.replace(mask=mask, bias=broadcasting("bias", context.bias, jnp.floating, shape_BHTS))
    length, slots = shape_BHTS[2:]
    if context.cache is not None and not is_of_memory(context.cache):
        if mask is None or context.is_causal:
            mask = combine_masks(mask, cache_mask(context.cache["filled"], length, slots))
        if context.window is not None:
            distances_BTS = relative_distances(context.positions_BT, context.key_positions_BS)
            mask = combine_masks(mask, near_mask(distances_BTS, context.window, context.is_causal)[:, None])
        return context.replace(mask=mask, window=None, lengths_B=None)
    if context.window is None:
        later = causal_mask(length) if context.is_causal else None
        segments_BT = context.segments_BT
        mask = combine_masks(mask, later, None if segments_BT is None else segment_mask(segments_BT, segments_BT))
    return context.replace(mask=mask)


def bias_of(context: Context, q_BTHK: jax.Array, k_BSHK: jax.Array) -> jax.Array | None:
    """All that is added to the scores: the biases of the context and of its encoding."""
    bias: jax.Array | None = context.bias
    if context.encoding is None:
        return bias
    (batch, length, heads, _), keys = q_BTHK.shape, k_BSHK.shape[1]
    of_positions = broadcasting(
        f"{type(context.encoding).__name__}.bias",
        context.encoding.bias(q_BTHK, context.positions_BT, context.key_positions_BS),
        jnp.floating,
        (batch, heads, length, keys),
    )
    return of_positions if bias is None or of_positions is None else bias + of_positions
