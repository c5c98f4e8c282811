"""Corpora in text files: the user's (aligned lines, TSV, JSONL), and two published ones, COGS and inflection."""

from __future__ import annotations

import functools
import itertools
import json
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from transformer_jax.config import DataConfig
from transformer_jax.data.corpora.corpus import Chunk, Corpus, Labels, Pair, text_fault
from transformer_jax.data.prepared import CLUSTER, sha256
from transformer_jax.errors import BadInput, visible
from transformer_jax.files.lines import Block, read_blocks, require_file

# Of each split the source and the target files; a file with both sides has no target.
Files = dict[str, list[tuple[str, str | None]]]
Row = tuple[str, str, str]

# Known words and phrases in structures that training lacks; all other categories have known structures with a word
# that was not seen in that place.
STRUCTURAL = ("obj_pp_to_subj_pp", "cp_recursion", "pp_recursion")
LINES_AT_ONCE = 10_000


class TextCorpus(Corpus):
    """A corpus that is read from text files, which are identified by their checksums."""

    def __init__(self, config: DataConfig):
        self._files = self.files_of(config)
        self.splits = tuple(self._files)
        self._line_counts: Counter[str] = Counter()
        for path in sorted(self.paths(config)):
            require_file(path)

    @classmethod
    @abstractmethod
    def files_of(cls, config: DataConfig) -> Files:
        """The files that the options name, whether or not they exist."""

    @abstractmethod
    def read(self, split: str, source: str, target: str | None, size: int) -> Iterator[Chunk]:
        """The pairs of these files."""

    @classmethod
    def paths(cls, config: DataConfig) -> set[str]:
        return {path for pairs in cls.files_of(config).values() for pair in pairs for path in pair if path}

    def sources(self) -> list[dict[str, Any]]:
        return [
            {"split": split, "file": path, "lines": self._line_counts[path], **self._checksums[path]}
            for split, pairs in self._files.items()
            for pair in pairs
            for path in pair
            if path
        ]

    @functools.cached_property
    def _checksums(self) -> dict[str, dict[str, Any]]:
        paths = sorted({path for pairs in self._files.values() for pair in pairs for path in pair if path})
        return {path: {"sha256": sha256(path), "bytes": os.path.getsize(path)} for path in paths}

    def chunks(self, split: str, size: int) -> Iterator[Chunk]:
        for source, target in self._files[split]:
            pairs = 0
            for chunk in self.read(split, source, target, size):
                pairs += len(chunk.pairs)
                yield chunk
            self._line_counts |= Counter({path: pairs for path in (source, target) if path})


class FileCorpus(TextCorpus):
    """Two aligned text files per split, or TSV or JSONL files with both sides; several files are read in turn."""

    def __init__(self, config: DataConfig):
        super().__init__(config)
        self._keys = (config.source_language or "source", config.target_language or "target")

    @classmethod
    def files_of(cls, config: DataConfig) -> Files:
        if not config.source:
            raise BadInput("data.source: names no file; give data.source and data.target, or data.corpus")
        files: Files = {}
        for split, prefix in (("train", ""), ("valid", "valid_"), ("test", "test_")):
            sources, targets = getattr(config, f"{prefix}source"), getattr(config, f"{prefix}target")
            if targets and not sources:
                raise BadInput(f"data.{prefix}source: names no file, but data.{prefix}target names {targets[0]}")
            for path in sources if not targets else ():
                if _kind(path) == "lines":
                    raise BadInput(
                        f"data.{prefix}target: names no file, and {path} is not a .tsv or .jsonl with both sides"
                    )
            if sources:
                files[split] = list(zip(sources, targets or [None] * len(sources), strict=True))
        return files

    def identity(self) -> dict[str, Any]:
        checksums = {
            split: [[self._checksums[path]["sha256"] for path in pair if path] for pair in pairs]
            for split, pairs in self._files.items()
        }
        by_key = (
            target is None and _kind(source) == "jsonl" for pairs in self._files.values() for source, target in pairs
        )
        keys = list(self._keys) if any(by_key) else []
        return {"files": checksums, "keys": keys}

    def read(self, split: str, source: str, target: str | None, size: int) -> Iterator[Chunk]:
        if target is not None:
            return _aligned(source, target, size)
        parse = _tsv_pair if _kind(source) == "tsv" else self._jsonl_pair
        return (_parsed(block, parse) for block in read_blocks(source, size))

    def _jsonl_pair(self, line: str) -> Pair | str:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            return f"is not JSON: {error}"
        # The layout of other libraries' data sets: {"translation": {"de": ..., "en": ...}}.
        record = record.get("translation", record) if isinstance(record, dict) else record
        for key in self._keys:
            if not isinstance(record, dict) or not isinstance(record.get(key), str):
                has = ", ".join(map(str, record)) if isinstance(record, dict) else type(record).__name__
                return f"has no text under the key {key!r} (it has: {has}); set data.source_language and target_"
            if fault := text_fault(record[key]):
                return fault
        source, target = (record[key] for key in self._keys)
        return source, target


