"""Parallel text in files: two aligned ones, or TSV or JSONL with both sides."""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from transformer_jax.config import DataConfig
from transformer_jax.data.corpora.corpus import Chunk, Corpus, Pair, text_fault
from transformer_jax.data.prepared import SIDES, sha256
from transformer_jax.errors import BadInput, visible
from transformer_jax.files.lines import Block, read_blocks, require_file


class FileCorpus(Corpus):
    """Two aligned text files per split, or TSV or JSONL files with both sides; several files are read in turn."""

    def __init__(self, config: DataConfig):
        if not config.source:
            raise BadInput("data.source: names no file; give data.source and data.target, or data.corpus")
        self._keys = (config.source_language or "source", config.target_language or "target")
        self._files: dict[str, list[tuple[str, str | None]]] = {}
        self._line_counts: Counter[str] = Counter()
        for split, prefix in (("train", ""), ("valid", "valid_"), ("test", "test_")):
            sources, targets = getattr(config, f"{prefix}source"), getattr(config, f"{prefix}target")
            if targets and not sources:
                raise BadInput(f"data.{prefix}source: names no file, but data.{prefix}target names {targets[0]}")
            for path in (*sources, *targets):
                require_file(path)
            if sources:
                self._files[split] = list(zip(sources, targets or [None] * len(sources), strict=True))
            for path in sources if not targets else ():
                if _kind(path) == "lines":
                    raise BadInput(
                        f"data.{prefix}target: names no file, and {path} is not a .tsv or .jsonl with both sides"
                    )
        self.splits = tuple(self._files)

    @classmethod
    def paths(cls, config: DataConfig) -> set[str]:
        options = (f"{prefix}{side}" for prefix in ("", "valid_", "test_") for side in SIDES)
        return {path for option in options for path in getattr(config, option)}

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
        paths = {path for pairs in self._files.values() for pair in pairs for path in pair if path}
        return {path: {"sha256": sha256(path), "bytes": os.path.getsize(path)} for path in sorted(paths)}

    def chunks(self, split: str, size: int) -> Iterator[Chunk]:
        for source, target in self._files[split]:
            pairs = 0
            for chunk in self._chunks_of(source, target, size):
                pairs += len(chunk.pairs)
                yield chunk
            self._line_counts |= Counter({path: pairs for path in (source, target) if path})

    def _chunks_of(self, source: str, target: str | None, size: int) -> Iterator[Chunk]:
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
    entries = (block.faults.get(index) or parse(line) for index, line in enumerate(block.lines))
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
