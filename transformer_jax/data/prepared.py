"""A prepared corpus on disk: token arrays that are memory-mapped, tokenizers, reference texts, and a manifest."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from transformer_jax.data.tokenizer import Tokenizer, load_tokenizer
from transformer_jax.errors import BadInput
from transformer_jax.files.record import plain_name, read_record

MANIFEST = "manifest.json"
FORMAT = 1
OFFSET = np.dtype("<i8")
SIDES = ("source", "target")
# The label that examples share if they are not independent (forms of one lemma). Results are not reported by it.
CLUSTER = "cluster"
PREPARE_AGAIN = "remove the directory and prepare it again"


@dataclasses.dataclass(frozen=True)
class TokenPairs:
    """An ordered collection of tokenised sentence pairs, in memory or memory-mapped from disk.

    Sentence i is tokens[offsets[i]:offsets[i + 1]], without special tokens: batches add <bos> and <eos>.
    """

    source_tokens: np.ndarray
    source_offsets: np.ndarray
    target_tokens: np.ndarray
    target_offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.source_offsets) - 1

    @property
    def source_lengths(self) -> np.ndarray:
        return np.diff(self.source_offsets)

    @property
    def target_lengths(self) -> np.ndarray:
        return np.diff(self.target_offsets)

    @classmethod
    def open(cls, directory: Path, split: str, facts: dict[str, Any]) -> TokenPairs:
        """Maps the arrays of a split; `facts` are those of the manifest."""
        arrays = {name: _map(directory / f"{split}.{name}", facts[name]) for name in facts}
        for side in SIDES:
            tokens, offsets = arrays[f"{side}.tokens"], arrays[f"{side}.offsets"]
            if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(tokens):
                raise BadInput(f"{directory / f'{split}.{side}.offsets'}: does not fit its tokens; {PREPARE_AGAIN}")
        return cls(*(arrays[f"{side}.{part}"] for side in SIDES for part in ("tokens", "offsets")))


def token_dtype(vocab_size: int) -> np.dtype:
    """The type that token ids are stored as. Little-endian on every machine: a prepared directory may be moved."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<i4")


def flatten(sentences: Sequence[Sequence[int]], dtype: DTypeLike) -> tuple[np.ndarray, np.ndarray]:
    """Token lists as one array of tokens and one of lengths."""
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    tokens = np.fromiter(itertools.chain.from_iterable(sentences), dtype, int(lengths.sum()))
    return tokens, lengths


class SideWriter:
    """Writes one side of a split, sentence after sentence, as arrays of tokens and of offsets."""

    def __init__(self, stem: Path, vocab_size: int):
        self._dtype = token_dtype(vocab_size)
        self._paths = {name: Path(f"{stem}.{name}") for name in ("tokens", "offsets")}
        self._count = 0

    def __enter__(self) -> SideWriter:
        self._tokens, self._offsets = (open(path, "wb") for path in self._paths.values())  # noqa: SIM115
        self._offsets.write(bytes(OFFSET.itemsize))
        return self

    def __exit__(self, *error: object) -> None:
        self._tokens.close()
        self._offsets.close()

    def write(self, sentences: Sequence[Sequence[int]]) -> None:
        tokens, lengths = flatten(sentences, self._dtype)
        self._tokens.write(tokens.tobytes())
        self._offsets.write((np.cumsum(lengths) + self._count).astype(OFFSET).tobytes())
        self._count += len(tokens)

    def facts(self) -> dict[str, Any]:
        """What the manifest records of both arrays, once they are written."""
        dtypes = {"tokens": self._dtype, "offsets": OFFSET}
        return {name: _array_facts(path, dtypes[name]) for name, path in self._paths.items()}


