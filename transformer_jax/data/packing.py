"""Packing: several pairs in a row, so that little of it is padding.

It is bin packing in two dimensions, over millions of pairs, so it goes in rounds that numpy does at once. Pairs are
dealt longest first, each round to the rows with the most room left ("longest processing time first" in scheduling,
which fills rows evenly). Within a round the two sides are balanced: the pair whose source is long for its target goes
to the row that has the most source room for its target room.
"""

from typing import NamedTuple

import numpy as np

from transformer_jax.data.buckets import LENGTH_MULTIPLE

# Rows are opened for this fill; higher leaves more pairs to a second deal, lower leaves more room unused.
FILL = 0.98
# Each round deals to this part of the rows: smaller parts balance better and take more rounds.
ROUND = 1 / 4
# Shares of a row are compared as 16-bit integers: sorting these is linear, and equal on every machine.
SHARE = 30_000


class Packs(NamedTuple):
    """Row r holds the pairs members[starts[r]:starts[r + 1]]."""

    members: np.ndarray
    starts: np.ndarray


def row_widths(source_lengths: np.ndarray, target_lengths: np.ndarray, limit: int) -> tuple[int, int]:
    """The widths of packed rows: the limit for the side with more tokens, and less in proportion for the other."""
    totals = np.array([source_lengths.sum(), target_lengths.sum()])
    longest = np.array([source_lengths.max(), target_lengths.max()])
    widths = np.ceil(min(limit, totals.max()) * totals / totals.max()).astype(int)
    widths = np.maximum(widths + -widths % LENGTH_MULTIPLE, longest)
    source_width, target_width = np.minimum(widths, limit).tolist()
    return source_width, target_width


def pack(source_lengths: np.ndarray, target_lengths: np.ndarray, source_width: int, target_width: int) -> Packs:
    """Rows that hold every pair once, none longer than its width on either side; every single pair must fit."""
    size = np.maximum(source_lengths / source_width, target_lengths / target_width)
    waiting = np.argsort(-size, kind="stable")
    row_of = np.empty(len(size), np.int32)
    opened = 0
    while len(waiting):
        rows, num_rows = _deal(source_lengths[waiting], target_lengths[waiting], source_width, target_width)
        placed = rows >= 0
        row_of[waiting[placed]] = opened + rows[placed]
        opened += num_rows
        waiting = waiting[~placed]
    members = np.argsort(row_of, kind="stable").astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=opened))])
    return Packs(members, starts)


def _deal(source: np.ndarray, target: np.ndarray, source_width: int, target_width: int) -> tuple[np.ndarray, int]:
    """Deals the pairs, longest first, to new rows: the row of each (-1 where it did not fit), and the number of rows.

    Every row gets a pair, since an empty row is offered before any other and every pair fits it.
    """
    tokens_in_rows = max(source.sum() / source_width, target.sum() / target_width)
    num_rows = min(len(source), int(np.ceil(tokens_in_rows / FILL)))
    source_room = np.full(num_rows, source_width)
    target_room = np.full(num_rows, target_width)
    row_of = np.full(len(source), -1, np.int32)
    per_round = max(1, int(num_rows * ROUND))
    for begin in range(0, len(source), per_round):
        pairs = np.arange(begin, min(begin + per_round, len(source)))
        room = np.minimum(source_room / source_width, target_room / target_width)
        roomiest = _by_share(-room)[: len(pairs)]

        pairs = pairs[_by_share(source[pairs] / source_width - target[pairs] / target_width)]
        rows = roomiest[_by_share(source_room[roomiest] / source_width - target_room[roomiest] / target_width)]
        fits = (source[pairs] <= source_room[rows]) & (target[pairs] <= target_room[rows])
        pairs, rows = pairs[fits], rows[fits]
        row_of[pairs] = rows
        source_room[rows] -= source[pairs]
        target_room[rows] -= target[pairs]
    return row_of, num_rows


def _by_share(shares: np.ndarray) -> np.ndarray:
    return np.argsort((shares * SHARE).astype(np.int16), kind="stable")
