"""Multi-head attention (section 3.2.2), around the formula in `dot_product.py`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer_jax.model import fused
from transformer_jax.model.dot_product import attended_values, attention_weights, weighted_values
from transformer_jax.model.dropout import Dropout, Rate, check_rate, drops
from transformer_jax.model.linear import Linear, xavier
from transformer_jax.model.masks import Mask, TokenMask, cache_mask, checked_mask
from transformer_jax.model.position_interface import AttentionPositions
from transformer_jax.model.shapes import check_floating, check_positive, check_shapes, check_type, known_range

IMPLEMENTATIONS = ("plain", "jax", "cudnn")

# What attention keeps between decoding steps: "keys" BGKL and "values" BGVL, with G heads of keys and values;
# self-attention's cache also has "filled", the number of slots L in use. Slots come last because the products with them
# run through memory in that order: with BLGK each step would first copy the whole cache into it.
Cache = dict[str, jax.Array]


class Context(NamedTuple):
    """What an attention layer is given besides its inputs.

    - `mask`: boolean (or 0 and 1), True = may attend, of the shape [B or 1, H or 1, T or 1, S or 1]; or a TokenMask.
    - `positions`: the position encoding, and the positions of queries and keys, for encodings that act in attention.
    - `cache`: of decoding. Self-attention's, from `new_cache`, gets the new keys and values appended; without a mask
      each token sees the slots up to its own. Cross-attention's, from `remember`, is only read.
    - `head_mask_H`: a factor for each head's output.
    """

    mask: Mask = None
    positions: AttentionPositions | None = None
    cache: Cache | None = None
    head_mask_H: jax.Array | None = None
    deterministic: bool = True


class MultiHeadAttention(nn.Module):
    """Section 3.2.2: Concat(head_1 .. head_h) W^O, head_i = Attention(Q W^Q_i, K W^K_i, V W^V_i).

    `attention(x, x)` is self-attention, `attention(x, memory)` cross-attention. The output is as wide as the query.
    Unlike in most libraries d_k and d_v need not be d_model / num_heads (Table 3, row B). A mask has four axes: one of
    the shape [batch, keys] is `mask[:, None, None, :]`, and one to be added, 0 and -1e9, is `mask == 0`. Layers call
    `with_context`. `apply(..., mutable=["intermediates"])` also returns the weights, BHTS, under "weights".

    Later changes, none of them the paper's:

    - `num_key_value_heads`: fewer heads of keys and values, each shared by as many neighbouring heads of queries, and
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
    gain: float = 1.0  # of the initial W^V and W^O
    num_key_value_heads: int | None = None
    softcap: float | None = None
    qk_norm: Callable[[], nn.Module] | None = None
    scale: float | None = None

    def setup(self) -> None:
        check_positive(num_heads=self.num_heads, d_k=self.d_k, d_v=self.d_v, softcap=self.softcap)
        check_rate(self.dropout)
        check_floating(dtype=self.dtype)
        if self.implementation not in IMPLEMENTATIONS:
            raise ValueError(f"implementation = {self.implementation!r}: must be one of {', '.join(IMPLEMENTATIONS)}")
        if self.groups < 1 or self.num_heads % self.groups:
            raise ValueError(f"num_key_value_heads = {self.groups} must divide num_heads = {self.num_heads}")
        gains, shared_by = (1.0, self.gain), self.num_heads // self.groups
        self.query, self.output = (Linear(self.use_bias, self.dtype, xavier(gain)) for gain in gains)
        self.key, self.value = (Linear(self.use_bias, self.dtype, xavier(gain, None, shared_by)) for gain in gains)
        self.drop = Dropout(self.dropout)
        if self.qk_norm is not None:
            self.query_norm, self.key_norm = self.qk_norm(), self.qk_norm()

    @property
    def groups(self) -> int:
        """The number of heads of keys and values."""
        return self.num_heads if self.num_key_value_heads is None else self.num_key_value_heads

    def __call__(
        self, query: jax.Array, key_value: jax.Array, mask: jax.Array | None = None, *, deterministic: bool = True
    ) -> jax.Array:
        """The output of attention without positions or a cache, for use on its own."""
        return self.with_context(query, key_value, Context(mask, deterministic=deterministic))[0]

    def with_context(
        self, query: jax.Array, key_value: jax.Array | None, context: Context
    ) -> tuple[jax.Array, Cache | None]:
        """The output, and the cache with the new keys and values (None without one).

        `key_value` is None where the cache holds all keys and values: in cross-attention while decoding.
        """
        check_type(Context, "Context(mask)", context=context)
        mask, positions, cache, head_mask_H, deterministic = context
        check_shapes(query_BTD=query, **({} if key_value is None else {"key_value_BSE": key_value}))
        q_BTHK = self.queries(query)
        if positions is not None:
            q_BTHK = positions.kind.rotate(q_BTHK, positions.queries_BT)
        if key_value is not None:
            k_BSHK, v_BSHV = self.keys(key_value), self.values(key_value)
            if positions is not None:  # with a cache, keys_BS are the positions of all its slots
                k_BSHK = positions.kind.rotate(k_BSHK, positions.keys_BS if cache is None else positions.queries_BT)
            if cache is not None:
                if mask is None:
                    mask = cache_mask(cache["filled"], query.shape[1], cache["keys"].shape[-1])
                cache = _append(cache, k_BSHK, v_BSHV)
        elif cache is None:
            raise ValueError("attention needs key_value, or a cache that holds its keys and values")
        if cache is not None:
            k_BSHK, v_BSHV = _from_slots(cache["keys"]), _from_slots(cache["values"])
        if not isinstance(mask, TokenMask):
            mask = checked_mask(mask, (query.shape[0], self.num_heads, query.shape[1], k_BSHK.shape[1]))
        heads_BTHV = self.attend(q_BTHK, k_BSHK, v_BSHV, mask, positions, deterministic)
        if head_mask_H is not None:
            heads_BTHV = heads_BTHV * head_mask_H.astype(heads_BTHV.dtype)[None, None, :, None]
        return self.output(heads_BTHV.reshape(*query.shape[:-1], -1), query.shape[-1]), cache

    def remember(self, key_value: jax.Array) -> Cache:
        """The cache of cross-attention: the keys and values of a sequence, computed once."""
        return {"keys": _to_slots(self.keys(key_value)), "values": _to_slots(self.values(key_value))}

    def new_cache(self, batch: int, length: int, d_model: int) -> Cache:
        """An empty cache of self-attention, for decoding up to `length` tokens."""
        d_k, d_v = self.d_k or d_model // self.num_heads, self.d_v or d_model // self.num_heads
        return {
            "keys": jnp.zeros((batch, self.groups, d_k, length), self.dtype),
            "values": jnp.zeros((batch, self.groups, d_v, length), self.dtype),
            "filled": jnp.zeros((), jnp.int32),
        }

    def attend(
        self,
        q_BTHK: jax.Array,
        k_BSHK: jax.Array,
        v_BSHV: jax.Array,
        mask: Mask,
        positions: AttentionPositions | None,
        deterministic: bool,
    ) -> jax.Array:
        """Equation 1 on heads, `groups` of keys and values, with positions and dropout: what a variant overrides."""
        bias = None
        if positions is not None:
            bias = positions.kind.bias(q_BTHK, positions.queries_BT, positions.keys_BS)
            q_BTHK = positions.kind.content_queries(q_BTHK)
        moves_values = positions is not None and positions.kind.moves_values
        weights_wanted = self.is_mutable_collection("intermediates") and not self.is_initializing()
        weights_needed = weights_wanted or moves_values or (drops(self.dropout) and not deterministic)
        if self.implementation != "plain" and not self.is_initializing():
            modified = bias is not None, self.softcap is not None
            reason = fused.unsupported(self.implementation, q_BTHK, v_BSHV, mask, *modified, weights_needed)
            if reason is None:
                return fused.fused_attention(self.implementation, q_BTHK, k_BSHK, v_BSHV, mask, bias, self.scale)
            fused.warn_once(self.implementation, reason)
        mask = mask.array if isinstance(mask, TokenMask) else mask
        if not weights_needed:
            return attended_values(q_BTHK, k_BSHK, v_BSHV, mask, bias, self.softcap, self.scale)
        weights_BHTS = attention_weights(q_BTHK, k_BSHK, mask, bias, self.scale, self.softcap)
        if weights_wanted:
            self.sow("intermediates", "weights", weights_BHTS)
        weights_BHTS = self.drop(weights_BHTS, deterministic)
        heads_BTHV = weighted_values(weights_BHTS, v_BSHV)
        if positions is not None and moves_values:
            heads_BTHV = heads_BTHV + positions.kind.moved_values(weights_BHTS, positions.queries_BT, positions.keys_BS)
        return heads_BTHV

    # The projected heads before positions act, BTHK, BSGK and BSGV: a variant may override these as well.
    def queries(self, query: jax.Array) -> jax.Array:
        q_BTHK = self._heads(self.query, query, self.num_heads, self.d_k)
        return q_BTHK if self.qk_norm is None else self.query_norm(q_BTHK)

    def keys(self, key_value: jax.Array) -> jax.Array:
        k_BSHK = self._heads(self.key, key_value, self.groups, self.d_k)
        return k_BSHK if self.qk_norm is None else self.key_norm(k_BSHK)

    def values(self, key_value: jax.Array) -> jax.Array:
        return self._heads(self.value, key_value, self.groups, self.d_v)

    def _heads(self, projection: Linear, x: jax.Array, heads: int, chosen: int | None) -> jax.Array:
        """The projection of x to so many heads, of the chosen width or else d_model / num_heads."""
        if chosen is None and x.shape[-1] % self.num_heads:
            raise ValueError(
                f"num_heads = {self.num_heads} does not divide the width {x.shape[-1]}: give d_k and d_v as well"
            )
        width = chosen or x.shape[-1] // self.num_heads
        return projection(x, heads * width).reshape(*x.shape[:-1], heads, width)


def _to_slots(x_BSHK: jax.Array) -> jax.Array:
    return jnp.moveaxis(x_BSHK, 1, -1)


def _from_slots(x_BHKL: jax.Array) -> jax.Array:
    return jnp.moveaxis(x_BHKL, -1, 1)


def _append(cache: Cache, k_BTHK: jax.Array, v_BTHV: jax.Array) -> Cache:
    """Writes the new keys and values into the next free slots."""
    filled, length, room = cache["filled"], k_BTHK.shape[1], cache["keys"].shape[-1]
    if any(known + length > room for known in known_range(filled)):
        raise ValueError(f"{length} tokens do not fit: {filled} of the cache's {room} slots are filled")
    written = {"keys": _to_slots(k_BTHK), "values": _to_slots(v_BTHV)}
    for name, new in written.items():
        written[name] = jax.lax.dynamic_update_slice(cache[name], new.astype(cache[name].dtype), (0, 0, 0, filled))
    return {**written, "filled": filled + length}