def _array_facts(path: Path, dtype: np.dtype) -> dict[str, Any]:
    return {"dtype": dtype.name, "count": path.stat().st_size // dtype.itemsize, "sha256": sha256(path)}


def _map(path: Path, facts: dict[str, Any]) -> np.ndarray:
    dtype = np.dtype(facts["dtype"]).newbyteorder("<")
    _require(path)
    expected, found = facts["count"] * dtype.itemsize, path.stat().st_size
    if found != expected:
        raise BadInput(f"{path}: has {found:,} bytes where {expected:,} were written; {PREPARE_AGAIN}")
    if not expected:
        return np.zeros(0, dtype)  # an empty file cannot be mapped
    return np.memmap(path, dtype, mode="r")


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A corpus that `prepare` made. Opening it maps the arrays; nothing is read before it is used."""

    directory: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, directory: str | Path) -> Prepared:
        """The prepared corpus in a directory, refused if a file is missing, cut short, or from another preparation."""
        directory = Path(directory)
        prepared = cls(directory, read_manifest(directory))
        try:
            for split in prepared.splits:
                prepared.pairs(split)
            for name, path in prepared.tokenizer_files.items():
                _require(path, prepared.manifest["tokenizers"][name]["fingerprint"])
        except BadInput:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, IndexError):
            raise BadInput(f"{directory / MANIFEST}: is damaged; {PREPARE_AGAIN}") from None
        return prepared

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.manifest["splits"])

    def pairs(self, split: str) -> TokenPairs:
        return TokenPairs.open(self.directory, split, self._facts(split)["arrays"])

    def texts(self, split: str) -> tuple[list[str], list[str]]:
        """The sources and references of any split but train, as they were given: they never passed a tokenizer."""
        digest = self._facts(split).get("texts_sha256")
        if digest is None:
            raise BadInput(f"{self.directory}: texts are kept of every split but {split}")
        records = _read_records(texts_path(self.directory, split), digest)
        return [record["source"] for record in records], [record["target"] for record in records]

    def groups(self, split: str) -> list[dict[str, str]] | None:
        """The labels of each example, such as {"category": "cp_recursion"}; None if the corpus gives none."""
        labels = self._labels(split)
        return labels and [{key: label for key, label in each.items() if key != CLUSTER} for each in labels]

    def clusters(self, split: str) -> list[str] | None:
        """The cluster of each example, shared by those that are not independent (forms of one lemma), or None.

        Where only some have one, each of the others is one of its own.
        """
        labels = self._labels(split) or []
        alone = (f"\0{number}" for number in range(len(labels)))
        clusters = [each.get(CLUSTER, own) for each, own in zip(labels, alone, strict=True)]
        return clusters if any(CLUSTER in each for each in labels) else None

    def _labels(self, split: str) -> list[dict[str, str]] | None:
        digest = self._facts(split).get("groups_sha256")
        return None if digest is None else _read_records(groups_path(self.directory, split), digest)

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
        return {
            side: self.directory / plain_name(facts["file"], self.directory / MANIFEST)
            for side, facts in self.manifest["tokenizers"].items()
        }

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
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def summary(self) -> str:
        """What was prepared, what was left out and why, as text."""
        lines = [str(self.directory)]
        for split in self.splits:
            pairs, facts = self.pairs(split), self._facts(split)
            sizes = f"{len(pairs.source_tokens):,} source and {len(pairs.target_tokens):,} target tokens"
            lines.append(f"  {split}: {len(pairs):,} pairs, {sizes}")
            lines += [f"    {left_out}" for left_out in self.left_out(split)]
            for oddity, count in facts.get("oddities", {}).items():
                lines.append(f"    {oddity}: {count:,}")
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
        """Reads everything and refuses what has changed since it was written (opening only checks sizes)."""
        for split in self.splits:
            facts = self._facts(split)
            digests = {self.directory / f"{split}.{name}": array["sha256"] for name, array in facts["arrays"].items()}
            if split != "train":
                digests[texts_path(self.directory, split)] = facts["texts_sha256"]
            if "groups_sha256" in facts:
                digests[groups_path(self.directory, split)] = facts["groups_sha256"]
            for path, digest in digests.items():
                _require(path, digest)

    def _facts(self, split: str) -> dict[str, Any]:
        if split not in self.manifest["splits"]:
            raise BadInput(f"{self.directory}: has no split {split!r}; there are: {', '.join(self.splits)}")
        return self.manifest["splits"][split]


def read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    if not path.is_file():
        raise BadInput(
            f"{directory}: is not a prepared corpus (it has no {MANIFEST}); transformer-jax prepare makes one"
        )
    try:
        manifest = read_record(path)
        found = manifest["format"]
        parts = (manifest["recipe"]["options"], manifest["recipe"]["corpus"], manifest["splits"]["train"]["arrays"])
        if found == FORMAT and not all(isinstance(part, dict) for part in (*parts, *manifest["sources"])):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{path}: is damaged; {PREPARE_AGAIN}") from None
    if found != FORMAT:
        raise BadInput(f"{path}: has format {found}, this version reads {FORMAT}; {PREPARE_AGAIN}")
    return manifest


def texts_path(directory: Path, split: str) -> Path:
    return directory / f"{split}.texts.jsonl"


def groups_path(directory: Path, split: str) -> Path:
    return directory / f"{split}.groups.jsonl"


def _read_records(path: Path, digest: str) -> list[dict[str, str]]:
    """The JSON objects of a file, one a line."""
    _require(path, digest)
    return [json.loads(line) for line in path.read_bytes().decode().split("\n")[:-1]]


def _require(path: Path, digest: str | None = None) -> None:
    """Raises an error if a file is missing, or has another digest than this one."""
    if not path.is_file():
        raise BadInput(f"{path}: is missing; {PREPARE_AGAIN}")
    if digest is not None and sha256(path) != digest:
        raise BadInput(f"{path}: is damaged (its checksum has changed); {PREPARE_AGAIN}")


def sha256(path: str | Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
