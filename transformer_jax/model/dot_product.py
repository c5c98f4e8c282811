"""Scaled dot-product attention (equation 1) as pure functions."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.model.masks import checked_mask
from transformer_jax.model.precision import precision_of
from transformer_jax.model.softmax import WEIGHTS, masked_softmax


def scaled_dot_product_attention(
    q_BTHK: jax.Array,
    k_BSHK: jax.Array,
    v_BSHV: jax.Array,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    scale: float | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Equation 1: softmax(Q K^T / sqrt(d_k)) V. Returns output_BTHV and weights_BHTS.

    `mask` is boolean (or 0 and 1), True = may attend, of the shape [B or 1, H or 1, T or 1, S or 1]. `bias` is
    added to the scores and broadcasts to BHTS; `scale` replaces 1 / sqrt(d_k).
    The softmax is computed in float32. A row that may attend to nothing has weights and output zero.
    """
    weights_BHTS = attention_weights(q_BTHK, k_BSHK, mask, bias, scale)
    return weighted_values(weights_BHTS, v_BSHV), weights_BHTS


def attention_weights(
    q_BTHK: jax.Array,
    k_BSHK: jax.Array,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    scale: float | None = None,
    dtype: Any = jnp.float32,
) -> jax.Array:
    """The first half of equation 1, softmax(Q K^T / sqrt(d_k)), computed in float32 and rounded to `dtype`."""
    scale = q_BTHK.shape[-1] ** -0.5 if scale is None else scale
    shape = {"preferred_element_type": jnp.float32, "precision": precision_of(q_BTHK)}
    scores_BHTS = jnp.einsum("bthk,bshk->bhts", q_BTHK, k_BSHK, **shape) * scale
    mask = checked_mask(mask, scores_BHTS.shape)
    if bias is not None:
        scores_BHTS = scores_BHTS + bias
    return masked_softmax(scores_BHTS, mask, dtype)


def weighted_values(weights_BHTS: jax.Array, v_BSHV: jax.Array) -> jax.Array:
    """The second half of equation 1, weights times V."""
    return jnp.einsum("bhts,bshv->bthv", weights_BHTS.astype(v_BSHV.dtype), v_BSHV, precision=precision_of(v_BSHV))


def attended_values(
    q_BTHK: jax.Array, k_BSHK: jax.Array, v_BSHV: jax.Array, mask: jax.Array | None, bias: jax.Array | None
) -> jax.Array:
    """Equation 1 without its weights, keeping as little as possible for the backward pass.

    That is the weights in the type of the values, and queries, keys and values with their heads merged: TPUs would pad
    heads of 64 to 128.
    """

    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names(WEIGHTS))
    def attended(merged: Sequence[jax.Array], mask: jax.Array | None, bias: jax.Array | None) -> jax.Array:
        q_BTHK, k_BSHK, v_BSHV = (x.reshape(*x.shape[:2], heads, -1) for x in merged)
        weights_BHTS = attention_weights(q_BTHK, k_BSHK, mask, bias, dtype=v_BSHV.dtype)
        return weighted_values(weights_BHTS, v_BSHV)

    heads = q_BTHK.shape[2]
    return attended([x.reshape(*x.shape[:2], -1) for x in (q_BTHK, k_BSHK, v_BSHV)], mask, bias)
