"""The largest entries of a wide row."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.search.vocabulary import largest_entries


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([1, 5, 256, 257, 1000]), st.sampled_from([1, 4]), st.integers(0, 2**32 - 1))
def test_largest_entries_are_those_of_a_stable_sort(width, count, seed):
    # Rounded, so that there are ties among the largest, also between a block whose maximum is larger and one before it.
    values = np.round(np.random.default_rng(seed).normal(0, 2, (8, width))).astype(np.float32) + 0  # no -0.0
    values[values < -3] = -np.inf
    expected = np.argsort(-values, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(largest_entries(jnp.asarray(values), count), expected)
