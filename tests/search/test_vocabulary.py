"""The largest entries of a wide row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.search.vocabulary import largest_entries


@pytest.mark.parametrize(("width", "count"), [(1, 1), (5, 4), (256, 4), (257, 4), (1000, 1), (1000, 4)])
def test_largest_entries_are_those_of_a_stable_sort(width, count):
    # Rounded, so that there are ties among the largest, also between a block whose maximum is larger and one before it.
    values = np.round(np.random.default_rng(width).normal(0, 2, (64, width))).astype(np.float32) + 0  # no -0.0
    values[values < -3] = -np.inf
    expected = np.argsort(-values, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(jax.jit(largest_entries, static_argnums=1)(jnp.asarray(values), count), expected)
