"""The corpus that the options name: text files, a TFDS data set, or one made from rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from transformer_jax.config import DataConfig
from transformer_jax.data.chunks import Chunk, Corpus
from transformer_jax.data.file_corpus import FileCorpus
from transformer_jax.data.tfds_corpus import TfdsCorpus

TASKS = ("copy", "reverse", "sort", "grammar")


def open_corpus(config: DataConfig) -> Corpus:
    """The corpus that these options name; whatever can be refused without reading it through is refused."""
    if config.corpus in TASKS:
        return TaskCorpus(config)
    if config.corpus:
        return TfdsCorpus(config)
    return FileCorpus(config)


class TaskCorpus:
    """A corpus made from rules; see `tasks.py`."""

    def __init__(self, config: DataConfig):
        from transformer_jax.data import tasks

        self._name = config.corpus
        self._options = config.task
        self._make = tasks.generate
        extra = ("test_long", "test_compositional") if config.corpus == "grammar" else ()
        sizes = {"train": config.task.train_size, "valid": config.task.valid_size}
        sizes |= dict.fromkeys(("test", *extra), config.task.test_size)
        self._sizes = {split: size for split, size in sizes.items() if size}

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self._sizes)

    def identity(self) -> dict[str, Any]:
        return {"task": self._name, **dataclasses.asdict(self._options)}

    def sources(self) -> list[dict[str, Any]]:
        return [self.identity()]

    def chunks(self, split: str, size: int) -> Iterator[Chunk]:
        pairs = self._make(self._name, split, size=self._sizes[split], seed=self._options.seed)
        for start in range(0, len(pairs), size):
            sources, targets = zip(*pairs[start : start + size], strict=True)
            yield Chunk(list(sources), list(targets), _numbered(f"{self._name}/{split}", start))


def _numbered(name: str, start: int) -> Callable[[int], str]:
    return lambda index: f"{name}:{start + index + 1}"