class ColumnCorpus(TextCorpus):
    """Three columns, separated by tabs, one file per split in `data.corpus_folder`."""

    columns: ClassVar[str]  # for messages
    labelled: ClassVar[tuple[str, ...]]  # the splits whose examples have labels

    def __init__(self, config: DataConfig):
        super().__init__(config)
        self._name = config.corpus

    @classmethod
    def files_of(cls, config: DataConfig) -> Files:
        if config.corpus_folder is None:
            raise BadInput(f"data.corpus_folder: names no folder; {config.corpus} is read from the files of one")
        return {split: [(str(Path(config.corpus_folder, name)), None)] for split, name in cls.names(config).items()}

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
        checksums = {
            f"checksum of {split}": self._checksums[path]["sha256"] for split, [(path, _)] in self._files.items()
        }
        return {"corpus": self._name, **checksums}

    def read(self, split: str, source: str, target: str | None, size: int) -> Iterator[Chunk]:
        for block in read_blocks(source, size):
            rows = [block.faults.get(index) or self.row(line) for index, line in enumerate(block.lines)]
            chunk = _chunk(block, (row if isinstance(row, str) else self.pair(row) for row in rows))
            if split in self.labelled:
                chunk.labels = [{} if isinstance(row, str) else self.labels(row) for row in rows]
            yield chunk

    def row(self, line: str) -> Row | str:
        """The columns of a line, or what is wrong with it."""
        columns = line.split("\t")
        if len(columns) != 3:
            return f"has {len(columns)} columns; expected three, separated by tabs: {self.columns}"
        return columns[0], columns[1], columns[2]


