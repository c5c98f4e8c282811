"""The largest entries of wide rows, and log-probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.search.vocabulary import largest_entries, log_probabilities


def rounded(width):
    """Values with ties among the largest, also between a block whose maximum is larger and one before it."""
    values = np.round(np.random.default_rng(width).normal(0, 2, (64, width))).astype(np.float32) + 0  # no -0.0
    values[values < -3] = -np.inf
    return values


@pytest.mark.parametrize(("width", "count"), [(1, 1), (5, 4), (256, 4), (257, 4), (1000, 1), (1000, 4)])
def test_largest_entries_are_those_of_a_stable_sort(width, count):
    values = rounded(width)
    expected = np.argsort(-values, axis=1, kind="stable")[:, :count]
    found, indices = jax.jit(largest_entries, static_argnums=1)(jnp.asarray(values), count)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(found, np.take_along_axis(values, expected, axis=1))
    with jax.enable_x64(True):
        assert largest_entries(jnp.asarray(values), count)[1].dtype == jnp.int32


def test_log_probabilities_are_those_of_the_whole_row():
    values, tokens = rounded(1000), np.random.default_rng(0).integers(0, 1000, (64, 3))
    expected = values - np.log(np.exp(values.astype(np.float64)).sum(axis=1, keepdims=True))
    expected = np.clip(np.take_along_axis(expected, tokens, axis=1), -1e9, 0)
    np.testing.assert_allclose(log_probabilities(values, tokens), expected, rtol=1e-5, atol=1e-5)
    nothing = log_probabilities(np.full((1, 4), -np.inf, np.float32), np.array([[0, 4, -1]]))
    np.testing.assert_array_equal(nothing, [[-1e9, np.nan, np.nan]])
