"""Corpora in text files: the user's (aligned lines, TSV, JSONL), and two published ones, COGS and inflection."""

from __future__ import annotations

import functools
import itertools
import json
import os
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from transformer_jax.config import DataConfig
from transformer_jax.data.corpora.corpus import Chunk, Corpus, Entry
from transformer_jax.data.prepared import CLUSTER
from transformer_jax.errors import BadInput, visible
from transformer_jax.files.digests import file_sha256
from transformer_jax.files.lines import read_aligned, read_blocks, require_file
from transformer_jax.files.remote import name_of

# The source and the target files of each split; a file with both sides has no target.
Files = dict[str, list[tuple[str, str | None]]]

# Known words and phrases in structures that training lacks; all other categories have known structures with a word
# that was not seen in that place.
STRUCTURAL = ("obj_pp_to_subj_pp", "cp_recursion", "pp_recursion")
LINES_AT_ONCE = 10_000


class TextCorpus(Corpus):
    """A corpus that is read from text files, which are identified by their checksums."""

    def __init__(self, split_files: Files):
        self._files = split_files
        self.splits = tuple(split_files)
        self.files = {path for pairs in split_files.values() for pair in pairs for path in pair if path}
        self._line_counts, self._checksums = dict[str, int](), dict[str, dict[str, Any]]()

    @abstractmethod
    def entry(self, split: str, path: str, line: str) -> Entry:
        """The pair in a line of a file with both sides."""

    def sources(self) -> list[dict[str, Any]]:
        files = [(split, path) for split, pairs in self._files.items() for pair in pairs for path in pair if path]
        return [
            {"split": split, "file": name_of(path), "lines": self._line_counts.get(path, 0)}
            | self._checksums.get(path, {})
            for split, path in files
        ]

    def _read_checksums(self) -> None:
        for path in sorted(self.files):
            require_file(path)
            if not os.path.isfile(path):
                raise BadInput(f"{path}: is a pipe or a device; must be a file, which is read several times")
        self._checksums = {path: {"sha256": file_sha256(path), "bytes": os.path.getsize(path)} for path in self.files}

    def chunks(self, split: str, size: int) -> Iterator[Chunk]:
        for source, target in self._files[split]:
            lines = 0
            for chunk in _aligned(source, target, size) if target else self._chunks_of(split, source, size):
                lines += len(chunk.pairs)
                yield chunk
            self._line_counts |= {path: lines for path in (source, target) if path}

    def _chunks_of(self, split: str, path: str, size: int) -> Iterator[Chunk]:
        for block in read_blocks(path, size):
            entries = (block.faults.get(i) or self.entry(split, path, line) for i, line in enumerate(block.lines))
            yield Chunk.of(entries, visible(path), block.first_line)


class FileCorpus(TextCorpus):
    """Two aligned text files per split, or TSV or JSONL files with both sides; several files are read in turn."""

    def __init__(self, config: DataConfig):
        self._keys = (config.source_language or "source", config.target_language or "target")
        files: Files = {}
        for split, (prefix, sources, targets) in config.texts.items():
            missing = ""
            if not sources:
                missing = "source" if targets or split not in ("valid", "test") else ""
            elif not targets and any(_kind(path) == "lines" for path in sources):
                missing = "target"
            if targets and any(_kind(path) != "lines" for path in sources):
                raise BadInput(f"data.{prefix}target: is not for .tsv and .jsonl files, which have both sides; omit it")
            if missing:
                raise BadInput(
                    f"data.{prefix}{missing}: names no file; give source and target, or .tsv or .jsonl files with both"
                )
            if sources:
                files[split] = list(zip(sources, targets or [None] * len(sources), strict=True))
        super().__init__(files)

    def identity(self) -> dict[str, Any]:
        self._read_checksums()
        checksums = {
            split: [[self._checksums[path]["sha256"] for path in pair if path] for pair in pairs]
            for split, pairs in self._files.items()
        }
        alone = [source for pairs in self._files.values() for source, target in pairs if target is None]
        return {"files": checksums, "keys": list(self._keys) if "jsonl" in map(_kind, alone) else []}

    def entry(self, split: str, path: str, line: str) -> Entry:
        return columns_of(line, "source, target") if _kind(path) == "tsv" else self._jsonl_pair(line)

    def _jsonl_pair(self, line: str) -> Entry:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            return f"is not JSON: {error}"
        # The layout of other libraries' data sets: {"translation": {"de": ..., "en": ...}}.
        if isinstance(record, dict) and isinstance(record.get("translation"), dict):
            record = record["translation"]
        source, target = (record.get(key) if isinstance(record, dict) else None for key in self._keys)
        if isinstance(source, str) and isinstance(target, str):
            return source, target
        needs = f"needs a text under each of the keys {self._keys}"
        if not isinstance(record, dict):
            return f"{needs}, is a {type(record).__name__}"
        if missing := [key for key in self._keys if key not in record]:
            has = ", ".join(map(str, record))
            return f"{needs}, has {has}; set data.source_language and data.target_language ({missing[0]} is missing)"
        key = self._keys[isinstance(source, str)]
        return f"{needs}, has {json.dumps(record[key])[:40]} under {key!r}"


