"""What users pass wrongly: each gets a line that says what would be right, and no wrong result."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.small_models import SOURCE, TARGET, built
from transformer_jax import (
    ALiBi,
    AttentionInputs,
    Context,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    LayerNorm,
    MultiHeadAttention,
    Positions,
    RMSNorm,
    Rotary,
    Sinusoidal,
    causal_mask,
    combine_masks,
    padding_mask,
    scaled_dot_product_attention,
)
from transformer_jax.model.layers import Embedding, FeedForward, Residual
from transformer_jax.model.positions import apply_rotary, relative_buckets, sinusoid

KEY = jax.random.key(0)
X, HEADS, SCORES = (jnp.ones(shape) for shape in ((2, 4, 8), (2, 4, 2, 6), (2, 2, 4, 4)))
MASK = X[:, None, None, :, 0] > 0
ONE = np.zeros((1, 1), int)
ADDED = jnp.where(causal_mask(4), 0, -(10**9))


def attention(query, key_value, **fields):
    return MultiHeadAttention(2, **fields).init(KEY, query, key_value)


def placed(**positions):
    """Attention with one of its positions given as a single one, which would broadcast to all of a row."""
    context = Context(encoding=ALiBi(), **positions)
    return MultiHeadAttention(2).init(KEY, X, X, context, method="with_context")


def with_inputs(**inputs):
    transformer, variables = built()
    return jax.eval_shape(lambda: transformer.apply(variables, SOURCE, TARGET, AttentionInputs(**inputs)))


def without_memory_mask(method):
    transformer, variables = built()
    second = X if method == "decode" else jax.eval_shape(lambda: transformer.apply(variables, X, 4, method="new_cache"))
    return jax.eval_shape(lambda second: transformer.apply(variables, TARGET, second, None, method=method), second)


def decoded(cached_rows, rows):
    cache = MultiHeadAttention(2).apply({}, cached_rows, 3, 8, method="new_cache")
    x = jnp.ones((rows, 1, 8))
    return MultiHeadAttention(2).init(KEY, x, x, Context(cache=cache), method="with_context")


def remembered(key_value, **fields):
    attention = MultiHeadAttention(2)
    variables = attention.init(KEY, X, X)
    cache = attention.apply(variables, X, method="project_memory")
    return attention.apply(variables, X, key_value, Context(cache=cache, **fields), method="with_context")


def on_cudnn():
    variables = MultiHeadAttention(2).init(KEY, X, X)
    return MultiHeadAttention(2, implementation="cudnn").apply(variables, X, X)


def crossed(**fields):
    return MultiHeadAttention(2).init(KEY, X, X[:, :3], Context(**fields), method="with_context")


def cached(length, of_heads=2, **fields):
    context = Context(cache=MultiHeadAttention(of_heads).new_cache(2, length, 8), **fields)
    return MultiHeadAttention(2).init(KEY, X, X, context, method="with_context")


LAYER = {
    "attention_cls": functools.partial(MultiHeadAttention, 2),
    "feed_forward_cls": functools.partial(FeedForward, 4),
}


def layer(layer_cls, *inputs):
    return layer_cls(**LAYER).init(KEY, *inputs)


def encoder(mask=None, encoding=None, **fields):
    context = Context(encoding=encoding) if mask is None else mask
    return Encoder(functools.partial(EncoderLayer, **LAYER), 1, **fields).init(KEY, X, context)


OWN_CACHE = MultiHeadAttention(2).new_cache(2, 4, 8)


def attended(mask, **fields):
    return MultiHeadAttention(2).init(KEY, X, X, Context(mask, **fields), method="with_context")


def decoder(context):
    return Decoder(functools.partial(DecoderLayer, **LAYER), 1).init(KEY, X, X, context, Context())


def encoded(encoding):
    return MultiHeadAttention(2).init(KEY, X, X, Context(encoding=encoding), method="with_context")


class Inert(Positions):
    pass


def encoding_with(**attributes):
    return type("Mine", (Rotary,), attributes)


class OfTwoAxes(Positions):
    def bias(self, q_BTHK, queries_BT, keys_BS):
        return jnp.zeros((queries_BT.shape[1], keys_BS.shape[1]))


class OfThreeAxes(Positions):
    def bias(self, q_BTHK, queries_BT, keys_BS):
        return jnp.zeros((2, queries_BT.shape[1], keys_BS.shape[1]))


def biased(bias):
    return scaled_dot_product_attention(HEADS, HEADS, HEADS, bias=bias)


def model(*inputs, head_masks=None, **changes):
    transformer, variables = built(**changes)
    return jax.eval_shape(lambda: transformer.apply(variables, *inputs, head_masks=head_masks))


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: attention(X[0], X[0]), r"query has the shape .* must be \[batch, queries, width\]; query\[None\]"),
        (lambda: attention(X, jnp.ones((3, 4, 8))), r"key_value .* with batch = 2, as query has"),
        (lambda: attention(X, jnp.ones((2, 4, 6))), r"k has .* with d_k = 4, as q has"),
        (lambda: scaled_dot_product_attention(HEADS, HEADS, HEADS[:, :1]), r"v has .* with keys = 4, as k has"),
        (lambda: scaled_dot_product_attention(HEADS, *[jnp.ones((2, 4, 5, 6))] * 2), "heads = 2: .* multiple of 5"),
        (lambda: scaled_dot_product_attention(HEADS, HEADS, HEADS.astype(int)), "v is int32: must be floating-point"),
        (lambda: FeedForward(4).init(KEY, SOURCE), "x is int32: must be floating-point"),
        (lambda: scaled_dot_product_attention(*[HEADS] * 3, softcap=0.0), "softcap = 0.0: must be above 0"),
        (lambda: placed(window=0), "window = 0: must be above 0"),
        (lambda: MultiHeadAttention(0).init(KEY, X, X), "num_heads = 0: must be above 0"),
        (lambda: MultiHeadAttention(2, implementation="flash").init(KEY, X, X), "implementation = 'flash': must be"),
        (lambda: attention(X[..., :7], X[..., :7]), "width = 7: must be a multiple of 2, num_heads"),
        (lambda: MultiHeadAttention(2).init(KEY, X, X, SCORES[0, 0] > 0), r"mask .* \(2, 2, 4, 4\), .*None, None, :\]"),
        (lambda: biased(SCORES[:, 0]), r"bias has the shape \(2, 4, 4\): must be \[batch, heads, queries, keys\]"),
        (lambda: scaled_dot_product_attention(*[HEADS] * 3, ADDED), "mask is int32: must be bool"),
        (lambda: apply_rotary(HEADS[..., :3], jnp.arange(4)), "width = 3: must be a multiple of 2"),
        (lambda: relative_buckets(jnp.arange(4), 32, furthest=8), "furthest = 8: .* above 8"),
        (lambda: model(SOURCE, TARGET * 1.0), "target is float.*: must be an array of token ids, int32"),
        (lambda: model(SOURCE + 15, TARGET), r"source has the id 25: must be between 0 and 19 \(vocab_size - 1\)"),
        (lambda: model(SOURCE.astype(np.int64) + 2**32, TARGET), "source has the id 42949673"),
        (lambda: model([[5, 6]], TARGET), r"source is a list: must be an array, as jnp.asarray\(source\) makes it"),
        (lambda: padding_mask([[5, 6]]), "tokens is a list: must be an array"),
        (lambda: model(SOURCE, TARGET[:1]), "key_value .* with batch = 1, as query has"),
        (lambda: attention(X, None), r"key_value is None: must be \[batch, keys, width\]"),
        (lambda: padding_mask(None), "tokens is None"),
        (lambda: decoded(3, 2), "key_value .* with batch = 3, as cache has"),
        (lambda: decoded(1, 2), "key_value .* with batch = 1, as cache has"),
        (lambda: placed(head_mask=jnp.ones(3)), "head_mask .* with heads = 2, as query has"),
        (lambda: placed(positions_BT=ONE), "positions has .* with queries = 4"),
        (lambda: placed(key_positions_BS=ONE), "key_positions has .* with keys = 4"),
        (lambda: with_inputs(source_positions=ONE), "positions has .* with queries = 5"),
        (lambda: with_inputs(source_segments=np.ones_like(SOURCE)), "for one side only"),
        (lambda: without_memory_mask("decode"), "cross_mask"),
        (lambda: without_memory_mask("step"), "cross_mask"),
        (lambda: model(SOURCE, TARGET, head_masks={"encoder": X[0]}), "head_mask has .* with layers = 1"),
        (lambda: model(SOURCE, TARGET, head_masks={"cross": np.ones(2)}), "head_mask has .* with layers = 1"),
        (lambda: model(SOURCE, TARGET, head_masks={"encode": X[0]}), "head_masks = 'encode': must be one of encoder, "),
        (lambda: combine_masks(causal_mask(4), X[..., 0] > 0), r"mask has the shape \(2, 4\): .*None, None, :\]"),
        (lambda: placed(lengths_B=[4, 4], window=1), "mask is None, but lengths_B describes one"),
        (lambda: attention(X, X[:1]), "key_value .* with batch = 2, as query has"),
        (lambda: scaled_dot_product_attention(HEADS, HEADS[:1], HEADS[:1]), "k has .* with batch = 2, as q has"),
        (lambda: placed(window=1.5), "window = 1.5: must be a whole number"),
        (lambda: FeedForward(4.0).init(KEY, X), "d_ff = 4.0: must be a whole number"),
        (lambda: Embedding(0, 8).init(KEY, SOURCE), "vocab_size = 0: must be above 0"),
        (lambda: attended(MASK, lengths_B=[4]), "lengths has .* with batch = 2, as query has"),
        (lambda: encoder(Context(cache=OWN_CACHE)), "context has a cache, which an encoder layer cannot return"),
        (lambda: MultiHeadAttention(2).init(KEY, X, X, Context(cache=OWN_CACHE)), "a cache, which a call does not"),
        (lambda: decoder(Context(cache=OWN_CACHE)), "a Decoder is given the caches of all layers as `cache`"),
        (lambda: crossed(window=2), "window and segments_BT are for self-attention: here are 4 queries and 3 keys"),
        (lambda: crossed(is_causal=True), "for self-attention: here are 4 queries and 3 keys"),
        (lambda: crossed(segments_BT=np.ones((2, 4))), "for self-attention: here are 4 queries and 3 keys"),
        (lambda: layer(DecoderLayer, X, X, Context(), Context(window=2)), "cross_context: window, is_causal and"),
        (lambda: remembered(None, window=2), "cache is of a memory"),
        (lambda: cached(4, segments_BT=np.ones((2, 4))), "segments_BT: must not be given with a cache"),
        (lambda: cached(3), "cache has 3 slots, for 4 new tokens"),
        (lambda: cached(4, of_heads=4), "keys has .* with heads of keys and values = 4, as cache has"),
        (lambda: placed(head_mask=jnp.ones((2, 2))), r"head_mask has .*must be \[heads\]; here are other axes"),
        (lambda: combine_masks(causal_mask(3), causal_mask(4)), "masks have the shapes .*must be of one size, or 1"),
        (lambda: combine_masks(*(jnp.ones((rows, 1, 1, 1), bool) for rows in (1, 2, 3))), r"\(3, 1, 1, 1\): an axis"),
        (lambda: MultiHeadAttention(2).init(KEY, X, X, Context(), SCORES), "bias and deterministic: with a Context"),
        (
            lambda: MultiHeadAttention(2).init(KEY, X, X, Context(), deterministic=False),
            "bias and deterministic: with a Context",
        ),
        (lambda: padding_mask(X[..., 0]), "tokens is float32: must be an array of token ids"),
        (lambda: scaled_dot_product_attention(*[HEADS] * 3, scale=0), "scale = 0: must be above 0"),
        (lambda: attention(X, X, scale=0.0), "scale = 0.0: must be above 0"),
        (lambda: MultiHeadAttention(2.0).init(KEY, X, X), "num_heads = 2.0: must be a whole number"),
        (lambda: encoder(encoding=ALiBi()), r"encoding is ALiBi: .*Encoder\(..., positions_cls=ALiBi\)"),
        (lambda: encoded(Sinusoidal()), "Sinusoidal has none of the methods rotate, .*no effect in attention"),
        (lambda: encoded(Inert()), "Inert has none of the methods rotate, bias"),
        (lambda: encoder(positions_cls=Inert), "Inert has none of the methods embed, rotate"),
        (lambda: encoded(OfTwoAxes()), r"OfTwoAxes.bias has the shape \(4, 4\): must be \[batch, heads, queries, keys"),
        (lambda: encoded(OfThreeAxes()), r"OfThreeAxes.bias has the shape \(2, 4, 4\): must be \[batch, heads"),
        (lambda: on_cudnn(), "needs an NVIDIA GPU with cuDNN; 'plain' runs anywhere"),
        (lambda: remembered(None, encoding=ALiBi()), "cache is of a memory"),
        (lambda: remembered(X), "cache is of a memory"),
        (lambda: attention(X, X, softcap=0.0), "softcap = 0.0: must be above 0"),
        (lambda: attention(X, X, num_key_value_heads=0), "num_key_value_heads = 0: must be above 0"),
        (lambda: attention(X, X, dropout=-0.1), "dropout = -0.1: must be a number, at least 0"),
        (lambda: attention(X, X, dropout="0.1"), "dropout = '0.1': must be a number, at least 0"),
        (lambda: Residual("post", alpha=2.0).init(KEY, X, method="pre"), "only placement='deepnorm' has this factor"),
        (lambda: LayerNorm(epsilon=-1.0).init(KEY, X), "epsilon = -1.0: must be above 0"),
        (lambda: RMSNorm().init(KEY, SOURCE), "x is int32: must be floating-point"),
        (lambda: jax.jit(lambda is_causal: placed(is_causal=is_causal))(True), "is_causal is an array: must be True"),
        (lambda: apply_rotary(HEADS, jnp.arange(4), order="half"), "order = 'half': must be one of interleaved"),
        (lambda: FeedForward(4, "tanh").init(KEY, X), "activation = 'tanh': must be one of relu, .*swiglu"),
        (lambda: Residual("pre-norm").init(KEY, X, method="pre"), "placement = 'pre-norm': must be one of post, pre,"),
        (lambda: Embedding(9, 8, initial="unitary").init(KEY, SOURCE), "initial = 'unitary': must be one of normal,"),
        (lambda: sinusoid(jnp.arange(4), 8, "half"), "order = 'half': must be one of interleaved, halves"),
        (lambda: Embedding(9, 8).init(KEY, SOURCE * 1.0), "tokens is float.*: must be an array of token ids, int32"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_refused_with_what_would_be_right(call, problem):
    with pytest.raises(ValueError, match=problem):
        call()


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: encoder(MASK), "context is of the type .*Array.*: must be a Context; a mask is given as Context"),
        (lambda: MultiHeadAttention(2).init(KEY, X, X, MASK, method="with_context"), "context is of the type .*Array"),
        (lambda: layer(EncoderLayer, X, MASK), "context is of the type .*Array"),
        (lambda: layer(DecoderLayer, X, X, Context(), MASK), "cross_context is of the type .*Array"),
        (lambda: encoded("rotary"), r"encoding is 'rotary': .*Context\(encoding=Rotary\(\)\)"),
        (lambda: attention(X, X, qk_norm=True), "qk_norm is True: must be a class or a functools.partial"),
        (lambda: encoder(positions_cls=Rotary()), r"is a module, Rotary\(.*class .*, as positions_cls=Rotary"),
        (lambda: encoder(final_norm_cls=LayerNorm()), "final_norm_cls is a module, LayerNorm.*must be"),
        (lambda: encoding_with(biass=Rotary.bias), "Mine.biass: Positions has no such attribute; did you mean bias?"),
        (lambda: encoding_with(moves_value=True), "Mine.moves_value: .*did you mean moves_values?"),
        (lambda: encoding_with(moved_values=print), "Mine.moved_values: needs `moves_values = True`"),
        (lambda: EncoderLayer(MultiHeadAttention(2), FeedForward).init(KEY, X, Context()), "attention_cls is a module"),
    ],
)  # fmt: skip
def test_a_wrong_type_is_told_with_the_right_one(call, problem):
    with pytest.raises(TypeError, match=problem):
        call()


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 1}, {"window": 1}], ids=str)
def test_a_batch_may_be_empty(changes):
    assert model(SOURCE[:0], TARGET[:0], **changes).shape[0] == 0 == model(SOURCE, TARGET[:, :0], **changes).shape[1]
