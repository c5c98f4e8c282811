"""Sentence pairs as a corpus hands them over, whatever it is made of: in order, and some at a time."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Protocol


@dataclasses.dataclass
class Chunk:
    """Consecutive pairs of a split. A pair that cannot be read is empty; `faults` says where and why, by its index."""

    sources: list[str]
    targets: list[str]
    place: Callable[[int], str]
    """Where pair i comes from, as a person would look it up: "train.en:17"."""
    faults: dict[int, str] = dataclasses.field(default_factory=dict)
    oddities: Counter[str] = dataclasses.field(default_factory=Counter)


class Corpus(Protocol):
    """Where sentence pairs come from."""

    @property
    def splits(self) -> tuple[str, ...]:
        """train, and those of valid, test and others that the corpus has of its own."""

    def chunks(self, split: str, size: int) -> Iterator[Chunk]:
        """The pairs of a split in order, `size` to a chunk at most, so that no split need fit into memory."""

    def identity(self) -> dict[str, Any]:
        """Plain facts that change when, and only when, the text does."""

    def sources(self) -> list[dict[str, Any]]:
        """Where the text came from, for the record; complete when every split has been read through."""
