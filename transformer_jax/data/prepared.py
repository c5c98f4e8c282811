"""A prepared corpus on disk: token arrays that are memory-mapped, tokenizers, reference texts, and a manifest."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import DTypeLike

from transformer_jax.data.tokenizer import Tokenizer, load_tokenizer
from transformer_jax.errors import BadInput
from transformer_jax.files.digests import file_sha256, json_sha256
from transformer_jax.files.paths import inside
from transformer_jax.files.record import read_record, typed

MANIFEST = "manifest.json"
TEXTS, LABELS = "texts.jsonl", "groups.jsonl"  # the ends of the names of a split's files
FORMAT = 1
OFFSET = np.dtype("<i8")
# Types of token arrays. Others of a manifest are errors: an array of objects would hold pointers.
TOKENS = {dtype.name: dtype for dtype in (np.dtype("<u2"), np.dtype("<i4"))}
SIDES = ("source", "target")
# The label that examples share if they are not independent (forms of one lemma). Results are not reported by it.
CLUSTER = "cluster"


class ArrayFacts(TypedDict):
    dtype: str
    count: int
    sha256: str


class SplitFacts(TypedDict):
    arrays: NotRequired[dict[str, ArrayFacts]]
    texts_sha256: NotRequired[str]
    groups_sha256: NotRequired[str]
    rejected: NotRequired[dict[str, dict[str, Any]]]


class TokenizerFacts(TypedDict):
    file: str
    vocab_size: int
    fingerprint: str
    same_tokens: NotRequired[bool]


class Manifest(TypedDict):
    """What is read of the manifest."""

    recipe: dict[str, Any]
    sources: list[dict[str, Any]]
    splits: dict[str, SplitFacts]
    tokenizers: dict[str, TokenizerFacts]


def _damaged(path: Path) -> BadInput:
    return BadInput(f"{path}: is missing or damaged; remove the directory and prepare it again")


@dataclasses.dataclass(frozen=True)
class TokenPairs:
    """An ordered collection of tokenised sentence pairs, in memory or memory-mapped from disk.

    Sentence i is tokens[offsets[i]:offsets[i + 1]], without special tokens: batches add <bos> and <eos>.
    """

    source_tokens: np.ndarray
    source_offsets: np.ndarray
    target_tokens: np.ndarray
    target_offsets: np.ndarray
    load_tokenizers: Callable[[], tuple[Tokenizer, Tokenizer]] | None = dataclasses.field(default=None, kw_only=True)

    def __len__(self) -> int:
        return len(self.source_offsets) - 1

    def side(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens and offsets of the source, 0, or of the target, 1."""
        sides = (self.source_tokens, self.source_offsets), (self.target_tokens, self.target_offsets)
        return sides[number]

    @property
    def source_lengths(self) -> np.ndarray:
        return np.diff(self.source_offsets)

    @property
    def target_lengths(self) -> np.ndarray:
        return np.diff(self.target_offsets)


def flatten(sentences: Sequence[Sequence[int]], dtype: DTypeLike) -> tuple[np.ndarray, np.ndarray]:
    """Token lists as one array of tokens and one of lengths."""
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    tokens = np.fromiter(itertools.chain.from_iterable(sentences), dtype, int(lengths.sum()))
    return tokens, lengths


def write_arrays(stem: str, blocks: Iterable[Sequence[Sequence[int]]], vocab_size: int) -> dict[str, Any]:
    """Writes one side of a split as arrays of tokens and of offsets; returns what the manifest records of them."""
    # Little-endian on every machine: a prepared directory may be moved.
    dtypes = {"tokens": TOKENS["uint16" if vocab_size <= 1 << 16 else "int32"], "offsets": OFFSET}
    count = 0
    with open(f"{stem}.tokens", "wb") as tokens_file, open(f"{stem}.offsets", "wb") as offsets_file:
        offsets_file.write(bytes(OFFSET.itemsize))
        for sentences in blocks:
            tokens, lengths = flatten(sentences, dtypes["tokens"])
            tokens_file.write(tokens.tobytes())
            offsets_file.write((np.cumsum(lengths) + count).astype(OFFSET).tobytes())
            count += len(tokens)
    facts = {}
    for name, dtype in dtypes.items():
        path = Path(f"{stem}.{name}")
        facts[name] = {
            "dtype": dtype.name,
            "count": path.stat().st_size // dtype.itemsize,
            "sha256": file_sha256(path),
        }
    return facts


