"""The largest entries of wide rows, and log-probabilities, on one device and divided among several."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

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


@pytest.mark.parametrize(("width", "count"), [(8, 3), (1000, 4), (2400, 4)])
def test_a_divided_vocabulary_changes_nothing(width, count):
    """Rows divided by hand and the vocabulary by the compiler, as in a search."""
    mesh = jax.make_mesh((2, 4), ("rows", "vocabulary"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    values, tokens = rounded(width), np.random.default_rng(0).integers(0, width, (64, 3))
    values[5] = -np.inf  # nothing is possible

    def both(axis, values_RV, tokens_RC):
        found, indices = largest_entries(values_RV, count, axis)
        return found, indices, log_probabilities(values_RV, tokens_RC, axis)

    rows = PartitionSpec("rows")
    specs = {"mesh": mesh, "in_specs": (rows, rows), "out_specs": rows, "axis_names": {"rows"}, "check_vma": False}
    divided = jax.jit(jax.shard_map(functools.partial(both, "vocabulary"), **specs))
    ours, whole = divided(values, tokens), jax.jit(functools.partial(both, None))(values, tokens)
    np.testing.assert_array_equal(ours[0], whole[0])
    np.testing.assert_array_equal(ours[1], whole[1])
    np.testing.assert_allclose(ours[2], whole[2], rtol=1e-5)
    possible = np.delete(values, 5, axis=0)  # elsewhere in float64
    expected = possible - np.log(np.exp(possible.astype(np.float64)).sum(axis=1, keepdims=True))
    expected = np.clip(np.take_along_axis(expected, np.delete(tokens, 5, axis=0), axis=1), -1e9, 0)
    np.testing.assert_allclose(np.delete(whole[2], 5, axis=0), expected, rtol=1e-5, atol=1e-5)
