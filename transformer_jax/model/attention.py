"""Attention (section 3.2), from top to bottom: scaled dot-product attention, then heads.

Its products and softmax are in `products.py`, masks in `masks.py`, other arguments in `context.py`, the cache of
decoding in `cache.py`, attention to near keys in `window.py`, and kernels in `fused.py`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import ArrayLike

from transformer_jax.model import cache, checks, fused, window
from transformer_jax.model.cache import Cache
from transformer_jax.model.context import Context, bias_of, resolved
from transformer_jax.model.dropout import Dropout, Rate, drops
from transformer_jax.model.layers import Linear, xavier
from transformer_jax.model.positions import Positions
from transformer_jax.model.products import WEIGHTS, masked_softmax, scores_of, weighted_values

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
    checks.check_positive(scale=scale, softcap=softcap)
    checks.check_shapes(q_BTHK=q_BTHK, k_BSGK=k_BSHK, v_BSGV=v_BSHV)
    q_BTHK, k_BSHK, v_BSHV = jnp.asarray(q_BTHK), jnp.asarray(k_BSHK), jnp.asarray(v_BSHV)
    shape_BHTS = (q_BTHK.shape[0], q_BTHK.shape[2], q_BTHK.shape[1], k_BSHK.shape[1])
    mask = checks.broadcasting("mask", mask, jnp.bool_, shape_BHTS)
    bias = checks.broadcasting("bias", bias, jnp.floating, shape_BHTS)
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
    scores_BHTS = scores_of(q_BTHK, k_BSHK) * (q_BTHK.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores_BHTS = softcap * jnp.tanh(scores_BHTS / softcap)
    if bias is not None:
        scores_BHTS = scores_BHTS + bias
    return masked_softmax(scores_BHTS, mask, dtype)


def attended(
    q_BTHK: jax.Array, k_BSHK: jax.Array, v_BSHV: jax.Array, mask: Any, bias: Any, scale: Any, softcap: Any
) -> jax.Array:
    """Equation 1 without its weights. Its gradient keeps its inputs, and the weights in the type of the values."""

    def output(q_BTHK: jax.Array, k_BSHK: jax.Array, v_BSHV: jax.Array, mask: Any, bias: Any) -> jax.Array:
        weights_BHTS = attention_weights(q_BTHK, k_BSHK, mask, bias, scale, softcap, v_BSHV.dtype)
        return weighted_values(weights_BHTS, v_BSHV)

    policy = jax.checkpoint_policies.save_only_these_names(WEIGHTS)
    return jax.checkpoint(output, policy=policy)(q_BTHK, k_BSHK, v_BSHV, mask, bias)


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
        checks.check_whole(
            num_heads=self.num_heads, num_key_value_heads=self.num_key_value_heads, d_k=self.d_k, d_v=self.d_v
        )
        checks.check_positive(softcap=self.softcap, scale=self.scale)
        checks.check_choice(("plain", "cudnn"), implementation=self.implementation)
        checks.check_classes(qk_norm=self.qk_norm)
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
        if not isinstance(mask, Context):
            mask = Context(mask, bias=bias, deterministic=deterministic)
        elif bias is not None or not deterministic:
            raise ValueError("bias and deterministic: with a Context they are its fields; call context.replace(...)")
        if mask.cache is not None and not cache.is_of_memory(mask.cache):
            raise ValueError("context has a cache, which a call does not return: use with_context")
        return self.with_context(query, key_value, mask)[0]

    def with_context(
        self, query: ArrayLike, key_value: ArrayLike | None, context: Context
    ) -> tuple[jax.Array, Cache | None]:
        """The output, and the cache with the new keys and values (None without one).

        `key_value` is None where the cache holds all keys and values: in cross-attention while decoding.
        """
        query, context = jnp.asarray(query), resolved(context, query, key_value, self.num_heads)
        encoding, stored = context.encoding, context.cache
        q_BTHK = self.queries(query)
        if key_value is not None:
            k_BSHK, v_BSHV = self.keys(jnp.asarray(key_value)), self.values(jnp.asarray(key_value))
            if encoding is not None:
                of_new = context.key_positions_BS if stored is None else context.positions_BT
                q_BTHK, k_BSHK = encoding.rotate(q_BTHK, context.positions_BT), encoding.rotate(k_BSHK, of_new)
            stored = None if stored is None else cache.appended(stored, k_BSHK, v_BSHV)
        if stored is not None:
            k_BSHK, v_BSHV = cache.heads_of(stored)
        checks.check_shapes(q_BTHK=q_BTHK, k_BSGK=k_BSHK)
        heads_BTHV = self.attend(q_BTHK, k_BSHK, v_BSHV, context)
        if context.head_mask is not None:
            checks.check_shapes(query_BTHK=q_BTHK, head_mask_H=context.head_mask)
            factors_H = jnp.asarray(context.head_mask).astype(heads_BTHV.dtype)
            heads_BTHV = heads_BTHV * factors_H[None, None, :, None]
        return self.output(heads_BTHV, query.shape[-1], axes=2), stored

    def attend(self, q_BTHK: jax.Array, k_BSHK: jax.Array, v_BSHV: jax.Array, context: Context) -> jax.Array:
        """Equation 1 on heads, with positions and dropout: the method that a variant overrides."""
        encoding = NO_POSITIONS if context.encoding is None else context.encoding
        are_shown = self.shows_weights()
        needs_weights = are_shown or encoding.moves_values or (drops(self.dropout) and not context.deterministic)

        may_be_fused = self.implementation == "cudnn" and self.softcap is None and not self.is_initializing()
        if may_be_fused and not needs_weights and fused.computes(context, q_BTHK):
            return fused.attention(q_BTHK, k_BSHK, v_BSHV, self.scale, context)

        if window.is_long(context, q_BTHK.shape[1]) and not are_shown:
            return window.in_blocks(self.attend, q_BTHK, k_BSHK, v_BSHV, context)

        mask, bias = window.mask_of(context, q_BTHK.shape[1]), bias_of(context, q_BTHK, k_BSHK)
        q_BTHK = encoding.content_queries(q_BTHK)
        if not needs_weights:
            return attended(q_BTHK, k_BSHK, v_BSHV, mask, bias, self.scale, self.softcap)

        weights_BHTS = attention_weights(q_BTHK, k_BSHK, mask, bias, self.scale, self.softcap)
        if are_shown:
            self.sow("intermediates", "weights", weights_BHTS)
        weights_BHTS = self.drop(weights_BHTS, context.deterministic)
        heads_BTHV = weighted_values(weights_BHTS, v_BSHV)
        if encoding.moves_values:
            heads_BTHV += encoding.moved_values(weights_BHTS, context.positions_BT, context.key_positions_BS)
        return heads_BTHV

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
            checks.check_multiple(self.num_heads, "num_heads, unless d_k and d_v are given", width=x.shape[-1])
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
