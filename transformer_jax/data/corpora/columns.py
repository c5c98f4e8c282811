"""Published corpora as files of three columns, separated by tabs, one file for each split in one folder."""

from __future__ import annotations

import functools
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from transformer_jax.config import DataConfig
from transformer_jax.data.corpora.corpus import Chunk, Corpus, Labels, Pair
from transformer_jax.data.prepared import sha256
from transformer_jax.errors import BadInput, visible
from transformer_jax.files.lines import read_blocks, require_file

Row = tuple[str, str, str]


class ColumnCorpus(Corpus):
    """A corpus in the folder `data.corpus_folder`. Subclasses say which files it has and what their columns mean."""

    columns: ClassVar[str]  # for messages
    labelled: ClassVar[tuple[str, ...]]  # the splits whose examples have labels

    def __init__(self, config: DataConfig):
        self._name = config.corpus
        self._files = self.file_of_split(config)
        self.splits = tuple(self._files)
        self._line_counts: Counter[str] = Counter()
        for path in self._files.values():
            require_file(path)

    @classmethod
    def paths(cls, config: DataConfig) -> set[str]:
        return set(cls.file_of_split(config).values())

    @classmethod
    def file_of_split(cls, config: DataConfig) -> dict[str, str]:
        if config.corpus_folder is None:
            raise BadInput(f"data.corpus_folder: names no folder; {config.corpus} is read from the files of one")
        return {split: str(Path(config.corpus_folder, name)) for split, name in cls.names(config).items()}

    @staticmethod
    @abstractmethod
    def names(config: DataConfig) -> dict[str, str]:
        """The name of each split's file."""

    @abstractmethod
    def pair(self, row: Row) -> Pair:
        """The source and the target of a line."""

    @abstractmethod
    def labels(self, row: Row) -> Labels:
        """The labels of a line of a split that has them."""

    def identity(self) -> dict[str, Any]:
        checksums = {f"checksum of {split}": facts["sha256"] for split, facts in self._facts.items()}
        return {"corpus": self._name, **checksums}

    def sources(self) -> list[dict[str, Any]]:
        return [
            {"split": split, "file": path, "lines": self._line_counts[split], **self._facts[split]}
            for split, path in self._files.items()
        ]

    @functools.cached_property
    def _facts(self) -> dict[str, dict[str, Any]]:
        return {split: {"sha256": sha256(path), "bytes": os.path.getsize(path)} for split, path in self._files.items()}

    def chunks(self, split: str, size: int) -> Iterator[Chunk]:
        lines = 0
        for block in read_blocks(self._files[split], size):
            rows = [block.faults.get(index) or self.row(line) for index, line in enumerate(block.lines)]
            pairs = (row if isinstance(row, str) else self.pair(row) for row in rows)
            chunk = Chunk.of(pairs, visible(block.path), block.first_line)
            chunk.oddities = block.oddities
            if split in self.labelled:
                chunk.labels = [{} if isinstance(row, str) else self.labels(row) for row in rows]
            yield chunk
            lines += len(rows)
        self._line_counts[split] = lines

    def row(self, line: str) -> Row | str:
        """The columns of a line, or what is wrong with it."""
        columns = line.split("\t")
        if len(columns) != 3:
            return f"has {len(columns)} columns; expected three, separated by tabs: {self.columns}"
        return columns[0], columns[1], columns[2]
