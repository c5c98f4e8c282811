"""A batch as arrays, and the one place where token ids are laid into them.

Nothing here loops over sentences: a side of a batch is one gather from the flat tokens and one scatter into the array,
whether a row holds one sentence (buckets, evaluation) or many (packing).
"""

from typing import NamedTuple

import numpy as np

from transformer_jax.data.arrays import TokenPairs
from transformer_jax.data.tokenizer import BOS, EOS, PAD


class Shape(NamedTuple):
    """The static shape of a batch: its rows, and the tokens that a row has room for on either side."""

    rows: int
    source: int
    target: int

    def __str__(self) -> str:
        return f"{self.rows} x ({self.source}, {self.target})"


class Batch(NamedTuple):
    """One step's sentences, all int32; positions in the loss are those where target_output is not <pad>.

    The segments and positions stand in packed batches only. A row's segments count from 1, and 0 is padding; segment k
    of a source row is translated by segment k of the same target row; positions begin at 0 in every segment.

    The pair_index stands in evaluation batches only: the number of each row's sentence pair, and -1 for an empty row.
    """

    source: np.ndarray  # B S: ids <eos>
    target_input: np.ndarray  # B T: <bos> ids
    target_output: np.ndarray  # B T: ids <eos>
    source_segments: np.ndarray | None = None
    source_positions: np.ndarray | None = None
    target_segments: np.ndarray | None = None
    target_positions: np.ndarray | None = None
    pair_index: np.ndarray | None = None  # B


def assemble(pairs: TokenPairs, members: np.ndarray, row_sizes: np.ndarray, shape: Shape, *, packed: bool) -> Batch:
    """The batch whose row r holds the next row_sizes[r] of the members (numbers of pairs); further rows are empty."""
    row_of = np.repeat(np.arange(len(row_sizes)), row_sizes)
    first_of_row = np.repeat(np.cumsum(row_sizes) - row_sizes, row_sizes)
    source = _Side(pairs.source_tokens, pairs.source_offsets, members, row_of, first_of_row, (shape.rows, shape.source))
    target = _Side(pairs.target_tokens, pairs.target_offsets, members, row_of, first_of_row, (shape.rows, shape.target))
    batch = Batch(
        source=source.laid_out(source.ids, PAD),
        target_input=target.laid_out(target.shifted_ids(), PAD),
        target_output=target.laid_out(target.ids, PAD),
    )
    if not packed:
        return batch
    segments = np.arange(len(members)) - first_of_row + 1
    return batch._replace(
        source_segments=source.laid_out(np.repeat(segments, source.lengths), 0),
        source_positions=source.laid_out(source.positions, 0),
        target_segments=target.laid_out(np.repeat(segments, target.lengths), 0),
        target_positions=target.laid_out(target.positions, 0),
    )


class _Side:
    """The sentences of one side of a batch, one after the other, <eos> included, and the cell of each token."""

    def __init__(
        self,
        tokens: np.ndarray,
        offsets: np.ndarray,
        members: np.ndarray,
        row_of: np.ndarray,
        first_of_row: np.ndarray,
        array_shape: tuple[int, int],
    ):
        begins = offsets[members].astype(np.int64)
        self.lengths = offsets[members + 1] - begins + 1
        ends = np.cumsum(self.lengths)
        self._starts = ends - self.lengths
        self._array_shape = array_shape

        self.positions = np.arange(self.lengths.sum()) - np.repeat(self._starts, self.lengths)
        columns = self._starts - self._starts[first_of_row]
        self._cells = np.repeat(row_of * array_shape[1] + columns, self.lengths) + self.positions

        is_token = np.ones(len(self.positions), bool)
        is_token[ends - 1] = False
        self.ids = np.full(len(self.positions), EOS, np.int32)
        self.ids[is_token] = tokens[(np.repeat(begins, self.lengths) + self.positions)[is_token]]

    def shifted_ids(self) -> np.ndarray:
        """The decoder's input: each sentence moved by one token to the right, behind <bos>."""
        ids = np.empty_like(self.ids)
        ids[1:] = self.ids[:-1]
        ids[self._starts] = BOS
        return ids

    def laid_out(self, values: np.ndarray, empty: int) -> np.ndarray:
        array = np.full(self._array_shape[0] * self._array_shape[1], empty, np.int32)
        array[self._cells] = values
        return array.reshape(self._array_shape)