class CogsCorpus(ColumnCorpus):
    """COGS (Kim and Linzen 2020): English sentences and their logical forms.

    train, dev (validation) and test from one distribution; `test_gen` has 21 categories of generalization.
    """

    columns = "sentence, logical form, category"
    labelled = ("test_gen",)

    @staticmethod
    def names(config: DataConfig) -> dict[str, str]:
        return {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv", "test_gen": "gen.tsv"}

    def pair(self, row: Row) -> Pair:
        return row[0], row[1]

    def labels(self, row: Row) -> Labels:
        # The sentences of a category test one word or structure: they are not independent.
        return {"category": row[2], "kind": "structural" if row[2] in STRUCTURAL else "lexical", CLUSTER: row[2]}


class InflectionCorpus(ColumnCorpus):
    """Morphological inflection, as in SIGMORPHON 2022 (task 0), of one language at one size.

    The source is the lemma, a tab and the features: `data.tokenizer=characters_and_tags`.

    Labels tell whether the lemma, and the set of features, occur in the training file that is used.
    """

    columns = "lemma, form, features"
    labelled = ("valid", "test")

    @classmethod
    def files_of(cls, config: DataConfig) -> Files:
        ending = f"_{config.task.size}.train"
        there = sorted(path.name.removesuffix(ending) for path in Path(config.corpus_folder or "").glob(f"*{ending}"))
        if config.corpus_folder and config.task.language not in there:
            raise BadInput(
                f"data.task.language = {config.task.language!r}: {config.corpus_folder} has no "
                f"{config.task.language}{ending}; it has: {', '.join(there) or f'no file *{ending}'}"
            )
        return super().files_of(config)

    @staticmethod
    def names(config: DataConfig) -> dict[str, str]:
        language, size = config.task.language, config.task.size
        return {"train": f"{language}_{size}.train", "valid": f"{language}.dev", "test": f"{language}.gold"}

    def row(self, line: str) -> Row | str:
        """The columns without spaces around them, as the task's own evaluation reads them."""
        row = super().row(line)
        return row if isinstance(row, str) else (row[0].strip(), row[1].strip(), row[2].strip())

    def pair(self, row: Row) -> Pair:
        lemma, form, features = row
        return f"{lemma}\t{features}", form

    def labels(self, row: Row) -> Labels:
        lemmas, features = self._in_training
        found = {"lemma": row[0] in lemmas, "features": row[2] in features}
        # Forms of one lemma are not independent.
        return {name: "seen" if seen else "unseen" for name, seen in found.items()} | {CLUSTER: row[0]}

    @functools.cached_property
    def _in_training(self) -> tuple[set[str], set[str]]:
        """The lemmas and the sets of features in the training file."""
        lines = (line for block in read_blocks(self._files["train"][0][0], LINES_AT_ONCE) for line in block.lines)
        rows = [row for line in lines if not isinstance(row := self.row(line), str)]
        return {lemma for lemma, _, _ in rows}, {features for _, _, features in rows}


def _aligned(source: str, target: str, size: int) -> Iterator[Chunk]:
    """Line i of one file with line i of the other; files of different length are not translations of each other."""
    counts = [0, 0]
    for left, right in itertools.zip_longest(read_blocks(source, size), read_blocks(target, size)):
        counts = [count + len(side.lines if side else ()) for count, side in zip(counts, (left, right), strict=True)]
        # Beyond the end of the shorter file, up to that of the longer one: its lines may be unreadable, which is then
        # reported, and its length is.
        left, right = (side or Block(source, 1, []) for side in (left, right))
        faults = _placed(right) | _placed(left)
        oddities = left.oddities + right.oddities
        pairs = list(itertools.zip_longest(left.lines, right.lines, fillvalue=""))
        yield Chunk(pairs, visible(source), left.first_line, faults, oddities, target_origin=visible(target))
    if counts[0] != counts[1]:
        raise BadInput(f"{source} has {counts[0]:,} lines and {target} {counts[1]:,}: they must have as many")


def _parsed(block: Block, parse: Callable[[str], Pair | str]) -> Chunk:
    return _chunk(block, (block.faults.get(index) or parse(line) for index, line in enumerate(block.lines)))


def _chunk(block: Block, entries: Iterable[Pair | str]) -> Chunk:
    """The pairs of a block's lines, or what is wrong with them."""
    chunk = Chunk.of(entries, visible(block.path), block.first_line)
    chunk.oddities = block.oddities
    return chunk


def _placed(block: Block) -> dict[int, str]:
    return {index: f"{block.place(index)}: {fault}" for index, fault in block.faults.items()}


def _tsv_pair(line: str) -> Pair | str:
    columns = line.split("\t")
    if len(columns) != 2:
        return f"has {len(columns)} columns; expected two: source and target, separated by one tab"
    return columns[0], columns[1]


def _kind(path: str) -> str:
    name = path.removesuffix(".gz").removesuffix(".zst")
    return {"tsv": "tsv", "jsonl": "jsonl", "json": "jsonl"}.get(name.rpartition(".")[2], "lines")
