"""The interface of a corpus: sentence pairs in order, some at a time."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from transformer_jax.config import DataConfig

Pair = tuple[str, str]
# What is known about a test example, such as {"category": "cp_recursion"}: results can be reported by group.
Labels = dict[str, str]


@dataclasses.dataclass
class Chunk:
    """Consecutive pairs of a split. An unreadable pair is empty; `faults` says where it is and why, by its index."""

    pairs: list[Pair]
    origin: str
    first: int  # the number of the first pair in `origin`
    faults: dict[int, str] = dataclasses.field(default_factory=dict)
    oddities: Counter[str] = dataclasses.field(default_factory=Counter)
    labels: list[Labels] = dataclasses.field(default_factory=list)  # of every pair, or empty; none in train
    target_origin: str = ""  # where the targets come from, if it is another file

    @classmethod
    def of(cls, entries: Iterable[Pair | str], origin: str, first: int) -> Chunk:
        """A chunk of pairs, and of texts that say what is wrong with the pair in their place."""
        chunk = cls([], origin, first)
        for index, entry in enumerate(entries):
            if isinstance(entry, str):
                chunk.faults[index] = f"{chunk.place(index)}: {entry}"
            chunk.pairs.append(("", "") if isinstance(entry, str) else entry)
        return chunk

    def place(self, index: int, side: int = 0) -> str:
        """Where a text of a pair comes from, as a person would look it up: "train.en:17"."""
        return f"{self.target_origin if side and self.target_origin else self.origin}:{self.first + index}"


class Corpus(ABC):
    """A source of sentence pairs."""

    splits: tuple[str, ...]  # train, and those of valid, test and others that the corpus has
    never_held_out: Collection[Pair] = ()  # training pairs that must not become validation pairs

    @abstractmethod
    def __init__(self, config: DataConfig):
        """The corpus that the options `data` describe."""

    @classmethod
    def paths(cls, config: DataConfig) -> set[str]:
        """The text files that the options name, whether or not they exist."""
        return set()

    @abstractmethod
    def chunks(self, split: str, size: int) -> Iterator[Chunk]:
        """The pairs of a split in order, at most `size` per chunk, so that no split need fit into memory."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Plain facts that change when, and only when, the text does."""

    def sources(self) -> list[dict[str, Any]]:
        """Where the text came from, for the manifest; complete when every split has been read."""
        return [self.identity()]


def text_fault(text: str) -> str | None:
    """What is wrong with a string that is no Unicode text or cannot be stored; None if nothing is."""
    if "\0" in text:
        return f"has a NUL character at {text.index(chr(0)) + 1}"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"is not Unicode text: lone surrogate at {error.start + 1}"
    return None