class ColumnCorpus(TextCorpus):
    """Three columns, separated by tabs, one file per split in `data.corpus_folder`."""

    columns: ClassVar[str]  # their names, for messages

    def __init__(self, config: DataConfig, **names: str):
        """`names` are the names of the files of the splits."""
        if config.corpus_folder is None:
            raise BadInput(f"data.corpus_folder: must name the folder with the files of {config.corpus}")
        super().__init__({split: [(str(Path(config.corpus_folder, name)), None)] for split, name in names.items()})
        self._name = config.corpus

    @abstractmethod
    def example(self, split: str, *columns: str) -> Entry:
        """The pair, and in test splits the labels, of a line."""

    def identity(self) -> dict[str, Any]:
        self._read_checksums()
        checksums = {
            f"checksum of {split}": self._checksums[path]["sha256"] for split, [(path, _)] in self._files.items()
        }
        return {"corpus": self._name, **checksums}

    def entry(self, split: str, path: str, line: str) -> Entry:
        columns = columns_of(line, self.columns)
        return columns if isinstance(columns, str) else self.example(split, *columns)


class CogsCorpus(ColumnCorpus):
    """COGS (Kim and Linzen 2020): English sentences and their logical forms.

    train, dev (validation) and test from one distribution; `test_gen` has 21 categories of generalization.
    """

    columns = "sentence, logical form, category"

    def __init__(self, config: DataConfig):
        super().__init__(config, train="train.tsv", valid="dev.tsv", test="test.tsv", test_gen="gen.tsv")

    def example(self, split: str, *columns: str) -> Entry:
        sentence, logical_form, category = columns
        if split != "test_gen":
            return sentence, logical_form
        kind = "structural" if category in STRUCTURAL else "lexical"
        # The sentences of a category test one word or structure: they are not independent.
        return sentence, logical_form, {"category": category, "kind": kind, CLUSTER: category}


class InflectionCorpus(ColumnCorpus):
    """Morphological inflection, as in SIGMORPHON 2022 (task 0), of one language at one size.

    The source is the lemma, a tab and the features: `data.tokenizer=characters_and_tags`.

    Labels tell whether the lemma, and the set of features, occur in the training file that is used.
    """

    columns = "lemma, form, features"

    def __init__(self, config: DataConfig):
        language, size = config.task.language, config.task.size
        super().__init__(config, train=f"{language}_{size}.train", valid=f"{language}.dev", test=f"{language}.gold")

    def example(self, split: str, *columns: str) -> Entry:
        # Without spaces around them, as the task's own evaluation reads them.
        lemma, form, features = (column.strip() for column in columns)
        source = f"{lemma}\t{features}"
        if split == "train":
            return source, form
        lemmas, sets_of_features = self._in_training
        found = {"lemma": lemma in lemmas, "features": features in sets_of_features}
        # Forms of one lemma are not independent.
        return source, form, {name: "seen" if seen else "unseen" for name, seen in found.items()} | {CLUSTER: lemma}

    @functools.cached_property
    def _in_training(self) -> tuple[set[str], set[str]]:
        """The lemmas and the sets of features in the training file."""
        chunks = self.chunks("train", LINES_AT_ONCE)
        sources = [pair[0].split("\t") for chunk in chunks for pair in chunk.pairs if any(pair)]
        return {lemma for lemma, _ in sources}, {features for _, features in sources}


def _aligned(source: str, target: str, size: int) -> Iterator[Chunk]:
    """Line i of one file with line i of the other; files of different length are not translations of each other."""
    counts = [0, 0]
    # Up to the end of the longer file: its lines may be unreadable, which is then reported, and its length is.
    for left, right in read_aligned([source, target], size):
        counts = [counts[0] + len(left.lines), counts[1] + len(right.lines)]
        faults = {index: f"{side.place(index)}: {why}" for side in (right, left) for index, why in side.faults.items()}
        pairs = list(itertools.zip_longest(left.lines, right.lines, fillvalue=""))
        yield Chunk(pairs, visible(source), left.first_line, faults, target_origin=visible(target))
    if counts[0] != counts[1]:
        raise BadInput(f"{source} has {counts[0]:,} lines and {target} {counts[1]:,}: the numbers must be the same")


def columns_of(line: str, names: str) -> Any:
    """The columns of a line, or what is wrong with it."""
    columns = tuple(line.split("\t"))
    if len(columns) == names.count(",") + 1:
        return columns
    return f"has {len(columns)} column{'s' * (len(columns) > 1)}; must have, separated by tabs: {names}"


def _kind(path: str) -> str:
    name = path.removesuffix(".gz")
    return {"tsv": "tsv", "jsonl": "jsonl", "json": "jsonl"}.get(name.rpartition(".")[2], "lines")
