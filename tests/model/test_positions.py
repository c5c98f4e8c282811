"""The functions of position encodings number by number, and every encoding against its paper, written again naively."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.small_models import applied, small
from transformer_jax import Rotary, alibi_bias, alibi_slopes, apply_rotary, relative_buckets, sinusoidal_positions
from transformer_jax.model.positions import ENCODINGS


def test_the_papers_table_number_by_number():
    table = sinusoidal_positions(7, 10)
    for position in range(7):
        for i in range(5):
            angle = position / 10000 ** (2 * i / 10)
            assert table[position, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
def test_rotary_multiplies_pairs_as_complex_numbers(theta):
    x_BTHK = np.random.default_rng(0).normal(size=(2, 3, 2, 6)).astype(np.float32)
    positions_BT = np.array([[0, 1, 2], [7, 0, 30]])
    turns = np.exp(1j * positions_BT[:, :, None, None] * theta ** (-np.arange(0, 6, 2) / 6))
    expected = (x_BTHK[..., 0::2] + 1j * x_BTHK[..., 1::2]) * turns
    ours = jax.jit(lambda: apply_rotary(x_BTHK, positions_BT, theta))()
    np.testing.assert_allclose(ours[..., 0::2], expected.real, atol=1e-5)
    np.testing.assert_allclose(ours[..., 1::2], expected.imag, atol=1e-5)
    for_all = jax.jit(lambda: apply_rotary(x_BTHK, positions_BT[0], theta))()
    np.testing.assert_allclose(for_all[0], ours[0], atol=1e-6)


def test_rotary_in_halves_is_rotary_of_reordered_pairs():
    """As in Hugging Face's Llama: x cos + rotate_half(x) sin, with the angles repeated."""
    x_BTHK, positions_BT = np.random.default_rng(0).normal(size=(2, 3, 2, 6)).astype(np.float32), np.arange(3)[None]
    turns = np.tile(positions_BT[:, :, None, None] * 100.0 ** (-np.arange(0, 6, 2) / 6), 2)
    rotated = np.concatenate([-x_BTHK[..., 3:], x_BTHK[..., :3]], axis=-1)
    ours = Rotary(100.0, order="halves").rotate(jnp.asarray(x_BTHK), positions_BT)
    np.testing.assert_allclose(ours, x_BTHK * np.cos(turns) + rotated * np.sin(turns), atol=1e-5)
    pairs = np.arange(6).reshape(2, 3).T.ravel()  # 0 3 1 4 2 5: pair i is side by side
    apart = apply_rotary(x_BTHK[..., pairs], positions_BT, 100.0)
    np.testing.assert_allclose(ours[..., pairs], apart, atol=1e-6)


def t5_bucket(distance, causal, buckets=32, furthest=128):
    """The rule in whole numbers: the far bucket k begins where steps^n reaches exact^n (furthest / exact)^k."""
    count, offset = buckets, 0
    if not causal:
        count, offset = buckets // 2, buckets // 2 if distance > 0 else 0
    steps = max(-distance, 0) if causal else abs(distance)
    exact = count // 2
    if steps < exact:
        return offset + steps
    n = count - exact
    begun = sum(steps**n * exact**k >= exact**n * furthest**k for k in range(1, n))
    return offset + exact + begun


@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("in_64_bits", [False, True])
def test_t5_buckets_equal_the_rule_in_whole_numbers(causal, in_64_bits):
    distances = np.arange(-300, 301)
    with jax.enable_x64(in_64_bits):
        ours = jax.jit(lambda: relative_buckets(distances, causal=causal))()
    assert ours.tolist() == [t5_bucket(int(distance), causal) for distance in distances]
    of_numpy = relative_buckets(distances, np.int64(32), np.int64(128), causal)
    assert of_numpy.tolist() == ours.tolist()


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),  # printed in their section 3
        (16, [2 ** (-0.5 * i) for i in range(1, 17)]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),  # 4 of four heads, then every second of eight
    ],
)
def test_alibi_slopes_are_the_papers(heads, slopes):
    np.testing.assert_allclose(alibi_slopes(heads), slopes)
    for dtype in (jnp.int32, jnp.uint32):
        bias = alibi_bias(heads, jnp.array([[2]], dtype), jnp.array([[0, 1, 2]], dtype))
        np.testing.assert_allclose(bias[0, :, 0], -np.outer(slopes, [2, 1, 0]), rtol=1e-6)


LENGTH, HEADS, D_K, D_V = 20, 2, 6, 4
COUNTED = jnp.arange(LENGTH)[None]


