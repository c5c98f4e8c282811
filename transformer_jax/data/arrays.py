"""Sentence pairs as numbers: flat token arrays and where each sentence begins in them."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from transformer_jax.errors import BadInput

SIDES = ("source", "target")


@dataclasses.dataclass(frozen=True)
class TokenPairs:
    """An ordered collection of tokenised sentence pairs, in memory or memory-mapped from disk.

    Sentence i is tokens[offsets[i]:offsets[i + 1]], without any special token: <bos> and <eos> are added to a batch.
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
        """Maps the arrays of a split that `PairsWriter` wrote; `facts` are what it returned for them."""
        arrays = {name: _map(directory / f"{split}.{name}", facts[name]) for name in facts}
        for side in SIDES:
            tokens, offsets = arrays[f"{side}.tokens"], arrays[f"{side}.offsets"]
            if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(tokens):
                raise BadInput(f"{directory / f'{split}.{side}.offsets'}: does not fit its tokens; {PREPARE_AGAIN}")
        return cls(*(arrays[f"{side}.{part}"] for side in SIDES for part in ("tokens", "offsets")))


PREPARE_AGAIN = "remove the directory and prepare it again"


class PairsWriter:
    """Writes the arrays of one split, some sentences at a time."""

    def __init__(self, directory: Path, split: str, dtypes: dict[str, type[np.generic]]):
        self._tokens: dict[str, _ArrayFile] = {}
        self._offsets: dict[str, _ArrayFile] = {}
        self._lengths = dict.fromkeys(SIDES, 0)
        for side in SIDES:
            self._tokens[side] = _ArrayFile(directory / f"{split}.{side}.tokens", np.dtype(dtypes[side]))
            self._offsets[side] = _ArrayFile(directory / f"{split}.{side}.offsets", np.dtype(np.int64))
            self._offsets[side].append(np.zeros(1, np.int64))

    def append(self, side: str, tokens: np.ndarray, lengths: np.ndarray) -> None:
        """Adds sentences of one side: their tokens in a row and the length of each."""
        ends = np.cumsum(lengths, dtype=np.int64) + self._lengths[side]
        self._offsets[side].append(ends)
        self._tokens[side].append(tokens)
        self._lengths[side] += len(tokens)

    def close(self) -> dict[str, Any]:
        """Puts everything on the disk and returns what is needed to open and to check it."""
        facts = {}
        for side in SIDES:
            facts[f"{side}.tokens"] = self._tokens[side].close()
            facts[f"{side}.offsets"] = self._offsets[side].close()
        return facts


def token_dtype(vocab_size: int) -> type[np.generic]:
    return np.uint16 if vocab_size <= 1 << 16 else np.int32


def flatten(sentences: Sequence[Sequence[int]], dtype: type[np.generic]) -> tuple[np.ndarray, np.ndarray]:
    """Token lists as one array of tokens and one of lengths."""
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    tokens = np.fromiter(itertools.chain.from_iterable(sentences), dtype, int(lengths.sum()))
    return tokens, lengths


def verify(path: Path, sha256: str) -> None:
    """Reads a file through and compares it with the digest taken when it was written."""
    if not path.is_file():
        raise BadInput(f"{path}: is missing; {PREPARE_AGAIN}")
    with open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise BadInput(f"{path}: is damaged (its checksum is another than when it was written); {PREPARE_AGAIN}")


def load_arrays(path: Path, *names: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file: all, or these. It has a checksum of each, so that a flipped bit is found here."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in names or stored.files}
    except (ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        raise BadInput(f"{path}: is damaged; start again, and it is made anew") from None


class _ArrayFile:
    """A raw array on disk that grows, with its digest."""

    def __init__(self, path: Path, dtype: np.dtype):
        self._file: IO[bytes] = open(path, "wb")  # noqa: SIM115 (closed by close)
        self._dtype = dtype
        self._digest = hashlib.sha256()
        self._count = 0

    def append(self, values: np.ndarray) -> None:
        # Little-endian on every machine: a prepared directory may be moved.
        content = values.astype(self._dtype.newbyteorder("<"), copy=False).tobytes()
        self._file.write(content)
        self._digest.update(content)
        self._count += len(values)

    def close(self) -> dict[str, Any]:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return {"dtype": self._dtype.name, "count": self._count, "sha256": self._digest.hexdigest()}


def _map(path: Path, facts: dict[str, Any]) -> np.ndarray:
    dtype = np.dtype(facts["dtype"]).newbyteorder("<")
    if not path.is_file():
        raise BadInput(f"{path}: is missing; {PREPARE_AGAIN}")
    expected, found = facts["count"] * dtype.itemsize, path.stat().st_size
    if found != expected:
        raise BadInput(f"{path}: has {found:,} bytes where {expected:,} were written; {PREPARE_AGAIN}")
    if not expected:
        return np.zeros(0, dtype)  # an empty file cannot be mapped
    return np.memmap(path, dtype, mode="r")
