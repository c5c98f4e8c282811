"""The interface of a corpus: sentence pairs in order, some at a time."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol


@dataclasses.dataclass
class Chunk:
    """Consecutive pairs of a split. An unreadable pair is empty; `faults` says where it is and why, by its index."""

    sources: list[str]
    targets: list[str]
    origin: str
    first: int  # the number of the first pair in `origin`
    faults: dict[int, str] = dataclasses.field(default_factory=dict)
    oddities: Counter[str] = dataclasses.field(default_factory=Counter)

    def place(self, index: int) -> str:
        """Where a pair comes from, as a person would look it up: "train.en:17"."""
        return f"{self.origin}:{self.first + index}"


class Corpus(Protocol):
    """A source of sentence pairs."""

    @property
    def splits(self) -> tuple[str, ...]:
        """train, and those of valid, test and others that the corpus has."""

    def chunks(self, split: str, size: int) -> Iterator[Chunk]:
        """The pairs of a split in order, at most `size` per chunk, so that no split need fit into memory."""

    def identity(self) -> dict[str, Any]:
        """Plain facts that change when, and only when, the text does."""

    def sources(self) -> list[dict[str, Any]]:
        """Where the text came from, for the manifest; complete when every split has been read."""


def text_fault(text: str) -> str | None:
    """What is wrong with a string that is no Unicode text or cannot be stored; None if nothing is."""
    if "\0" in text:
        return f"has a NUL character at {text.index(chr(0)) + 1}"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"is not Unicode text: lone surrogate at {error.start + 1}"
    return None
