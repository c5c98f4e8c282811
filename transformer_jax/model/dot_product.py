"""Scaled dot-product attention (equation 1) as pure functions."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.model.masks import check_bias, checked_mask
from transformer_jax.model.precision import precision_of
from transformer_jax.model.shapes import check_positive, check_shapes
from transformer_jax.model.softmax import WEIGHTS, masked_softmax


def scaled_dot_product_attention(
    q_BTHK: jax.Array,
    k_BSHK: jax.Array,
    v_BSHV: jax.Array,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Equation 1: softmax(Q K^T / sqrt(d_k)) V. Returns output_BTHV and weights_BHTS.

    `mask` is boolean (or 0 and 1), True = may attend, of the shape [B or 1, H or 1, T or 1, S or 1]. `bias`, of
    such a shape, is added to the scores; `scale` replaces 1 / sqrt(d_k); `softcap` limits the scores s to
    softcap tanh(s / softcap) (Gemma 2, 2024). Keys and values may have fewer heads, a divisor of the queries' (Ainslie
    et al. 2023): each serves as many neighbouring heads of the queries.
    The softmax is computed in float32. A row that may attend to nothing has weights and output zero.
    """
    check_positive(softcap=softcap)
    if bias is not None:
        check_shapes(q_BTHK=q_BTHK, k_BSGK=k_BSHK)
        (batch, queries, heads, _), keys = q_BTHK.shape, k_BSHK.shape[1]
        check_bias(bias, (batch, heads, queries, keys))
    weights_BHTS = attention_weights(q_BTHK, k_BSHK, mask, bias, scale, softcap)
    return weighted_values(weights_BHTS, v_BSHV), weights_BHTS


def attention_weights(
    q_BTHK: jax.Array,
    k_BSHK: jax.Array,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dtype: Any = jnp.float32,
) -> jax.Array:
    """The first half of equation 1, softmax(Q K^T / sqrt(d_k)), computed in float32 and rounded to `dtype`."""
    scores_BHTS = _products(q_BTHK, k_BSHK)
    scores_BHTS = scores_BHTS * (q_BTHK.shape[-1] ** -0.5 if scale is None else scale)
    mask = checked_mask(mask, scores_BHTS.shape)
    if bias is not None:
        scores_BHTS = scores_BHTS + bias
    if softcap is not None:
        scores_BHTS = softcap * jnp.tanh(scores_BHTS / softcap)
    return masked_softmax(scores_BHTS, mask, dtype)


def weighted_values(weights_BHTS: jax.Array, v_BSHV: jax.Array) -> jax.Array:
    """The second half of equation 1, weights times V."""
    check_shapes(weights_BHTS=weights_BHTS, v_BSGV=v_BSHV)
    weights_BHTS, groups = weights_BHTS.astype(v_BSHV.dtype), v_BSHV.shape[2]
    if groups == weights_BHTS.shape[1]:
        return jnp.einsum("bhts,bshv->bthv", weights_BHTS, v_BSHV, precision=precision_of(v_BSHV))
    weights_BGRTS = _grouped(weights_BHTS, 1, groups)
    heads_BTGRV = jnp.einsum("bgrts,bsgv->btgrv", weights_BGRTS, v_BSHV, precision=precision_of(v_BSHV))
    return heads_BTGRV.reshape(*heads_BTGRV.shape[:2], -1, heads_BTGRV.shape[-1])


def _products(q_BTHK: jax.Array, k_BSHK: jax.Array) -> jax.Array:
    """Q K^T in float32, BHTS."""
    check_shapes(q_BTHK=q_BTHK, k_BSGK=k_BSHK)
    product = {"preferred_element_type": jnp.float32, "precision": precision_of(q_BTHK)}
    heads, groups = q_BTHK.shape[2], k_BSHK.shape[2]
    if groups == heads:
        return jnp.einsum("bthk,bshk->bhts", q_BTHK, k_BSHK, **product)
    # Queries and their heads as one axis M: XLA for CPUs cannot run a product of bfloat16 with two of them in a loop.
    q_BTRGK = jnp.moveaxis(_grouped(q_BTHK, 2, groups), 2, 3)
    q_BMGK = q_BTRGK.reshape(q_BTHK.shape[0], -1, *q_BTRGK.shape[3:])
    scores_BGMS = jnp.einsum("bmgk,bsgk->bgms", q_BMGK, k_BSHK, **product)
    scores_BGTRS = scores_BGMS.reshape(*scores_BGMS.shape[:2], *q_BTRGK.shape[1:3], -1)
    return jnp.moveaxis(scores_BGTRS, 3, 2).reshape(q_BTHK.shape[0], heads, q_BTHK.shape[1], -1)


def _grouped(x: jax.Array, axis: int, groups: int) -> jax.Array:
    """The axis of the queries' H heads as two: G heads of keys and values, and the R = H / G heads that share each."""
    heads = x.shape[axis]
    if heads % groups:
        raise ValueError(
            f"{groups} heads of keys and values must divide the {heads} heads of the queries; heads are the third "
            "axis, [batch, length, heads, width]"
        )
    return x.reshape(*x.shape[:axis], groups, heads // groups, *x.shape[axis + 1 :])


def attended_values(
    q_BTHK: jax.Array,
    k_BSHK: jax.Array,
    v_BSHV: jax.Array,
    mask: jax.Array | None,
    bias: jax.Array | None,
    softcap: float | None = None,
    scale: float | None = None,
) -> jax.Array:
    """Equation 1 without its weights, keeping as little as possible for the backward pass.

    That is the weights in the type of the values, and queries, keys and values with their heads merged: TPUs would pad
    heads of 64 to 128.
    """

    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names(WEIGHTS))
    def attended(merged: Sequence[jax.Array], mask: jax.Array | None, bias: jax.Array | None) -> jax.Array:
        q_BTHK, k_BSHK, v_BSHV = (x.reshape(*x.shape[:2], h, -1) for x, h in zip(merged, heads, strict=True))
        weights_BHTS = attention_weights(q_BTHK, k_BSHK, mask, bias, scale, softcap, v_BSHV.dtype)
        return weighted_values(weights_BHTS, v_BSHV)

    heads = [x.shape[2] for x in (q_BTHK, k_BSHK, v_BSHV)]
    return attended([x.reshape(*x.shape[:2], -1) for x in (q_BTHK, k_BSHK, v_BSHV)], mask, bias)
