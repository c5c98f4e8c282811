"""The functions of the position encodings, number by number."""

import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.model.position_functions import alibi_bias, alibi_slopes, apply_rotary, relative_buckets


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
def test_rotary_multiplies_pairs_as_complex_numbers(theta):
    x_BTHK = np.random.default_rng(0).normal(size=(2, 3, 2, 6)).astype(np.float32)
    positions_BT = np.array([[0, 1, 2], [7, 0, 30]])
    turns = np.exp(1j * positions_BT[:, :, None, None] * theta ** (-np.arange(0, 6, 2) / 6))
    expected = (x_BTHK[..., 0::2] + 1j * x_BTHK[..., 1::2]) * turns
    ours = apply_rotary(x_BTHK, positions_BT, theta)
    np.testing.assert_allclose(ours[..., 0::2], expected.real, atol=1e-5)
    np.testing.assert_allclose(ours[..., 1::2], expected.imag, atol=1e-5)
    np.testing.assert_array_equal(apply_rotary(x_BTHK, positions_BT[0], theta)[0], ours[0])  # one row for all


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
def test_t5_buckets_equal_the_rule_in_whole_numbers(causal):
    distances = np.arange(-300, 301)
    ours = relative_buckets(jnp.asarray(distances), causal=causal)
    assert ours.tolist() == [t5_bucket(int(distance), causal) for distance in distances]


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),  # printed in their section 3
        (16, [2 ** (-0.5 * i) for i in range(1, 17)]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),  # 4 of four heads, then every second of eight
    ],
)
def test_alibi_slopes_are_the_papers(heads, slopes):
    bias = alibi_bias(heads, jnp.array([[2]]), jnp.array([[0, 1, 2]]))
    np.testing.assert_allclose(alibi_slopes(heads), slopes)
    np.testing.assert_allclose(bias[0, :, 0], -np.outer(slopes, [2, 1, 0]), rtol=1e-6)
