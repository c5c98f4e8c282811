"""Buckets: batches of a few static shapes, each with pairs of similar lengths.

A shape costs source + target cells per pair. The best set of shapes is searched on the histogram of the pairs' lengths,
so the search takes no longer for a larger corpus.
"""

from typing import NamedTuple

import numpy as np

# Devices like even lengths (the fused attention kernels require them) and rows that divide among eight.
LENGTH_MULTIPLE = 2
ROW_MULTIPLE = 8
# Each shape is searched again with the others fixed until none moves; it takes three or four rounds.
MAX_ROUNDS = 20


class Shape(NamedTuple):
    """The static shape of a batch: its rows, and the tokens that a row has room for on either side."""

    rows: int
    source: int
    target: int

    def __str__(self) -> str:
        return f"{self.rows} x ({self.source}, {self.target})"


Corner = tuple[int, int]  # a shape by the indices of its two lengths among the levels of the histogram


class Buckets(NamedTuple):
    """Shapes in order of increasing cost, the number of batches of each, and the shape of each pair."""

    shapes: tuple[Shape, ...]
    batches: tuple[int, ...]
    shape_of: np.ndarray


def choose_buckets(
    source_lengths: np.ndarray, target_lengths: np.ndarray, *, limit: int, tokens_per_batch: int, num_shapes: int
) -> Buckets:
    """At most num_shapes shapes, none longer than the limit, that have the fewest cells per epoch.

    A small corpus gets fewer: a shape that would not fill half a batch gives its pairs to the next larger one. The
    rows of a shape are as few as its number of batches allows, up to the rounding; its last batch has the rest.
    """
    histogram, cell_of = _measure(source_lengths, target_lengths, limit)
    corners = _by_cost(_best_corners(histogram, num_shapes), histogram)
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
    """The lengths that shapes may have: multiples of two, about 3 % apart, up to the longest sentence."""
    top = min(longest + -longest % LENGTH_MULTIPLE, limit)
    lengths = [min(LENGTH_MULTIPLE, top)]
    while lengths[-1] < top:
        lengths.append(min(top, lengths[-1] + LENGTH_MULTIPLE * max(1, lengths[-1] // (32 * LENGTH_MULTIPLE))))
    return np.array(lengths)


def rows_within(tokens_per_batch: int, source: int, target: int) -> int:
    """The rows whose longer side, padding included, is within the budget, rounded down to ROW_MULTIPLE."""
    rows = tokens_per_batch // max(source, target)
    return rows - rows % ROW_MULTIPLE if rows >= ROW_MULTIPLE else rows


def even_rows(size: int, most: int) -> int:
    """The rows of a batch, rounded up to ROW_MULTIPLE, when `size` rows are in as few batches as possible."""
    batches = -(-size // most)
    rows = -(-size // batches)
    return min(most, rows + -rows % ROW_MULTIPLE)


class _Histogram(NamedTuple):
    """The number of pairs at each source and target level, and the cost per pair of a shape with these lengths."""

    source_levels: np.ndarray
    target_levels: np.ndarray
    counts: np.ndarray
    cells: np.ndarray


def _measure(source_lengths: np.ndarray, target_lengths: np.ndarray, limit: int) -> tuple[_Histogram, np.ndarray]:
    """The histogram, and the index of each pair's cell in it."""
    source_levels = candidate_lengths(int(source_lengths.max()), limit)
    target_levels = candidate_lengths(int(target_lengths.max()), limit)
    grid = (len(source_levels), len(target_levels))
    cell_of = np.searchsorted(source_levels, source_lengths) * grid[1] + np.searchsorted(target_levels, target_lengths)
    counts = np.bincount(cell_of, minlength=grid[0] * grid[1]).reshape(grid)
    return _Histogram(source_levels, target_levels, counts, source_levels[:, None] + target_levels[None, :]), cell_of


def _best_corners(histogram: _Histogram, num_shapes: int) -> list[Corner]:
    """Corners added one by one, each where it saves most; after each addition all others are searched again.

    The first corner holds every pair and never moves.
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
    """The corner that saves the most cells when added to these; all corners are tried at once.

    A pair saves the cells of its current shape minus the cells of the new one, if it fits there. Pairs of the same
    current shape save the same, so it is enough to count how many of them fit each corner: a cumulative sum.
    """
    cells = histogram.cells
    corners = _by_cost(corners, histogram)
    home = _cheapest_shape(corners, histogram)
    saved = np.zeros(cells.shape, np.int64)
    for k, corner in enumerate(corners):
        held = np.where(home == k, histogram.counts, 0).cumsum(axis=0).cumsum(axis=1)
        saved += held * np.maximum(cells[corner] - cells, 0)
    source, target = np.unravel_index(int(saved.argmax()), saved.shape)
    return int(source), int(target)


def _by_cost(corners: list[Corner], histogram: _Histogram) -> list[Corner]:
    return sorted(set(corners), key=lambda corner: (histogram.cells[corner], corner))


def _cheapest_shape(corners: list[Corner], histogram: _Histogram) -> np.ndarray:
    """For each cell of the histogram, the first of the corners (in order of cost) that holds it."""
    home = np.empty(histogram.counts.shape, np.int16)
    for k, (source, target) in reversed(list(enumerate(corners))):
        home[: source + 1, : target + 1] = k
    return home


def _merge_small(shapes: list[Shape], sizes: list[int]) -> list[int]:
    """For each shape the one its pairs are batched in: a larger one if they would not fill half a batch."""
    sizes = list(sizes)
    final = list(range(len(shapes)))
    for small, shape in enumerate(shapes[:-1]):
        if 2 * sizes[small] < shape.rows:
            holds = [other.source >= shape.source and other.target >= shape.target for other in shapes]
            large = holds.index(True, small + 1)
            sizes[large] += sizes[small]
            final = [large if k == small else k for k in final]
    return final
