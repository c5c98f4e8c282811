"""Attention masks: boolean, True = may attend, and broadcasting to B1TS (batch, heads, queries, keys)."""

from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.model.shapes import check_floating, check_shapes, known_range


@flax.struct.dataclass
class TokenMask:
    """A mask of padding and, if causal, of later tokens: kernels need no array for it, but a length and a flag."""

    is_token_BS: jax.Array
    causal: bool = flax.struct.field(pytree_node=False)

    @property
    def lengths_B(self) -> jax.Array:
        return jnp.sum(self.is_token_BS, axis=-1, dtype=jnp.int32)

    @property
    def array(self) -> jax.Array:
        """The same mask as an array."""
        padding = self.is_token_BS[:, None, None, :]
        return padding & causal_mask(self.is_token_BS.shape[1]) if self.causal else padding


Mask = jax.Array | TokenMask | None


def padding_mask(tokens_BS: jax.Array, pad_id: int = 0) -> jax.Array:
    """Hides the *columns* of padding, B11S: no query attends to a key that is `pad_id`."""
    tokens_BS = jnp.asarray(tokens_BS)
    check_shapes(tokens_BL=tokens_BS)
    return (tokens_BS != pad_id)[:, None, None, :]


def causal_mask(length: int) -> jax.Array:
    """Position t attends to positions 0..t, 11TT (section 3.2.3: "preventing leftward information flow")."""
    if np.ndim(length):
        raise ValueError(
            f"length has the shape {np.shape(length)}: must be a number, as in causal_mask(tokens.shape[1])"
        )
    return jnp.tril(jnp.ones((1, 1, length, length), dtype=bool))


def segment_mask(query_segments_BT: jax.Array, key_segments_BS: jax.Array) -> jax.Array:
    """Separates sentences packed into one row, B1TS: attends within a segment only; segment 0 is padding."""
    queries_BT1, keys_B1S = query_segments_BT[:, :, None], key_segments_BS[:, None, :]
    return ((queries_BT1 == keys_B1S) & (keys_B1S != 0))[:, None]


def self_attention_mask(
    tokens_BT: jax.Array, pad_id: int, segments_BT: jax.Array | None, causal: bool, described: bool = False
) -> Mask:
    """The default mask of self-attention: padding, other segments and, in the decoder, later tokens are hidden.

    As a TokenMask if it may be `described` so, and there are no segments.
    """
    if described and segments_BT is None:
        return TokenMask(jnp.asarray(tokens_BT) != pad_id, causal)
    return combine_masks(
        causal_mask(tokens_BT.shape[1]) if causal else None,
        padding_mask(tokens_BT, pad_id),
        None if segments_BT is None else segment_mask(segments_BT, segments_BT),
    )


def cross_attention_mask(
    source_BS: jax.Array,
    pad_id: int,
    source_segments: jax.Array | None,
    target_segments: jax.Array | None,
    described: bool = False,
) -> Mask:
    """The default mask of cross-attention: the *source's* padding and other segments are hidden."""
    padding = padding_mask(source_BS, pad_id)
    if source_segments is None or target_segments is None:
        return TokenMask(jnp.asarray(source_BS) != pad_id, causal=False) if described else padding
    return padding & segment_mask(target_segments, source_segments)


def cache_mask(filled: jax.Array, new: int, slots: int) -> jax.Array:
    """The default mask over a cache that is about to receive new tokens, 11TL: each sees the slots up to its own."""
    slots_L, own_T = jnp.arange(slots), filled + jnp.arange(new)
    return (slots_L[None] <= own_T[:, None])[None, None]


def combine_masks(*masks: jax.Array | None) -> jax.Array | None:
    """Attends where every mask allows it; None allows everything."""
    given = [mask for mask in masks if mask is not None]
    if not given:
        return None
    try:
        jnp.broadcast_shapes(*(mask.shape for mask in given))
    except ValueError:
        shapes = " and ".join(str(mask.shape) for mask in given)
        raise ValueError(f"masks have the shapes {shapes}: axes must have the same size, or 1") from None
    for mask in given:
        _check_kind(mask)
    combined = given[0]
    for mask in given[1:]:
        combined = combined & mask
    return combined


def checked_rows(x_BTD: jax.Array, mask: Mask) -> jax.Array:
    """Embedded tokens; with a TokenMask NaN in rows with padding before a token, which a length cannot describe."""
    if not isinstance(mask, TokenMask):
        return x_BTD
    follows_padding = mask.is_token_BS[:, 1:] & ~mask.is_token_BS[:, :-1]
    fits_B11 = ~jnp.any(follows_padding, axis=-1)[:, None, None]
    return x_BTD * jnp.where(fits_B11, 1, jnp.nan).astype(x_BTD.dtype)


def checked_mask(mask: jax.Array | None, shape_BHTS: Sequence[int]) -> jax.Array | None:
    """The mask as booleans, if each of its four axes is of full size or 1; any other is refused.

    Broadcasting alone would accept too much: in a mask [batch, keys] the batch would be taken for queries wherever
    the sizes are equal, and a mask that is to be added, 0 and -1e9, would mean its opposite.
    """
    if mask is None:
        return None
    _check_kind(mask)
    mask = jnp.asarray(mask)
    if mask.ndim != 4 or any(size not in (1, full) for size, full in zip(mask.shape, shape_BHTS, strict=True)):
        raise ValueError(
            f"mask has the shape {mask.shape}: must be [batch, heads, queries, keys] = {tuple(shape_BHTS)}, with 1 "
            "where the mask is the same for all, as from padding_mask and causal_mask; for a mask [batch, keys] use "
            "mask[:, None, None, :]"
        )
    return mask.astype(bool)


def _check_kind(mask: jax.Array) -> None:
    """Refuses what is neither boolean nor, as far as is known, 0 and 1."""
    if mask.dtype == bool:
        return
    use = "must be bool, True = may attend; for a mask that is to be added, 0 and -1e9, use mask == 0"
    if not jnp.issubdtype(mask.dtype, jnp.integer):
        raise ValueError(f"mask is {mask.dtype}: {use}")
    if wrong := [value for value in known_range(mask) if value not in (0, 1)]:
        raise ValueError(f"mask is {mask.dtype} and has the value {wrong[0]}: {use}")


def check_bias(bias: jax.Array, shape_BHTS: Sequence[int]) -> None:
    """Refuses a bias of the scores that is not floating-point, or has an axis that is neither of full size nor 1."""
    check_floating(bias=bias)
    if bias.ndim != 4 or any(size not in (1, full) for size, full in zip(bias.shape, shape_BHTS, strict=True)):
        raise ValueError(
            f"bias has the shape {bias.shape}: must be [batch, heads, queries, keys] = {tuple(shape_BHTS)}, with 1 "
            "where the bias is the same for all; for [batch, queries, keys] use bias[:, None], for [heads, queries, "
            "keys] bias[None]"
        )
