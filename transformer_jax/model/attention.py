"""Attention (section 3.2), from top to bottom: masks, scaled dot-product attention, multi-head attention, its cache."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jax.typing import ArrayLike

from transformer_jax.model import fused
from transformer_jax.model.layers import Dropout, Linear, Rate, drops, product, xavier
from transformer_jax.model.positions import Positions, relative_distances
from transformer_jax.model.shapes import broadcasting, check_multiple, check_positive, check_shapes, check_type

# Finite, so that a row in which everything is masked has a softmax, and a gradient, without NaN.
MASKED = -1e30
# The name of the weights for a `jax.checkpoint` policy.
WEIGHTS = "attention_weights"
NO_POSITIONS = Positions(parent=None)

# The state between decoding steps: "keys" BGKL and "values" BGVL, with G heads of keys and values; the cache
# of self-attention also has "filled", the number of slots L in use. Slots come last because the products with them run
# through memory in that order: with BLGK each step would first copy the whole cache into it.
Cache = dict[str, jax.Array]


# Masks: boolean, True = may attend, and broadcasting to BHTS (batch, heads, queries, keys).


def padding_mask(tokens_BS: ArrayLike, pad_id: int = 0) -> jax.Array:
    """Hides the *columns* of padding, B11S: no query attends to a key that is `pad_id`."""
    check_shapes(tokens_BL=tokens_BS)
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
    return functools.reduce(jnp.logical_and, given) if given else None


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
    check_positive(softcap=softcap)
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
    return heads_BTGRV.reshape(*heads_BTGRV.shape[:2], heads, heads_BTGRV.shape[-1])


def _scores(q_BTHK: jax.Array, k_BSHK: jax.Array) -> jax.Array:
    """Q K^T in float32, BHTS."""
    (batch, length, heads, _), (_, keys, groups, _) = q_BTHK.shape, k_BSHK.shape
    if groups == heads:
        return product("bthk,bshk->bhts", q_BTHK, k_BSHK, jnp.float32)
    # Queries and their heads as one axis M: XLA for CPUs cannot run a product of bfloat16 with two of them in a loop.
    q_BTRGK = jnp.moveaxis(_grouped(q_BTHK, 2, groups), 2, 3)
    q_BMGK = q_BTRGK.reshape(batch, length * (heads // groups), *q_BTRGK.shape[3:])
    scores_BGMS = product("bmgk,bsgk->bgms", q_BMGK, k_BSHK, jnp.float32)
    scores_BGTRS = scores_BGMS.reshape(batch, groups, length, heads // groups, keys)
    return jnp.moveaxis(scores_BGTRS, 3, 2).reshape(batch, heads, length, keys)


def _grouped(x: jax.Array, axis: int, groups: int) -> jax.Array:
    """The axis of the queries' H heads as two: G heads of keys and values, and the R = H / G heads that share each."""
    heads = x.shape[axis]
    check_multiple(groups, "the heads of keys and values", heads=heads)
    return x.reshape(*x.shape[:axis], groups, heads // groups, *x.shape[axis + 1 :])


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


class Context(flax.struct.PyTreeNode):
    """The arguments of attention besides its inputs. Stacks and layers pass it to all their attention modules.

    - `mask`: boolean, True = may attend, of the shape [B or 1, H or 1, T or 1, S or 1]. Without one each query attends
      to all keys; with a cache of self-attention, to the slots up to its own.
    - `encoding`: the position encoding, if it acts in attention; stacks set it for their layers.
    - `positions_BT`: the positions of the queries, one row per sentence or one for all; by default 0, 1, 2 ..., with a
      cache those after the filled slots.
    - `key_positions_BS`: the positions of the keys, by default as of the queries; with a cache, of all its slots, by
      default 0, 1, 2 ...
    - `cache`: for decoding. The cache of self-attention, from `new_cache`, gets the new keys and values appended; the
      cache of cross-attention, from `project_memory`, is only read.
    - `head_mask`: a factor for each head's output, "H"; for a stack "NH", with a row per layer.
    - `lengths_B`, `is_causal`: describe `mask` to fused kernels, which read none: the keys of each row that it does not
      hide, and whether it hides later ones. Without `lengths_B` a mask is computed by the plain formula.
    - `window`: in self-attention, keys farther away than this are hidden. Without a cache, later keys (if `is_causal`)
      and keys of other segments (`segments_BT`) are then hidden as well, whether or not `mask` does so.
    - `deterministic`: False applies dropout, and needs `rngs={"dropout": key}`.
    """

    mask: ArrayLike | None = None
    encoding: Positions | None = flax.struct.field(default=None, pytree_node=False)
    positions_BT: ArrayLike | None = None
    key_positions_BS: ArrayLike | None = None
    cache: Cache | None = None
    head_mask: ArrayLike | None = None
    lengths_B: ArrayLike | None = None
    is_causal: bool = flax.struct.field(default=False, pytree_node=False)
    window: int | None = flax.struct.field(default=None, pytree_node=False)
    segments_BT: ArrayLike | None = None
    deterministic: bool = flax.struct.field(default=True, pytree_node=False)


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
        check_positive(num_heads=self.num_heads, num_key_value_heads=self.num_key_value_heads)
        check_positive(d_k=self.d_k, d_v=self.d_v, softcap=self.softcap)
        if self.implementation not in ("plain", "cudnn"):
            raise ValueError(f"implementation = {self.implementation!r}: must be 'plain' or 'cudnn'")
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
        self, query: ArrayLike, key_value: ArrayLike, mask: ArrayLike | None = None, *, deterministic: bool = True
    ) -> jax.Array:
        """The output of attention without positions or a cache, for use on its own. Layers call `with_context`."""
        return self.with_context(query, key_value, Context(mask, deterministic=deterministic))[0]

    def with_context(
        self, query: ArrayLike, key_value: ArrayLike | None, context: Context
    ) -> tuple[jax.Array, Cache | None]:
        """The output, and the cache with the new keys and values (None without one).

        `key_value` is None where the cache holds all keys and values: in cross-attention while decoding.
        """
        is_cached = key_value is None and context.cache is not None
        check_positive(window=context.window)
        check_shapes(query_BTD=query, **({} if is_cached else {"key_value_BSE": key_value}))
        query, mask, cache, encoding = jnp.asarray(query), context.mask, context.cache, context.encoding
        if cache is not None and "filled" not in cache and (encoding is not None or key_value is not None):
            raise ValueError("cache is that of a memory, from project_memory: key_value and encoding must be None")
        q_BTHK = self.queries(query)
        if encoding is not None:
            queries_BT, keys_BS = _positions(context, query, key_value)
            context = context.replace(positions_BT=queries_BT, key_positions_BS=keys_BS)
            q_BTHK = encoding.rotate(q_BTHK, queries_BT)
        if key_value is not None:
            k_BSHK, v_BSHV = self.keys(jnp.asarray(key_value)), self.values(jnp.asarray(key_value))
            if encoding is not None:
                k_BSHK = encoding.rotate(k_BSHK, keys_BS if cache is None else queries_BT)
            if cache is not None:
                check_shapes(cache_BGKL=cache["keys"], key_value_BTE=key_value)
                if mask is None:
                    mask = cache_mask(cache["filled"], query.shape[1], cache["keys"].shape[-1])
                if context.window is not None:
                    distances_BTS = relative_distances(*_positions(context, query, key_value))
                    mask = mask & near_mask(distances_BTS, context.window, context.is_causal)[:, None]
                    context = context.replace(window=None)
                cache = _append(cache, k_BSHK, v_BSHV)
        if cache is not None:
            k_BSHK, v_BSHV = (jnp.moveaxis(cache[name], -1, 1) for name in ("keys", "values"))
        if mask is None and (context.lengths_B is not None or (context.is_causal and context.window is None)):
            raise ValueError("mask is None, but lengths_B or is_causal describes one: pass it, as causal_mask(length)")
        check_shapes(q_BTHK=q_BTHK, k_BSGK=k_BSHK)
        shape_BHTS = (query.shape[0], self.num_heads, query.shape[1], k_BSHK.shape[1])
        context = context.replace(mask=broadcasting("mask", mask, jnp.bool_, shape_BHTS))
        heads_BTHV = self.attend(q_BTHK, k_BSHK, v_BSHV, context)
        if context.head_mask is not None:
            check_shapes(query_BTHK=q_BTHK, head_mask_H=context.head_mask)
            factors_H = jnp.asarray(context.head_mask).astype(heads_BTHV.dtype)
            heads_BTHV = heads_BTHV * factors_H[None, None, :, None]
        return self.output(heads_BTHV, query.shape[-1], axes=2), cache

    def attend(self, q_BTHK: jax.Array, k_BSHK: jax.Array, v_BSHV: jax.Array, context: Context) -> jax.Array:
        """Equation 1 on heads, with positions and dropout: the method that a variant overrides."""
        encoding = NO_POSITIONS if context.encoding is None else context.encoding
        mask: Any = context.mask
        positions: Any = context.positions_BT, context.key_positions_BS
        bias = encoding.bias(q_BTHK, *positions)
        q_BTHK = encoding.content_queries(q_BTHK)
        are_shown = self.shows_weights()
        needs_weights = are_shown or encoding.moves_values or (drops(self.dropout) and not context.deterministic)
        inputs = q_BTHK, k_BSHK, v_BSHV
        is_described = bias is None and (mask is None or context.lengths_B is not None)
        is_described &= context.window is None or context.is_causal
        needs_formula = needs_weights or self.softcap is not None or self.is_initializing()
        if self.implementation == "cudnn" and is_described and not needs_formula:
            return fused.fused_attention(*inputs, self.scale, context.lengths_B, context.is_causal, context.window)
        if context.window is not None:
            # In blocks memory is linear in the length; a mask of queries, and weights that are shown, are quadratic.
            length, segments_BT = q_BTHK.shape[1], context.segments_BT
            if length > 2 * context.window and not are_shown and (mask is None or mask.shape[1:3] == (1, 1)):
                return self._attend_in_blocks(*inputs, context)
            distances_TS = jnp.arange(length)[None] - jnp.arange(length)[:, None]
            near = near_mask(distances_TS, context.window, context.is_causal)[None, None]
            mask = combine_masks(mask, near, None if segments_BT is None else segment_mask(segments_BT, segments_BT))
        if not needs_weights:
            return _attended(inputs, mask, bias, self.scale, self.softcap)
        weights_BHTS = attention_weights(q_BTHK, k_BSHK, mask, bias, self.scale, self.softcap)
        if are_shown:
            self.sow("intermediates", "weights", weights_BHTS)
        weights_BHTS = self.drop(weights_BHTS, context.deterministic)
        heads_BTHV = weighted_values(weights_BHTS, v_BSHV)
        return heads_BTHV + encoding.moved_values(weights_BHTS, *positions) if encoding.moves_values else heads_BTHV

    def shows_weights(self) -> bool:
        """Whether the weights are an output, too."""
        return self.is_mutable_collection("intermediates") and not self.is_initializing()

    def _attend_in_blocks(self, q_BTHK: jax.Array, k_BTHK: jax.Array, v_BTHV: jax.Array, context: Context) -> jax.Array:
        """Attention to a window of keys: each block of `window` queries is a row, with the blocks of keys beside it."""
        (batch, length), window = q_BTHK.shape[:2], context.window or 0
        count, beside = -(-length // window), (0, 1) if context.is_causal else (0, 1, 2)

        def blocks(x: jax.Array, beside: Sequence[int]) -> jax.Array:
            """Rows of x in blocks, each with those before (0), itself (1) and after (2); zeros outside of x."""
            padded = jnp.pad(x, ((0, 0), (window, (count + 1) * window - length), *[(0, 0)] * (x.ndim - 2)))
            padded = padded.reshape(batch, count + 2, window, *x.shape[2:])
            joined = jnp.concatenate([padded[:, i : i + count] for i in beside], axis=2)
            return joined.reshape(batch * count, len(beside) * window, *x.shape[2:])

        mask = jnp.ones((1, 1, 1, 1), bool) if context.mask is None else jnp.asarray(context.mask)
        seen_NS = blocks(jnp.broadcast_to(mask[:, 0, 0], (batch, length)), beside)
        distances_TS = (jnp.arange(seen_NS.shape[1]) - window)[None] - jnp.arange(window)[:, None]
        mask = seen_NS[:, None, None] & near_mask(distances_TS, window, context.is_causal)[None, None]
        if context.segments_BT is not None:
            segments_BT = jnp.asarray(context.segments_BT)
            mask &= segment_mask(blocks(segments_BT, (1,)), blocks(segments_BT, beside))
        context = context.replace(window=None, mask=mask, lengths_B=None)
        heads_NTHV = self.attend(blocks(q_BTHK, (1,)), blocks(k_BTHK, beside), blocks(v_BTHV, beside), context)
        return heads_NTHV.reshape(batch, count * window, *heads_NTHV.shape[2:])[:, :length]

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
        heads = batch, self.kv_heads
        d_k, d_v = (width or d_model // self.num_heads for width in (self.d_k, self.d_v))
        return {
            "keys": jnp.zeros((*heads, d_k, length), self.dtype),
            "values": jnp.zeros((*heads, d_v, length), self.dtype),
            "filled": jnp.zeros((), jnp.int32),
        }

    def project_memory(self, key_value: ArrayLike) -> Cache:
        """The cache of cross-attention: the keys and values of a sequence, computed once."""
        heads = {"keys": self.keys(jnp.asarray(key_value)), "values": self.values(jnp.asarray(key_value))}
        return {name: jnp.moveaxis(x_BSGK, 1, -1) for name, x_BSGK in heads.items()}


def _positions(context: Context, query_BTD: jax.Array, key_value_BSE: ArrayLike | None) -> tuple[jax.Array, jax.Array]:
    """The positions of queries and keys, given or counted."""
    cache, queries_BT, keys_BS = context.cache, context.positions_BT, context.key_positions_BS
    if queries_BT is None:
        queries_BT = (0 if cache is None else cache["filled"]) + jnp.arange(query_BTD.shape[1])[None]
    if keys_BS is None:
        keys_BS = queries_BT if cache is None else jnp.arange(cache["keys"].shape[-1])[None]
    check_shapes(query_BTD=query_BTD, positions_BT=queries_BT)
    keys = {"key_value_BSE": key_value_BSE} if cache is None else {"cache_BGKS": cache["keys"]}
    check_shapes(**keys, key_positions_BS=keys_BS)
    return jnp.asarray(queries_BT), jnp.asarray(keys_BS)


def _append(cache: Cache, k_BTGK: jax.Array, v_BTGV: jax.Array) -> Cache:
    """Writes new keys and values into the next free slots; NaN if there are too few, so that the output is NaN."""
    filled, after, slots = cache["filled"], cache["filled"] + k_BTGK.shape[1], cache["keys"].shape[-1]
    written = {"filled": after}
    for name, new in (("keys", k_BTGK), ("values", jnp.where(after > slots, jnp.nan, v_BTGV))):
        new_BGKT = jnp.moveaxis(new, 1, -1).astype(cache[name].dtype)
        written[name] = jax.lax.dynamic_update_slice(cache[name], new_BGKT, (0, 0, 0, filled))
    return written
