"""Attention: its masks, equation 1 against a loop, the module against a head-by-head computation, and its cache."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from tests.support.small_models import applied, variables_of
from transformer_jax import (
    ALiBi,
    Context,
    LayerNorm,
    MultiHeadAttention,
    Rotary,
    alibi_bias,
    causal_mask,
    combine_masks,
    padding_mask,
    scaled_dot_product_attention,
)
from transformer_jax.model.masks import segment_mask
from transformer_jax.model.products import masked_softmax
from transformer_jax.model.tpu import products_for_tpus

B, T, S, H, K, V = 2, 3, 4, 4, 6, 5


def test_segments_see_themselves_and_nobody_sees_segment_0():
    mask = segment_mask(jnp.array([[1, 2, 0]]), jnp.array([[1, 1, 2, 0]]))
    assert mask.shape == (1, 1, 3, 4)
    np.testing.assert_array_equal(
        mask[0, 0], [[True, True, False, False], [False, False, True, False], [False, False, False, False]]
    )


def test_combined_masks_allow_what_all_allow():
    tokens = jnp.array([[5, 0, 6]])
    combined = combine_masks(causal_mask(3), None, padding_mask(tokens))
    np.testing.assert_array_equal(combined[0, 0], [[True, False, False], [True, False, False], [True, False, True]])
    assert combine_masks(None, None) is None
    assert combine_masks(causal_mask(2)).shape == (1, 1, 2, 2)


# Equation 1.


def drawn(*shape, seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape), jnp.float32)


Q_BTHK, K_BSHK, V_BSHV = drawn(B, T, H, K), drawn(B, S, H, K), drawn(B, S, H, V)
MASK = jnp.asarray(np.random.default_rng(1).random((B, H, T, S)) < 0.6).at[..., 0].set(True)


def by_loop(mask=None, bias=None, scale=K**-0.5, softcap=None, groups=H):
    """Equation 1, one query of one head of one sentence at a time, in float64. `groups`: heads of keys."""
    q, k, v = (np.asarray(array, np.float64) for array in (Q_BTHK, K_BSHK, V_BSHV))
    output, weights = np.zeros((B, T, H, V)), np.zeros((B, H, T, S))
    for b, h, t in np.ndindex(B, H, T):
        g = h // (H // groups)
        scores = np.array([q[b, t, h] @ k[b, s, g] * scale for s in range(S)])
        scores = scores if softcap is None else softcap * np.tanh(scores / softcap)
        scores = scores if bias is None else scores + np.asarray(bias)[b, h, t]
        powers = np.exp(scores) * (1 if mask is None else np.asarray(mask)[b, h, t])
        weights[b, h, t] = powers / powers.sum()
        output[b, t, h] = sum(weights[b, h, t, s] * v[b, s, g] for s in range(S))
    return output, weights


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": MASK},
        {"bias": drawn(B, H, T, S, seed=2)},
        {"scale": 1.0},
        {"mask": MASK, "scale": 0.2},
        {"mask": MASK, "bias": drawn(B, H, T, S, seed=2), "softcap": 0.5},
        {"mask": MASK, "groups": 2},
        {"groups": 1},
    ],
    ids=lambda options: " ".join(options) or "plain",
)
def test_the_formula_equals_a_loop(options):
    given = dict(options)
    shared = slice(given.pop("groups", H))
    ours = scaled_dot_product_attention(Q_BTHK, K_BSHK[:, :, shared], V_BSHV[:, :, shared], **given)
    expected = by_loop(**options)
    for array, wanted in zip(ours, expected, strict=True):
        np.testing.assert_allclose(array, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_that_may_attend_to_nothing_gives_zeros_and_finite_gradients(dtype):
    mask = MASK.at[0, :, 1].set(False)
    inputs = tuple(array.astype(dtype) for array in (Q_BTHK, K_BSHK, V_BSHV))
    output, weights = scaled_dot_product_attention(*inputs, mask)
    assert (output[0, 1] == 0).all() and (weights[0, :, 1] == 0).all()
    gradients = jax.jit(jax.grad(lambda inputs: scaled_dot_product_attention(*inputs, mask)[0].sum()))(inputs)
    assert all(np.isfinite(gradient.astype("float32")).all() for gradient in gradients)
    assert (gradients[0][0, 1] == 0).all(), "what gives nothing has no gradient"


def test_the_softmax_is_in_float32():
    """In bfloat16 a score of 200 and one of 200.4 would be the same."""
    q, k = jnp.full((1, 1, 1, 1), 1.0, jnp.bfloat16), jnp.array([200.0, 201.0], jnp.bfloat16)[None, :, None, None]
    _, weights = scaled_dot_product_attention(q, k, k, scale=0.4)
    assert weights.dtype == jnp.float32
    np.testing.assert_allclose(weights.ravel(), jax.nn.softmax(jnp.array([80.0, 80.4])), rtol=1e-5)


def test_the_softmax_has_the_gradient_of_its_formula_in_either_mode():
    """A row that is masked whole included: as the formula is written, with no rule for its derivative."""
    mask = MASK.at[0, 0, 1].set(False)

    def formula(scores):
        powers = jnp.where(mask, jnp.exp(scores), 0.0)
        total = powers.sum(-1, keepdims=True)
        return powers / jnp.where(total > 0, total, 1.0)

    scores, change = (jax.random.normal(jax.random.key(seed), mask.shape) for seed in range(2))
    value, tangent = jax.jvp(lambda scores: masked_softmax(scores, mask), (scores,), (change,))
    expected_value, expected_tangent = jax.jvp(formula, (scores,), (change,))
    np.testing.assert_allclose(value, expected_value, atol=1e-6)
    np.testing.assert_allclose(tangent, expected_tangent, atol=1e-6)
    gradient, expected = (
        jax.grad(lambda scores, softmax=softmax: jnp.sum(softmax(scores) * change))(scores)
        for softmax in (lambda scores: masked_softmax(scores, mask), formula)
    )
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


# Heads.


X_BTD, MEMORY_BSD = drawn(B, T, 8), drawn(B, S, 8)


def standardised(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


@pytest.mark.parametrize(
    ("fields", "use_bias"),
    [
        ({}, False),
        ({"d_k": 3, "d_v": 5}, True),
        ({"num_heads": 4, "num_key_value_heads": 2}, True),
        ({"num_key_value_heads": 1, "d_k": 3, "softcap": 0.5, "qk_norm": lambda: LayerNorm(1e-6)}, False),
    ],
    ids=["d_model / h", "d_k and d_v", "grouped", "multi-query, capped and normalized"],
)
def test_multi_head_attention_equals_head_by_head(fields, use_bias):
    attention = MultiHeadAttention(**{"num_heads": 2, "use_bias": use_bias, **fields})
    heads, groups, cap = attention.num_heads, fields.get("num_key_value_heads"), fields.get("softcap")
    variables = variables_of(attention, X_BTD, MEMORY_BSD)
    params, x_BTD, memory_BSD = jax.device_get((variables["params"], X_BTD, MEMORY_BSD))
    assert all(("bias" in params[name]) is use_bias for name in ("query", "key", "value", "output"))

    def project(name, x, head):
        # Of four heads of queries two share a head of keys and values: the first two the first, the others the second.
        count = heads if name == "query" or not groups else groups
        head, width = head * count // heads, params[name]["kernel"].shape[1] // count
        columns = slice(head * width, (head + 1) * width)
        bias = params[name]["bias"][None, None, columns] if use_bias else 0.0
        projected = x @ params[name]["kernel"][:, columns] + bias
        if "qk_norm" not in fields or name == "value":
            return projected
        norm = {part: array[None, None] for part, array in params[f"{name}_norm"].items()}
        return standardised(projected) * norm["scale"] + norm["bias"]

    outputs = []
    for head in range(heads):
        q, k, v = project("query", x_BTD, head), project("key", memory_BSD, head), project("value", memory_BSD, head)
        assert q.shape[-1] == fields.get("d_k", 8 // heads) and v.shape[-1] == fields.get("d_v", 8 // heads)
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        outputs.append(scipy.special.softmax(cap * np.tanh(scores / cap) if cap else scores, axis=-1) @ v)
    expected = np.concatenate(outputs, -1) @ params["output"]["kernel"]
    expected = expected + params["output"]["bias"][None, None] if use_bias else expected
    np.testing.assert_allclose(applied(attention, variables, X_BTD, MEMORY_BSD), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("groups", "encoding"), [(None, None), (1, ALiBi())])
def test_decoding_token_by_token_needs_neither_mask_nor_positions_and_ends_with_the_cache(groups, encoding):
    """A token attends to the filled slots up to its own; one for which there is no slot gets NaN."""
    attention = MultiHeadAttention(num_heads=2, num_key_value_heads=groups)
    variables, counted = variables_of(attention, X_BTD, X_BTD), np.arange(T)[None]
    context = Context(causal_mask(T), encoding)
    full, _ = applied(attention, variables, X_BTD, X_BTD, context, method="with_context")
    explicit = context.replace(positions_BT=counted, key_positions_BS=counted)
    same, _ = applied(attention, variables, X_BTD, X_BTD, explicit, method="with_context")
    np.testing.assert_allclose(full, same, atol=1e-6)

    def step(cache, x_BD):
        x_B1D = x_BD[:, None]
        context = Context(encoding=encoding, cache=cache)
        output, cache = attention.apply(variables, x_B1D, x_B1D, context, method="with_context")
        return cache, output[:, 0]

    cache = attention.new_cache(B, T - 1, 8)
    assert cache["keys"].shape == cache["values"].shape == (B, groups or 2, 4, T - 1)
    cache, outputs_TBD = jax.jit(lambda x_TBD: jax.lax.scan(step, cache, x_TBD))(jnp.moveaxis(X_BTD, 1, 0))
    assert cache["filled"] == T
    np.testing.assert_allclose(outputs_TBD[:-1], jnp.moveaxis(full, 1, 0)[:-1], rtol=1e-4, atol=1e-5)
    assert np.isnan(outputs_TBD[-1]).all()


def test_causality_segments_a_window_and_a_bias_add_to_the_mask():
    """Each field of a context does what it says, with any of the others."""
    attention, segments = MultiHeadAttention(num_heads=2), jnp.array([[1, 1, 2], [1, 2, 2]])
    variables, places = variables_of(attention, X_BTD, X_BTD), jnp.arange(T)
    padding, bias = padding_mask(jnp.array([[5, 6, 7], [5, 6, 0]])), drawn(B, 2, T, T, seed=4)
    near = jnp.abs(places[:, None] - places[None])[None, None] <= 1
    described = {"is_causal": True, "segments_BT": segments}
    full = combine_masks(padding, causal_mask(T), segment_mask(segments, segments))

    def output(mask, **fields):
        context = Context(mask, ALiBi(), bias=bias, **fields)
        return applied(attention, variables, X_BTD, X_BTD, context, method="with_context")[0]

    np.testing.assert_array_equal(output(padding, **described), output(full))
    np.testing.assert_array_equal(output(None, is_causal=True), output(causal_mask(T)))
    np.testing.assert_allclose(output(padding, window=1, **described), output(full & near), atol=1e-6)
    both = bias + alibi_bias(2, places[None], places[None])
    np.testing.assert_allclose(applied(attention, variables, X_BTD, X_BTD, padding, both), output(padding), atol=1e-6)


def test_keys_are_rotated_by_their_own_positions():
    """A rotation of queries and keys by the same distance changes nothing; of either one alone it does."""
    attention = MultiHeadAttention(num_heads=2)
    variables = variables_of(attention, X_BTD, MEMORY_BSD)

    def with_positions(of_queries, of_keys):
        places = {"positions_BT": of_queries + np.arange(T)[None], "key_positions_BS": of_keys + np.arange(S)[None]}
        context = Context(encoding=Rotary(), **places)
        return applied(attention, variables, X_BTD, MEMORY_BSD, context, method="with_context")[0]

    np.testing.assert_allclose(with_positions(3, 3), with_positions(0, 0), rtol=1e-4, atol=1e-5)
    assert np.max(np.abs(with_positions(3, 0) - with_positions(0, 0))) > 1e-3


def test_a_memory_is_projected_once():
    attention = MultiHeadAttention(num_heads=2)
    variables = variables_of(attention, X_BTD, MEMORY_BSD)
    full = applied(attention, variables, X_BTD, MEMORY_BSD)
    remembered = applied(attention, variables, MEMORY_BSD, method="project_memory")
    output, kept = applied(attention, variables, X_BTD, None, Context(cache=remembered), method="with_context")
    np.testing.assert_allclose(output, full, atol=1e-6)
    np.testing.assert_array_equal(kept["keys"], remembered["keys"])  # only read


@pytest.mark.parametrize(("dtype", "softcap"), [("bfloat16", None), ("float32", 0.5)])
def test_the_backward_pass_keeps_the_weights_once_in_the_type_of_the_model(dtype, softcap):
    """Neither scores nor weights in float32 as well."""
    rng = np.random.default_rng(0)
    batch, length, heads, d_model = 2, 6, 3, 12
    x = jnp.asarray(rng.normal(size=(batch, length, d_model)), dtype)
    mask = causal_mask(length) & padding_mask(np.array([[1] * 6, [1] * 4 + [0] * 2]))
    attention = MultiHeadAttention(num_heads=heads, dtype=jnp.dtype(dtype), softcap=softcap)
    variables = jax.jit(attention.init)(jax.random.key(0), x, x)

    def plainly(variables):
        q, k, v, w = (variables["params"][name]["kernel"] for name in ("query", "key", "value", "output"))
        q, k, v = ((x @ m.astype(x.dtype)).reshape(batch, length, heads, -1) for m in (q, k, v))
        return scaled_dot_product_attention(q, k, v, mask, softcap=softcap)[0].reshape(x.shape) @ w.astype(x.dtype)

    (ours, backward), (theirs, plain_backward) = (
        jax.vjp(function, variables) for function in (lambda variables: attention.apply(variables, x, x, mask), plainly)
    )
    np.testing.assert_allclose(*(np.asarray(each, np.float32) for each in (ours, theirs)), atol=2e-2)
    within = 1e-5 if dtype == "float32" else 3e-2
    for a, b in zip(*(jax.tree.leaves(each(ours)) for each in (backward, plain_backward)), strict=True):
        np.testing.assert_allclose(a, b, atol=within * np.abs(b).max())
    kept = [
        (leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(backward) if leaf.size == batch * heads * length**2
    ]
    assert kept == [((batch, heads, length, length), dtype)]


@pytest.mark.parametrize("groups", [None, 2])
def test_keys_and_values_begin_with_the_variance_that_they_have_with_all_heads(groups):
    attention = MultiHeadAttention(num_heads=8, d_v=24, num_key_value_heads=groups, gain=0.5)
    x_BTD = jnp.ones((1, 1, 128))
    params = jax.jit(attention.init)(jax.random.key(0), x_BTD, x_BTD)["params"]
    for name, width, gain in (("key", 16, 1.0), ("value", 24, 0.5)):
        kernel = params[name]["kernel"]
        assert kernel.shape == (128, (groups or 8) * width)
        assert float(jnp.std(kernel)) == pytest.approx(gain * np.sqrt(2 / (128 + 8 * width)), rel=0.05)


def test_queries_and_keys_keep_the_modules_type_whatever_their_norm_returns():
    """Else scores are computed in float32, and not as with a cache, whose keys are bfloat16."""
    attention = MultiHeadAttention(num_heads=2, qk_norm=LayerNorm, dtype=jnp.bfloat16)
    variables = variables_of(attention, X_BTD, X_BTD)
    for method in ("queries", "keys"):
        found = jax.eval_shape(lambda method=method: attention.apply(variables, X_BTD, method=method))
        assert found.dtype == jnp.bfloat16


@pytest.mark.parametrize("wrap", [jax.jit, lambda apply: apply], ids=["jit", "eager"])
def test_a_context_is_an_argument_of_jitted_functions_with_dropout(wrap):
    attention = MultiHeadAttention(num_heads=2, dropout=0.5)
    variables = variables_of(attention, X_BTD, X_BTD)

    def output(x_BTD, context):
        rngs = {"dropout": jax.random.key(0)}
        return attention.apply(variables, x_BTD, x_BTD, context, rngs=rngs, method="with_context")[0]

    outputs = [wrap(output)(X_BTD, Context(deterministic=flag)) for flag in (True, False)]
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-3


def test_numpy_arrays_are_inputs():
    x_BTD, mask = np.asarray(X_BTD), np.ones((1, 1, 1, T), bool)
    attention = MultiHeadAttention(num_heads=2)
    context = Context(mask, ALiBi(), np.arange(T)[None], head_mask=np.ones(2))
    jax.eval_shape(lambda: attention.init(jax.random.key(0), x_BTD, x_BTD, context, method="with_context"))
    q_BTHK, bias = np.asarray(Q_BTHK), np.zeros((1, 1, T, T), np.float32)
    assert scaled_dot_product_attention(q_BTHK, q_BTHK, q_BTHK, mask, bias)[0].shape == q_BTHK.shape


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_memory_of_a_window_is_linear_in_the_length(is_causal):
    """Of value and gradient, compiled for lengths of 256 and 1,024; without a window it is 16 times as large."""
    attention = MultiHeadAttention(num_heads=2)

    def temporary(length, window):
        x, seen = jnp.ones((1, length, 8)), jnp.ones((1, 1, 1, length), bool)
        context = Context(seen, window=window, is_causal=is_causal)
        params = jax.eval_shape(attention.init, jax.random.key(0), x, x)

        def loss(params, x):
            return attention.apply(params, x, x, context, method="with_context")[0].sum()

        return jax.jit(jax.grad(loss, (0, 1))).lower(params, x).compile().memory_analysis().temp_size_in_bytes

    assert temporary(1024, window=8) < 4.5 * temporary(256, window=8)
    assert temporary(1024, window=None) > 10 * temporary(256, window=None)


def test_heads_are_the_same_by_products_for_tpus():
    """There the projections make an axis of heads, in gradients too."""
    x = jax.random.normal(jax.random.key(0), (2, 5, 12))
    attention = MultiHeadAttention(num_heads=3, use_bias=True)
    variables = attention.init(jax.random.key(1), x, x)

    def gradients(on_tpus):
        with products_for_tpus(on_tpus):
            return jax.grad(lambda variables: jnp.sum(jnp.sin(attention.apply(variables, x, x))))(variables)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), gradients(True), gradients(False))
