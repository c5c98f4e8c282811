"""Sentence pairs as numbers: flat token arrays and where each sentence begins in them."""

import dataclasses

import numpy as np


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
