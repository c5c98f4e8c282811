"""Attention (section 3.2), from top to bottom: scaled dot-product attention, multi-head attention.

Masks are in `masks.py`, its other arguments in `context.py`, the cache of decoding in `cache.py`, and attention to near
keys in `window.py`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jax.typing import ArrayLike

from transformer_jax.model import cache, fused, window
from transformer_jax.model.cache import Cache
from transformer_jax.model.checks import (
    broadcasting,
    check_choice,
    check_classes,
    check_multiple,
    check_positive,
    check_shapes,
    check_whole,
)  # fmt: skip
from transformer_jax.model.context import Context, resolved, with_mask
from transformer_jax.model.layers import Dropout, Linear, Rate, drops, xavier
from transformer_jax.model.masks import causal_mask, combine_masks, near_mask, padding_mask, segment_mask
from transformer_jax.model.meshes import product, reshaped
from transformer_jax.model.positions import OF_SCORES, Positions

__all__ = [
    "Cache", "Context", "MultiHeadAttention", "attention_weights", "causal_mask", "combine_masks", "masked_softmax",
    "near_mask", "padding_mask", "scaled_dot_product_attention", "segment_mask", "weighted_values",
]  # fmt: skip

# Finite, so that a row in which everything is masked has a softmax, and a gradient, without NaN.
MASKED = -1e30
# The name of the weights for a `jax.checkpoint` policy.
WEIGHTS = "attention_weights"
NO_POSITIONS = Positions(parent=None).bind({})


# Equation 1.


def scaled_dot_product_attention(
    q_BTHK: ArrayLike,
    k_BSHK: ArrayLike,
    v_BSHV: ArrayLike,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Equation 1: softmax(Q K^T / sqrt(d_k)) V. Returns output_BTHV and weights_BHTS.

    The softmax is computed in float32. A row that may attend to nothing has weights and output zero.

    - `q_BTHK`, `k_BSHK`, `v_BSHV`: queries, keys and values, [batch, length, heads, width]. Keys and values may have
      fewer heads, a divisor of the queries' (Ainslie et al. 2023): each serves several neighbouring heads of queries.
    - `mask`: boolean, True = may attend, of the shape [B or 1, H or 1, T or 1, S or 1].
    - `bias`: added to the scores, of such a shape as well.
    - `scale`: replaces 1 / sqrt(d_k).
    - `softcap`: scores s become softcap tanh(s / softcap) (Gemma 2, 2024), before the bias is added.
    """
    check_positive(scale=scale, softcap=softcap)
    check_shapes(q_BTHK=q_BTHK, k_BSGK=k_BSHK, v_BSGV=v_BSHV)
    q_BTHK, k_BSHK, v_BSHV = jnp.asarray(q_BTHK), jnp.asarray(k_BSHK), jnp.asarray(v_BSHV)
    shape_BHTS = (q_BTHK.shape[0], q_BTHK.shape[2], q_BTHK.shape[1], k_BSHK.shape[1])
    mask = broadcasting("mask", mask, jnp.bool_, shape_BHTS)
    bias = broadcasting("bias", bias, jnp.floating, shape_BHTS)
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
    scores_BHTS = _scores(q_BTHK, k_BSHK) * (q_BTHK.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores_BHTS = softcap * jnp.tanh(scores_BHTS / softcap)
    if bias is not None:
        scores_BHTS = scores_BHTS + bias
    return masked_softmax(scores_BHTS, mask, dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def masked_softmax(scores: jax.Array, mask: jax.Array | None, dtype: Any = jnp.float32) -> jax.Array:
    """Softmax over the last axis where the mask is True, and 0 elsewhere; a row that is entirely masked is 0.

    It is computed in the type of the scores and rounded to `dtype`.
    """
    if mask is None:
        return jax.nn.softmax(scores).astype(dtype)
    return jnp.where(mask, jax.nn.softmax(jnp.where(mask, scores, MASKED)), 0.0).astype(dtype)


@masked_softmax.defjvp
def _softmax_derivative(dtype: Any, inputs: tuple[Any, Any], changes: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    """The tangent, from the weights alone; by default JAX keeps several arrays of their size."""
    weights, (change, _) = checkpoint_name(masked_softmax(*inputs, dtype), WEIGHTS), changes
    exact = weights.astype(change.dtype)
    return weights, (exact * (change - jnp.sum(change * exact, axis=-1, keepdims=True))).astype(dtype)


def weighted_values(weights_BHTS: jax.Array, v_BSHV: jax.Array) -> jax.Array:
    """The second half of equation 1, weights times V."""
    weights_BHTS, heads, groups = weights_BHTS.astype(v_BSHV.dtype), weights_BHTS.shape[1], v_BSHV.shape[2]
    if groups == heads:
        return product("bhts,bshv->bthv", weights_BHTS, v_BSHV)
    heads_BTGRV = product("bgrts,bsgv->btgrv", _grouped(weights_BHTS, 1, groups), v_BSHV)
    return reshaped(heads_BTGRV, *heads_BTGRV.shape[:2], heads, heads_BTGRV.shape[-1])


def _scores(q_BTHK: jax.Array, k_BSHK: jax.Array) -> jax.Array:
    """Q K^T in float32, BHTS."""
    (batch, length, heads, _), (_, keys, groups, _) = q_BTHK.shape, k_BSHK.shape
    if groups == heads:
        return product("bthk,bshk->bhts", q_BTHK, k_BSHK, jnp.float32)
    # Queries and their heads as one axis M: XLA for CPUs cannot run a product of bfloat16 with two of them in a loop.
    q_BTRGK = jnp.moveaxis(_grouped(q_BTHK, 2, groups), 2, 3)
    q_BMGK = reshaped(q_BTRGK, batch, length * (heads // groups), *q_BTRGK.shape[3:])
    scores_BGMS = product("bmgk,bsgk->bgms", q_BMGK, k_BSHK, jnp.float32)
    scores_BGTRS = reshaped(scores_BGMS, batch, groups, length, heads // groups, keys)
    return reshaped(jnp.moveaxis(scores_BGTRS, 3, 2), batch, heads, length, keys)


def _grouped(x: jax.Array, axis: int, groups: int) -> jax.Array:
    """The axis of the queries' H heads as two: G heads of keys and values, and the R = H / G heads that share each."""
    heads = x.shape[axis]
    check_multiple(groups, "the heads of keys and values", heads=heads)
    return reshaped(x, *x.shape[:axis], groups, heads // groups, *x.shape[axis + 1 :])


def _attended(
    inputs: Sequence[jax.Array], mask: Any, bias: Any, scale: float | None, softcap: float | None
) -> jax.Array:
    """Equation 1 of q_BTHK, k_BSHK and v_BSHV without its weights.

    For the backward pass it keeps these inputs, and the weights in the type of the values.
    """

    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names(WEIGHTS))
    def attended(q_BTHK: jax.Array, k_BSHK: jax.Array, v_BSHV: jax.Array, mask: Any, bias: Any) -> jax.Array:
        weights_BHTS = attention_weights(q_BTHK, k_BSHK, mask, bias, scale, softcap, v_BSHV.dtype)
        return weighted_values(weights_BHTS, v_BSHV)

    return attended(*inputs, mask, bias)


# Heads.


class MultiHeadAttention(nn.Module):
    """Section 3.2.2: Concat(head_1 .. head_h) W^O, head_i = Attention(Q W^Q_i, K W^K_i, V W^V_i).

    `attention(x, x)` is self-attention, `attention(x, memory)` cross-attention. The output is as wide as the query.
    A mask has four axes: write one of the shape [batch, keys] as `mask[:, None, None, :]`.
    `apply(..., mutable=["intermediates"])` also returns the weights, BHTS, under "weights".

    - `num_heads`: the number of heads, h.
    - `d_k`, `d_v`: widths of a head's queries and keys, and of its values; by default width / num_heads each. Unlike in
      most libraries they are free (Table 3, row B).
    - `dropout`: the rate at which weights are dropped (the paper has none).
    - `use_bias`: biases in the four projections (the paper has none).
    - `dtype`: the type of the computation; parameters are float32, as the softmax is.
    - `implementation`: "plain", the formula as written, or "cudnn", its kernels where they can compute it (`fused.py`).
    - `gain`: multiplies the initial W^V and W^O (DeepNorm).
    - `num_key_value_heads`: fewer heads of keys and values, each shared by several neighbouring heads of queries, and
      with the initial variance of all heads (grouped queries: Ainslie et al. 2023; multi-query, 1: Shazeer 2019).
    - `softcap`: the scores s become softcap tanh(s / softcap) (Gemma 2, 2024).
    - `qk_norm`: makes the norms of each head's queries and keys, over d_k, one for all heads; they are called before
      positions act (Dehghani et al. 2023; Henry et al. 2020). The scores keep their 1 / sqrt(d_k).
    - `scale`: replaces 1 / sqrt(d_k), under muP by sqrt(base d_k) / d_k (Yang et al. 2022).
    """

    num_heads: int
    d_k: int | None = None
    d_v: int | None = None
    dropout: Rate = 0.0
    use_bias: bool = False
    dtype: Any = jnp.float32
    implementation: str = "plain"
    gain: float = 1.0
    num_key_value_heads: int | None = None
    softcap: float | None = None
    qk_norm: Callable[[], nn.Module] | None = None
    scale: float | None = None

    def setup(self) -> None:
        check_whole(num_heads=self.num_heads, num_key_value_heads=self.num_key_value_heads, d_k=self.d_k, d_v=self.d_v)
        check_positive(softcap=self.softcap, scale=self.scale)
        check_choice(("plain", "cudnn"), implementation=self.implementation)
        check_classes(qk_norm=self.qk_norm)
        gains, shared_by = (1.0, self.gain), self.num_heads // self.kv_heads
        self.query, self.output = (Linear(self.use_bias, self.dtype, xavier(gain)) for gain in gains)
        self.key, self.value = (Linear(self.use_bias, self.dtype, xavier(gain, None, shared_by)) for gain in gains)
        self.drop = Dropout(self.dropout)
        if self.qk_norm is not None:
            self.query_norm, self.key_norm = self.qk_norm(), self.qk_norm()

    @property
    def kv_heads(self) -> int:
        """The number of heads of keys and values."""
        return self.num_key_value_heads or self.num_heads

    def __call__(
        self,
        query: ArrayLike,
        key_value: ArrayLike,
        mask: ArrayLike | Context | None = None,
        bias: ArrayLike | None = None,
        *,
        deterministic: bool = True,
    ) -> jax.Array:
        """The output of attention, without a cache. `bias` is added to the scores, and has four axes as the mask has.

        In place of the mask there may be a `Context`, which then has all other arguments.
        """
        context = mask if isinstance(mask, Context) else Context(mask, bias=bias, deterministic=deterministic)
        return self.with_context(query, key_value, context)[0]

    def with_context(
        self, query: ArrayLike, key_value: ArrayLike | None, context: Context
    ) -> tuple[jax.Array, Cache | None]:
        """The output, and the cache with the new keys and values (None without one).

        `key_value` is None where the cache holds all keys and values: in cross-attention while decoding.
        """
        context = resolved(context, query, key_value)
        query, encoding, stored = jnp.asarray(query), context.encoding, context.cache
        q_BTHK = self.queries(query)
        if key_value is not None:
            k_BSHK, v_BSHV = self.keys(jnp.asarray(key_value)), self.values(jnp.asarray(key_value))
        if encoding is not None and key_value is not None:
            of_keys = context.key_positions_BS if stored is None else context.positions_BT
            q_BTHK, k_BSHK = encoding.rotate(q_BTHK, context.positions_BT), encoding.rotate(k_BSHK, of_keys)
        if stored is not None:
            stored = stored if key_value is None else cache.appended(stored, k_BSHK, v_BSHV)
            k_BSHK, v_BSHV = cache.heads_of(stored)
        check_shapes(q_BTHK=q_BTHK, k_BSGK=k_BSHK)
        context = with_mask(context, (query.shape[0], self.num_heads, query.shape[1], k_BSHK.shape[1]))
        heads_BTHV = self.attend(q_BTHK, k_BSHK, v_BSHV, context)
        if context.head_mask is not None:
            check_shapes(query_BTHK=q_BTHK, head_mask_H=context.head_mask)
            factors_H = jnp.asarray(context.head_mask).astype(heads_BTHV.dtype)
            heads_BTHV = heads_BTHV * factors_H[None, None, :, None]
        return self.output(heads_BTHV, query.shape[-1], axes=2), stored

    def attend(self, q_BTHK: jax.Array, k_BSHK: jax.Array, v_BSHV: jax.Array, context: Context) -> jax.Array:
        """Equation 1 on heads, with positions and dropout: the method that a variant overrides."""
        encoding = NO_POSITIONS if context.encoding is None else context.encoding
        positions: Any = context.positions_BT, context.key_positions_BS
        are_shown = self.shows_weights()
        needs_weights = are_shown or encoding.moves_values or (drops(self.dropout) and not context.deterministic)
        changes_scores = self.softcap is not None or context.bias is not None or encoding.overrides(*OF_SCORES)
        is_plain = self.implementation == "plain" or needs_weights or changes_scores or self.is_initializing()
        if not is_plain and fused.describes(context, q_BTHK):
            return fused.attention(q_BTHK, k_BSHK, v_BSHV, self.scale, context)
        if not are_shown and window.is_long(context, q_BTHK.shape[1]):
            return window.in_blocks(self.attend, q_BTHK, k_BSHK, v_BSHV, context)

        near = None if context.window is None else window.mask_of(context, q_BTHK.shape[1])
        mask, bias = combine_masks(context.mask, near), context.bias
        of_positions = encoding.bias(q_BTHK, *positions)
        if of_positions is not None:
            shape_BHTS = (q_BTHK.shape[0], self.num_heads, q_BTHK.shape[1], k_BSHK.shape[1])
            of_positions = broadcasting(f"{type(encoding).__name__}.bias", of_positions, jnp.floating, shape_BHTS)
            bias = of_positions if bias is None else bias + of_positions
        scores_of = encoding.content_queries(q_BTHK), k_BSHK
        if not needs_weights:
            return _attended((*scores_of, v_BSHV), mask, bias, self.scale, self.softcap)
        weights_BHTS = attention_weights(*scores_of, mask, bias, self.scale, self.softcap)
        if are_shown:
            self.sow("intermediates", "weights", weights_BHTS)
        weights_BHTS = self.drop(weights_BHTS, context.deterministic)
        heads_BTHV = weighted_values(weights_BHTS, v_BSHV)
        return heads_BTHV + encoding.moved_values(weights_BHTS, *positions) if encoding.moves_values else heads_BTHV

    def shows_weights(self) -> bool:
        """Whether the weights are an output, too."""
        return self.is_mutable_collection("intermediates") and not self.is_initializing()

    # The projected heads before positions act, BTHK, BSGK and BSGV: a variant may override these as well.
    def queries(self, query: jax.Array) -> jax.Array:
        q_BTHK = self._heads(self.query, query, self.num_heads, self.d_k)
        return q_BTHK if self.qk_norm is None else self.query_norm(q_BTHK).astype(self.dtype)

    def keys(self, key_value: jax.Array) -> jax.Array:
        k_BSHK = self._heads(self.key, key_value, self.kv_heads, self.d_k)
        return k_BSHK if self.qk_norm is None else self.key_norm(k_BSHK).astype(self.dtype)

    def values(self, key_value: jax.Array) -> jax.Array:
        return self._heads(self.value, key_value, self.kv_heads, self.d_v)

    def _heads(self, projection: Linear, x: jax.Array, heads: int, width: int | None) -> jax.Array:
        """The projection of x to this many heads of this width, by default d_model / num_heads."""
        if width is None:
            check_multiple(self.num_heads, "num_heads, unless d_k and d_v are given", width=x.shape[-1])
            width = x.shape[-1] // self.num_heads
        return projection(x, heads, width)

    # The cache of decoding.
    def new_cache(self, batch: int, length: int, d_model: int) -> Cache:
        """An empty cache of self-attention, for decoding up to `length` tokens; with more the output is NaN.

        Its first axis is the rows; the number of filled slots is one for all rows.
        """
        d_k, d_v = (width or d_model // self.num_heads for width in (self.d_k, self.d_v))
        return cache.empty(batch, self.kv_heads, d_k, d_v, length, self.dtype)

    def project_memory(self, key_value: ArrayLike) -> Cache:
        """The cache of cross-attention: the keys and values of a sequence, computed once."""
        return cache.of_memory(self.keys(jnp.asarray(key_value)), self.values(jnp.asarray(key_value)))
