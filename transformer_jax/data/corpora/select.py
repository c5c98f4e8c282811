"""The corpus that the options name: text files, a TFDS data set, one made from rules, or a function of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from transformer_jax.config import DataConfig
from transformer_jax.data.corpora import tasks
from transformer_jax.data.corpora.chunks import Chunk, Corpus
from transformer_jax.data.corpora.custom import OwnCorpus
from transformer_jax.data.corpora.files import FileCorpus
from transformer_jax.data.corpora.tfds import TfdsCorpus
from transformer_jax.schema import is_meant_as_address


def open_corpus(config: DataConfig) -> Corpus:
    """The corpus that these options name; whatever can be refused without reading it through is refused."""
    if config.corpus in tasks.TASKS:
        return TaskCorpus(config)
    if is_meant_as_address(config.corpus):
        return OwnCorpus(config)
    if config.corpus:
        return TfdsCorpus(config)
    return FileCorpus(config)


class TaskCorpus:
    """A corpus made from rules; see `tasks.py`."""

    def __init__(self, config: DataConfig):
        self._name = config.corpus
        self._sizes = {"train": config.task.train_size, "valid": config.task.valid_size}
        self._sizes |= {split: config.task.test_size for split in tasks.splits(self._name) if split not in self._sizes}
        self._options = {"seed": config.task.seed}
        if self._name in tasks.TOY_TASKS:
            self._options |= {name: getattr(config.task, name) for name in ("alphabet", "min_length", "max_length")}

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(split for split, size in self._sizes.items() if size)

    def identity(self) -> dict[str, Any]:
        return {"task": self._name, "sizes": self._sizes, **self._options}

    def sources(self) -> list[dict[str, Any]]:
        return [self.identity()]

    def chunks(self, split: str, size: int) -> Iterator[Chunk]:
        pairs = tasks.generate(self._name, split, size=self._sizes[split], **self._options)
        for start in range(0, len(pairs), size):
            sources, targets = zip(*pairs[start : start + size], strict=True)
            yield Chunk(list(sources), list(targets), _numbered(f"{self._name}/{split}", start))


def _numbered(name: str, start: int) -> Callable[[int], str]:
    return lambda index: f"{name}:{start + index + 1}"
