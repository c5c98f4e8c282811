"""Buckets: the shapes with the fewest cells."""

import itertools

import numpy as np
import pytest

from transformer_jax.data.buckets import choose_buckets, even_rows, rows_within


def random_lengths(count: int, longest: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    source = random.integers(1, longest + 1, count)
    return source, np.clip(source + random.integers(-3, 4, count), 1, longest)


def cells(source: np.ndarray, target: np.ndarray, shapes: list[tuple[int, int]]) -> int:
    """What the pairs cost when each goes to the cheapest shape that holds it, pair by pair."""
    return sum(min(s + t for s, t in shapes if s >= a and t >= b) for a, b in zip(source, target, strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_two_shapes_are_the_best_two(seed):
    source, target = random_lengths(60, 12, seed)
    buckets = choose_buckets(source, target, limit=12, tokens_per_batch=12, num_shapes=2)
    top = (source.max() + source.max() % 2, target.max() + target.max() % 2)
    best = min(
        cells(source, target, [corner, top])
        for corner in itertools.product(range(2, top[0] + 1, 2), range(2, top[1] + 1, 2))
    )
    assert cells(source, target, [(shape.source, shape.target) for shape in buckets.shapes]) == best


@pytest.mark.parametrize("seed", range(2))
def test_no_shape_could_be_another_and_save_cells(seed):
    source, target = random_lengths(80, 24, seed)
    buckets = choose_buckets(source, target, limit=24, tokens_per_batch=24, num_shapes=6)
    shapes = [(shape.source, shape.target) for shape in buckets.shapes]
    found = cells(source, target, shapes)
    for moved in range(len(shapes) - 1):  # the last holds every pair
        for corner in itertools.product(range(2, 25, 2), repeat=2):
            assert cells(source, target, [*shapes[:moved], corner, *shapes[moved + 1 :]]) >= found


def test_every_pair_fits_the_shape_it_is_given():
    source, target = random_lengths(5000, 99, seed=0)
    buckets = choose_buckets(source, target, limit=99, tokens_per_batch=1000, num_shapes=8)
    widths = np.array([(shape.source, shape.target) for shape in buckets.shapes])[buckets.shape_of]
    assert (source <= widths[:, 0]).all() and (target <= widths[:, 1]).all()
    sizes = np.bincount(buckets.shape_of)
    for shape, batches, size in zip(buckets.shapes, buckets.batches, sizes, strict=True):
        assert (batches - 1) * shape.rows < size <= batches * shape.rows


def test_a_small_corpus_gets_few_batches():
    source, target = random_lengths(100, 30, seed=0)
    assert sum(choose_buckets(source, target, limit=30, tokens_per_batch=10_000, num_shapes=8).batches) == 1
    assert sum(choose_buckets(source, target, limit=30, tokens_per_batch=1_000, num_shapes=8).batches) <= 5


def test_rows_divide_among_eight_devices_where_there_are_eight():
    assert rows_within(25_000, 250, 100) == 96
    assert rows_within(100, 20, 11) == 5
    assert even_rows(size=210, most=200) == 112
    assert even_rows(size=3, most=5) == 5
    assert even_rows(size=1, most=200) == 8