def drawn(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def encoding_of(name, causal=False, **changes):
    return ENCODINGS[name].from_config(small(positions=name, d_k=D_K, d_v=D_V, **changes), causal)


def test_relative_equals_shaws_sums_pair_by_pair():
    """Equations 3 and 4 of Shaw et al. 2018, in a loop; the sentence is longer than the reach of 16."""
    kind = encoding_of("relative")
    q, weights = drawn(1, LENGTH, HEADS, D_K), jax.nn.softmax(drawn(1, HEADS, LENGTH, LENGTH))
    keys, values = drawn(33, D_K, seed=1), drawn(33, D_V, seed=2)
    variables = {"params": {"keys": keys, "values": values}}
    bias = np.asarray(applied(kind, variables, q, COUNTED, COUNTED, method="bias"))
    moved = np.asarray(applied(kind, variables, weights, COUNTED, COUNTED, method="moved_values"))
    q, weights, keys, values = (np.asarray(array) for array in (q, weights, keys, values))
    for h in range(HEADS):
        for i in range(LENGTH):
            rows = [max(-16, min(16, j - i)) + 16 for j in range(LENGTH)]
            scores = [q[0, i, h] @ keys[row] / math.sqrt(D_K) for row in rows]
            np.testing.assert_allclose(bias[0, h, i], scores, rtol=1e-4, atol=1e-5)
            total = sum(weights[0, h, i, j] * values[rows[j]] for j in range(LENGTH))
            np.testing.assert_allclose(moved[0, i, h], total, rtol=1e-4, atol=1e-5)


def test_transformer_xl_scores_are_the_papers_four_terms_pair_by_pair():
    """Terms (a) to (d) in section 3.3 of Dai et al. 2019, each with r(i - j) itself; positions as in packed rows."""
    kind, d_model = encoding_of("transformer_xl"), 8
    shapes = {"kernel": (d_model, HEADS * D_K), "content_bias": (HEADS * D_K,), "distance_bias": (HEADS * D_K,)}
    params = {name: drawn(*shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}
    q, k, positions = (
        drawn(2, 4, HEADS, D_K),
        drawn(2, 4, HEADS, D_K, seed=9),
        jnp.array([[0, 1, 2, 3], [90, 91, 0, 1]]),
    )
    bias = applied(kind, {"params": params}, q, positions, positions, method="bias")
    content = jnp.einsum("bthk,bshk->bhts", applied(kind, {"params": params}, q, method="content_queries"), k)
    q, k, w_r, u, v = (np.asarray(array, np.float64) for array in (q, k, *params.values()))
    u, v = u.reshape(HEADS, D_K), v.reshape(HEADS, D_K)
    for b, h, t, s in np.ndindex(2, HEADS, 4, 4):
        distance = int(positions[b, t] - positions[b, s])
        r = np.array(
            [[math.sin(distance / 10000 ** (i / 8)), math.cos(distance / 10000 ** (i / 8))] for i in (0, 2, 4, 6)]
        )
        w_r_of_r = r.ravel() @ w_r[:, h * D_K : (h + 1) * D_K]
        terms = q[b, t, h] @ k[b, s, h], q[b, t, h] @ w_r_of_r, u[h] @ k[b, s, h], v[h] @ w_r_of_r
        score = content[b, h, t, s] / math.sqrt(D_K) + bias[b, h, t, s]
        np.testing.assert_allclose(score, sum(terms) / math.sqrt(D_K), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
def test_t5_bias_is_the_table_at_the_bucket(causal):
    kind, table = encoding_of("t5", causal), drawn(32, HEADS)
    bias = applied(kind, {"params": {"table": table}}, drawn(1, LENGTH, HEADS, D_K), COUNTED, COUNTED, method="bias")
    for t, s, h in [(0, 0, 0), (3, 5, 1), (19, 0, 0), (0, 19, 1)]:
        assert bias[0, h, t, s] == table[relative_buckets(jnp.int32(s - t), causal=causal), h]


def test_sinusoids_may_be_scaled_down_and_in_another_order():
    x, halves = jnp.zeros((1, LENGTH, 8)), np.r_[0:8:2, 1:8:2]
    added, scaled, reordered = (
        applied(encoding_of("sinusoidal", **changes), {}, x, COUNTED, method="embed")
        for changes in ({}, {"scale_positions": True}, {"sinusoids": "halves"})
    )
    np.testing.assert_allclose(added[0], sinusoidal_positions(LENGTH, 8), atol=1e-6)
    np.testing.assert_allclose(scaled, added / np.sqrt(8), atol=1e-6)
    np.testing.assert_allclose(reordered, added[..., halves], atol=1e-6)


def test_learned_positions_are_rows_of_a_table_and_beyond_it_nan():
    kind, table, x = encoding_of("learned", max_length=30), drawn(30, 8), drawn(1, 5, 8)
    out = applied(kind, {"params": {"table": table}}, x, jnp.array([[3, 4, 29, 30, -1]]), method="embed")
    np.testing.assert_array_equal(out[0, :3], x[0, :3] + table[np.array([3, 4, 29])])
    assert np.isnan(out[0, 3:]).all(), "an explicit place beyond it cannot pass unseen"
