"""Buckets: the few static shapes that pairs of similar lengths are batched in, and which pair goes to which.

A shape costs source + target cells a pair. The best set of shapes is sought on the histogram of the pairs' lengths, so
that its price does not grow with the corpus.
"""

from typing import NamedTuple

import numpy as np

from transformer_jax.data.assembly import Shape

# Devices like even lengths (the fused attention kernels demand them) and rows that divide among eight.
LENGTH_MULTIPLE = 2
ROW_MULTIPLE = 8
# Each shape is sought anew, the others held, until none moves; it takes three or four rounds.
MAX_ROUNDS = 20

Corner = tuple[int, int]  # the largest lengths of a shape, as numbers of levels


class Buckets(NamedTuple):
    """Shapes from cheap to dear, the one that each pair is batched in, and how many batches there are of each."""

    shapes: tuple[Shape, ...]
    batches: tuple[int, ...]
    shape_of: np.ndarray


def choose_buckets(
    source_lengths: np.ndarray, target_lengths: np.ndarray, *, limit: int, tokens_per_batch: int, num_shapes: int
) -> Buckets:
    """The at most num_shapes shapes, none longer than the limit, that lay out the fewest cells an epoch.

    A small corpus gets fewer: a shape that would not fill half a batch gives its pairs to the next larger one. And no
    batch is left half empty: the pairs of a shape spread evenly over its batches, which makes each a little smaller.
    """
    histogram, cell_of = _measure(source_lengths, target_lengths, limit)
    corners = _cheap_to_dear(_best_corners(histogram, num_shapes), histogram)
    home = _cheapest_shape(corners, histogram)
    sizes = [int(histogram.counts[home == k].sum()) for k in range(len(corners))]
    shapes = []
    for source, target in corners:
        lengths = int(histogram.source_levels[source]), int(histogram.target_levels[target])
        shapes.append(Shape(rows_within(tokens_per_batch, *lengths), *lengths))

    final = _merge_small(shapes, sizes)
    final_sizes = np.bincount(final, weights=sizes).astype(int).tolist()
    used = [k for k, size in enumerate(final_sizes) if size]
    sizes = [final_sizes[k] for k in used]
    rows = [even_rows(size, shapes[k].rows) for k, size in zip(used, sizes, strict=True)]
    return Buckets(
        shapes=tuple(shapes[k]._replace(rows=n) for k, n in zip(used, rows, strict=True)),
        batches=tuple(-(-size // n) for size, n in zip(sizes, rows, strict=True)),
        shape_of=np.searchsorted(used, final).astype(np.int16)[home].ravel()[cell_of],
    )


def candidate_lengths(longest: int, limit: int) -> np.ndarray:
    """The lengths that shapes may have: multiples of two, about 3 % apart where that is more, up to the longest."""
    top = min(longest + -longest % LENGTH_MULTIPLE, limit)
    lengths = [min(LENGTH_MULTIPLE, top)]
    while lengths[-1] < top:
        lengths.append(min(top, lengths[-1] + LENGTH_MULTIPLE * max(1, lengths[-1] // (32 * LENGTH_MULTIPLE))))
    return np.array(lengths)


def rows_within(tokens_per_batch: int, source: int, target: int) -> int:
    """The most rows whose longer side, padding included, keeps to the budget."""
    rows = tokens_per_batch // max(source, target)
    return rows - rows % ROW_MULTIPLE if rows >= ROW_MULTIPLE else rows


def even_rows(size: int, most: int) -> int:
    """The rows of a batch when `size` rows spread evenly over the fewest batches, instead of leaving one part empty."""
    batches = -(-size // most)
    rows = -(-size // batches)
    return min(most, rows + -rows % ROW_MULTIPLE)


class _Histogram(NamedTuple):
    """How many pairs have each source level and target level, and what a shape that ends there costs a pair."""

    source_levels: np.ndarray
    target_levels: np.ndarray
    counts: np.ndarray
    cells: np.ndarray


def _measure(source_lengths: np.ndarray, target_lengths: np.ndarray, limit: int) -> tuple[_Histogram, np.ndarray]:
    """The histogram, and each pair's place in it."""
    source_levels = candidate_lengths(int(source_lengths.max()), limit)
    target_levels = candidate_lengths(int(target_lengths.max()), limit)
    grid = (len(source_levels), len(target_levels))
    cell_of = np.searchsorted(source_levels, source_lengths) * grid[1] + np.searchsorted(target_levels, target_lengths)
    counts = np.bincount(cell_of, minlength=grid[0] * grid[1]).reshape(grid)
    return _Histogram(source_levels, target_levels, counts, source_levels[:, None] + target_levels[None, :]), cell_of


def _best_corners(histogram: _Histogram, num_shapes: int) -> list[Corner]:
    """Shapes are added one by one, each where it saves most, and after each all are sought anew.

    The corner that holds every pair is the first, and stays.
    """
    corners: list[Corner] = [(histogram.counts.shape[0] - 1, histogram.counts.shape[1] - 1)]
    for _ in range(num_shapes - 1):
        corners.append(_best_addition(corners, histogram))
        for _ in range(MAX_ROUNDS):
            before = list(corners)
            for k in range(1, len(corners)):
                corners[k] = _best_addition(corners[:k] + corners[k + 1 :], histogram)
            if corners == before:
                break
    return corners


def _best_addition(corners: list[Corner], histogram: _Histogram) -> Corner:
    """The corner that saves the most cells when it joins these, of all corners at once.

    A pair saves the cells of its present shape less those of the new one, if the new one holds it. Pairs of the same
    present shape save the same, so it is enough to know how many of them each corner holds: a cumulative sum.
    """
    cells = histogram.cells
    corners = _cheap_to_dear(corners, histogram)
    home = _cheapest_shape(corners, histogram)
    saved = np.zeros(cells.shape, np.int64)
    for k, corner in enumerate(corners):
        held = np.where(home == k, histogram.counts, 0).cumsum(axis=0).cumsum(axis=1)
        saved += held * np.maximum(cells[corner] - cells, 0)
    source, target = np.unravel_index(int(saved.argmax()), saved.shape)
    return int(source), int(target)


def _cheap_to_dear(corners: list[Corner], histogram: _Histogram) -> list[Corner]:
    return sorted(set(corners), key=lambda corner: (histogram.cells[corner], corner))


def _cheapest_shape(corners: list[Corner], histogram: _Histogram) -> np.ndarray:
    """For each cell of the histogram, which of the corners (cheap to dear) is the first to hold it."""
    home = np.empty(histogram.counts.shape, np.int16)
    for k, (source, target) in reversed(list(enumerate(corners))):
        home[: source + 1, : target + 1] = k
    return home


def _merge_small(shapes: list[Shape], sizes: list[int]) -> list[int]:
    """Where the pairs of each shape are batched: in its own, or in a larger one if they would not fill half a batch."""
    sizes = list(sizes)
    final = list(range(len(shapes)))
    for small, shape in enumerate(shapes[:-1]):
        if 2 * sizes[small] < shape.rows:
            holds = [other.source >= shape.source and other.target >= shape.target for other in shapes]
            large = holds.index(True, small + 1)
            sizes[large] += sizes[small]
            final = [large if k == small else k for k in final]
    return final
