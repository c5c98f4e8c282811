"""Which sentences are decoded together, in few static shapes: each shape is compiled once."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np


class Group(NamedTuple):
    """Sentences of similar length, and the shape of their array; rows beyond the members are empty."""

    members: np.ndarray
    rows: int
    source: int  # room for tokens in a row
    target: int


def groups(
    lengths: Sequence[int],
    *,
    extra_length: int,
    min_length: int,
    longest_source: int | None,
    longest_target: int | None,
    tokens: int,
    devices: int,
    targets: Sequence[int] | None = None,
) -> Iterator[Group]:
    """Groups with every sentence once, the longest first, so that too little memory shows at once.

    `tokens` limits rows x target; no row has room for more than `longest_source` and `longest_target`. The sentences of
    a group have similar lengths: they need little padding, and end at about the same time. Where the lengths of their
    targets are known (`targets`), these count, and all groups have room for the longest source, for fewer shapes. Only
    the last group has empty rows, apart from those that make rows a multiple of devices.
    """
    order = np.argsort(-np.asarray(lengths if targets is None else targets), kind="stable")
    begin, most = 0, max(lengths, default=0)
    while begin < len(order):
        if targets is None:
            source = rounded_up(lengths[order[begin]])
            target = max(source + extra_length, min_length)
        else:
            source, target = rounded_up(most), rounded_up(targets[order[begin]])
        source, target = min(source, longest_source or source), min(target, longest_target or target)
        rows = devices
        while rows < len(order) - begin and 2 * rows * target <= tokens:
            rows *= 2
        yield Group(order[begin : begin + rows], rows, source, target)
        begin += rows


def rounded_up(length: int) -> int:
    """The next of 8, 12, 16, 24, 32, 48 ..., each at most 1.5 times the one before."""
    size = 8
    while size < length:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size