def _map(path: Path, facts: ArrayFacts) -> np.ndarray:
    known = {OFFSET.name: OFFSET} if path.suffix == ".offsets" else TOKENS
    if facts["dtype"] not in known:
        raise BadInput(f"{path}: is an array of {facts['dtype'][:40]}; must be of {' or '.join(known)}")
    dtype = known[facts["dtype"]]
    if not path.is_file() or path.stat().st_size != facts["count"] * dtype.itemsize:
        raise _damaged(path)
    # An empty file cannot be mapped.
    return np.memmap(path, dtype, mode="r") if facts["count"] else np.zeros(0, dtype)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A corpus that `prepare` made. Opening it maps the arrays; nothing is read before it is used."""

    directory: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, directory: str | Path) -> Prepared:
        """The prepared corpus in a directory. Sizes and tokenizers are checked here, and everything by `verify`."""
        prepared = cls(Path(directory), read_manifest(Path(directory)))
        for split in prepared.splits:
            prepared.pairs(split)
        for side, path in prepared.tokenizer_files.items():
            _require(path, prepared.manifest["tokenizers"][side]["fingerprint"])
        return prepared

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.manifest["splits"])

    def pairs(self, split: str) -> TokenPairs:
        facts = self._facts(split)["arrays"]
        names = [f"{side}.{array}" for side in SIDES for array in ("tokens", "offsets")]
        if missing := [name for name in names if name not in facts]:
            raise BadInput(f"{self.directory / MANIFEST}: is damaged: {split!r} has no {missing[0]}")
        arrays = [_map(self._file(f"{split}.{name}"), facts[name]) for name in names]
        pairs = TokenPairs(*arrays, load_tokenizers=lambda: (self.tokenizer, self.target_tokenizer))
        sides = pairs.side(0), pairs.side(1)
        fits = all(len(offsets) and (offsets[0], offsets[-1]) == (0, len(tokens)) for tokens, offsets in sides)
        if not fits or len(pairs.source_offsets) != len(pairs.target_offsets):
            raise _damaged(self._file(f"{split}.source.offsets"))
        return pairs

    def texts(self, split: str) -> tuple[list[str], list[str]]:
        """The sources and references of any split but train, as they were given: they never passed a tokenizer."""
        digest = self._facts(split, "texts_sha256")["texts_sha256"]
        records = _read_records(self._file(f"{split}.{TEXTS}"), digest, {"source", "target"})
        return [record["source"] for record in records], [record["target"] for record in records]

    def groups(self, split: str) -> list[dict[str, str]] | None:
        """The labels of each example, such as {"category": "cp_recursion"}; None if the corpus gives none."""
        labels = self._labels(split)
        return labels and [{key: label for key, label in each.items() if key != CLUSTER} for each in labels]

    def clusters(self, split: str) -> list[str] | None:
        """The cluster of each example, shared by those that are not independent (forms of one lemma), or None.

        Where only some have one, each of the others is a separate cluster.
        """
        labels = self._labels(split) or []
        clusters = [each.get(CLUSTER, f"\0{number}") for number, each in enumerate(labels)]
        return clusters if any(CLUSTER in each for each in labels) else None

    def _labels(self, split: str) -> list[dict[str, str]] | None:
        digest = self._facts(split).get("groups_sha256")
        return None if digest is None else _read_records(self._file(f"{split}.{LABELS}"), digest)

    def texts_digest(self, split: str) -> str:
        """The digest of a split's texts; "" if there is no such split."""
        return self.manifest["splits"].get(split, {}).get("texts_sha256", "")

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.tokenizer_files["source"])

    @functools.cached_property
    def target_tokenizer(self) -> Tokenizer:
        """The source's tokenizer if they share one vocabulary."""
        files = self.tokenizer_files
        return load_tokenizer(files["target"]) if "target" in files else self.tokenizer

    @property
    def tokenizer_files(self) -> dict[str, Path]:
        """By side; only the source's where one tokenizer serves both."""
        return {side: self._file(facts["file"]) for side, facts in self.manifest["tokenizers"].items()}

    @property
    def vocab_size(self) -> int:
        return self.manifest["tokenizers"]["source"]["vocab_size"]

    @property
    def target_vocab_size(self) -> int | None:
        """None where source and target share one tokenizer."""
        return self.manifest["tokenizers"].get("target", {}).get("vocab_size")

    @property
    def same_tokens(self) -> bool:
        """Whether source and target have one vocabulary, segmented by one tokenizer or by two."""
        return self.manifest["tokenizers"].get("target", {"same_tokens": True}).get("same_tokens", False)

    @property
    def fingerprint(self) -> str:
        """Equal for equal tokens under equal tokenizers, wherever they are and whatever they were made from."""
        content = {
            "tokenizers": {name: facts["fingerprint"] for name, facts in self.manifest["tokenizers"].items()},
            "splits": {split: self._facts(split)["arrays"] for split in self.splits},
        }
        return json_sha256(content)

    def summary(self) -> str:
        """A summary as text: what was prepared, what was left out and why."""
        lines = [str(self.directory)]
        for split in self.splits:
            pairs = self.pairs(split)
            sizes = f"{len(pairs.source_tokens):,} source and {len(pairs.target_tokens):,} target tokens"
            lines.append(f"  {split}: {len(pairs):,} pairs, {sizes}")
            lines += [f"    {left_out}" for left_out in self.left_out(split)]
        target = "" if self.target_vocab_size is None else f" source and {self.target_vocab_size:,} target"
        lines.append(f"  vocabulary: {self.vocab_size:,}{target} tokens")
        return "\n".join(lines)

    def left_out(self, split: str) -> list[str]:
        """How many pairs of the text were left out for each reason, and where the first of them are."""
        return [
            f"left out: {rejected['pairs']:,} {reason} (first: {', '.join(rejected['first'][:3])})"
            for reason, rejected in self._facts(split).get("rejected", {}).items()
        ]

    def verify(self) -> None:
        """Reads every file; raises an error if one has changed since it was written."""
        for split in self.splits:
            facts = self._facts(split)
            for name, array in facts["arrays"].items():
                _require(self._file(f"{split}.{name}"), array["sha256"])
            if "texts_sha256" in facts:
                _require(self._file(f"{split}.{TEXTS}"), facts["texts_sha256"])
            if "groups_sha256" in facts:
                _require(self._file(f"{split}.{LABELS}"), facts["groups_sha256"])

    def _file(self, name: str) -> Path:
        return inside(self.directory, name, self.directory / MANIFEST)

    def _facts(self, split: str, needed: str = "arrays") -> dict[str, Any]:
        having = {name: facts for name, facts in self.manifest["splits"].items() if needed in facts}
        if split not in having:
            what = "texts of the split" if needed == "texts_sha256" else "split"
            raise BadInput(f"{self.directory}: has no {what} {split!r}; there are: {', '.join(having) or 'none'}")
        return having[split]


def read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    manifest = read_record(path) if path.is_file() else {}
    if manifest.get("format") != FORMAT:
        raise BadInput(
            f"{directory}: holds no prepared data (no {MANIFEST} that this version reads): move it back there, or make "
            "it again: transformer-jax prepare --config=FILE.py --workdir=RUN, with the options of its run"
        )
    typed(manifest, Manifest, path)
    if "source" not in manifest["tokenizers"]:
        raise BadInput(f"{path}: is damaged: it has no tokenizer of the source")
    return manifest


def _read_records(path: Path, digest: str, needed: Collection[str] = ()) -> list[dict[str, str]]:
    """The JSON objects of a file, one a line: texts by name."""
    _require(path, digest)
    try:
        records = [json.loads(line) for line in path.read_bytes().decode().split("\n")[:-1]]
    except (ValueError, RecursionError):
        raise _damaged(path) from None
    typed(records, list[dict[str, str]], path)
    if not all(record.keys() >= set(needed) for record in records):
        raise _damaged(path)
    return records


def _require(path: Path, digest: str) -> None:
    """Raises an error if a file is missing, or has another digest than this one."""
    if not path.is_file() or file_sha256(path) != digest:
        raise _damaged(path)
