"""Batches: a pure function of (prepared pairs, settings, order seed, step), with no iterator to save or to restore.

Each epoch has a plan: the order of the pairs, cut into rows and the rows into batches. It follows from the lengths, the
settings and (seed, epoch) alone. Any process makes the batch of any step from it, and reads only its own rows' tokens.
"""

import dataclasses
import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from transformer_jax.config import DataConfig
from transformer_jax.data.buckets import Buckets, Shape, choose_buckets, even_rows, rows_within
from transformer_jax.data.packing import pack, row_widths
from transformer_jax.data.prepared import SIDES, TokenPairs, flatten
from transformer_jax.data.subword_sampling import SubwordSampler
from transformer_jax.data.tokenizer import BOS, EOS, PAD, SentencePieceTokenizer
from transformer_jax.errors import BadInput

# Evaluation has one shape, and one more for each eight batches that one shape would need, at most eight in all. A
# smaller shape saves a part of each batch, and compiling it takes as long as ten batches of base, more of small models.
BATCHES_OF_A_SHAPE, MOST_SHAPES = 8, 8


class Batch(NamedTuple):
    """The sentences of one step, all int32; the loss counts the positions where target_output is not <pad>.

    Only packed batches have segments and positions. A row's segments count from 1, and 0 is padding; segment k of a
    source row is translated by segment k of the same target row; positions start at 0 in every segment. Without
    segments the padding of a row is at its end: elsewhere, fused attention gives NaN.
    """

    source: np.ndarray  # B S: ids <eos>
    target_input: np.ndarray  # B T: <bos> ids
    target_output: np.ndarray  # B T: ids <eos>
    source_segments: np.ndarray | None = None
    source_positions: np.ndarray | None = None
    target_segments: np.ndarray | None = None
    target_positions: np.ndarray | None = None
    pair_index: np.ndarray | None = None  # B, in evaluation batches only: the number of each row's pair, -1 if empty


class Plan(NamedTuple):
    """One pass over the pairs: row r holds members[row_starts[r]:row_starts[r + 1]], numbers of pairs."""

    members: np.ndarray
    row_starts: np.ndarray
    batches: np.ndarray  # of each its first row, the end of its rows, and the number of its shape


@dataclasses.dataclass(frozen=True)
class BatchStatistics:
    """Exact statistics of an epoch of batches, the same for every epoch."""

    pairs: int
    dropped: int
    steps_per_epoch: int
    shapes: tuple[tuple[Shape, int], ...]  # with the number of batches of each per epoch
    source_tokens: int
    target_tokens: int
    longest_target: int  # <eos> included, as in the counts of tokens
    share: float  # of the cells of both sides, those that are not padding

    def __str__(self) -> str:
        source, target = self.source_tokens / self.steps_per_epoch, self.target_tokens / self.steps_per_epoch
        lines = [
            f"{self.pairs:,} pairs per epoch in {self.steps_per_epoch:,} batches; {self.dropped:,} dropped as too long",
            f"tokens per batch: {source:,.0f} source, {target:,.0f} target; not padding: {self.share:.1%}",
        ]
        return "\n".join(lines + [f"  {count:>7,} batches of {shape}" for shape, count in self.shapes])


class _Batches:
    """The pairs, their lengths with <eos>, and cutting a batch out of a plan: common to training and evaluation."""

    def __init__(self, pairs: TokenPairs, row_multiple: int):
        if not len(pairs):
            raise BadInput("there are no sentence pairs")
        self._pairs = pairs
        self._row_multiple = row_multiple
        self._source_lengths = pairs.source_lengths + 1
        self._target_lengths = pairs.target_lengths + 1
        self.shapes: tuple[Shape, ...] = ()

    def _cut(self, plan: Plan, number: int, shards: Sequence[int], of: int) -> tuple[np.ndarray, np.ndarray, Shape]:
        """The pairs in these shards (ascending numbers) of a batch of the plan, the number in each row, and the shape.

        Empty rows follow the real ones until their number is a multiple of `row_multiple`, itself a multiple of `of`:
        so a real row has the same number whatever `of` is.
        """
        first, end, shape_number = plan.batches[number].tolist()
        shape = self.shapes[shape_number]
        rows = _rounded_up(shape.rows, self._row_multiple) // of
        begins = [min(first + shard * rows, end) for shard in shards]
        starts = [plan.row_starts[begin : min(begin + rows, end) + 1] for begin in begins]
        members = np.concatenate([plan.members[each[0] : each[-1]] for each in starts])
        sizes = np.concatenate([np.diff(each) for each in starts])
        return members, sizes, shape._replace(rows=rows * len(shards))


class TrainingBatches(_Batches, ABC):
    """Shuffled batches within a budget of tokens per side (rows that only fill up devices apart).

    Every pair is in exactly one batch of an epoch. A pair with more than max_length tokens on a side, <eos> included,
    is dropped and counted.
    """

    _packed = False

    def __init__(
        self,
        pairs: TokenPairs,
        *,
        tokens_per_batch: int,
        max_length: int,
        seed: int,
        num_shapes: int = 8,
        row_multiple: int = 1,
        samplers: Sequence[SubwordSampler] = (),
    ):
        super().__init__(pairs, row_multiple)
        longer_side = np.maximum(self._source_lengths, self._target_lengths)
        self._kept = np.flatnonzero(longer_side <= max_length).astype(np.int32)
        self.dropped = len(pairs) - len(self._kept)
        if not len(self._kept):
            raise BadInput(
                f"data.max_length = {max_length} leaves none of the {len(pairs)} sentence pairs: "
                f"the shortest has {longer_side.min()} tokens, <eos> included"
            )
        _check_budget(tokens_per_batch, int(longer_side[self._kept].max()), "training sentence")
        self._seed = seed
        self._plan_of = functools.lru_cache(maxsize=2)(self._make_plan)
        limit, self._samplers = min(max_length, tokens_per_batch), samplers
        # The tokens that are planned for each pair, <eos> included: those it has, or may have in another segmentation.
        self._room = [self._source_lengths, self._target_lengths]
        for side, sampler in enumerate(samplers):
            grown = np.ceil(sampler.growth(*pairs.side(side)) * self._room[side]).astype(np.int64)
            self._room[side] = np.maximum(np.minimum(grown, limit), self._room[side])
        self._planned = [room[self._kept] for room in self._room]
        self._batches_of_shape = self._lay_out(tokens_per_batch, limit, num_shapes)
        self.steps_per_epoch = sum(self._batches_of_shape)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: without the plans, which are made again."""
        return {name: value for name, value in vars(self).items() if name != "_plan_of"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._plan_of = functools.lru_cache(maxsize=2)(self._make_plan)

    @abstractmethod
    def _lay_out(self, tokens_per_batch: int, limit: int, num_shapes: int) -> tuple[int, ...]:
        """Sets what all epochs have in common, `shapes` among it; returns the number of batches of each shape."""

    @abstractmethod
    def _plan(self, rng: np.random.Philox) -> Plan:
        """The pairs dealt for one epoch."""

    def batch(self, step: int, shards: Sequence[int] = (0,), of: int = 1) -> Batch:
        """The rows of these shards (ascending numbers) of a step's batch; the rows of all shards are the batch."""
        epoch, number = divmod(step, self.steps_per_epoch)
        members, sizes, shape = self._cut(self._plan_of(epoch), number, shards, of)
        pairs, numbers = self._resampled(members, epoch) if self._samplers else (self._pairs, members)
        return assemble(pairs, numbers, sizes, shape, packed=self._packed)

    def _resampled(self, members: np.ndarray, epoch: int) -> tuple[TokenPairs, np.ndarray]:
        """New segmentations of these pairs, and the numbers that they have there."""
        arrays = []
        for side, (sampler, room) in enumerate(zip(self._samplers, self._room, strict=True)):
            (tokens, offsets), sentences = self._pairs.side(side), []
            for number in members.tolist():
                stored = tokens[offsets[number] : offsets[number + 1]].tolist()
                sample = sampler(stored, f"{self._seed} {epoch} {number} {SIDES[side]}")
                sentences.append(sample if len(sample) < room[number] else stored)
            flat, lengths = flatten(sentences, np.int32)
            arrays += [flat, np.concatenate([[0], np.cumsum(lengths)])]
        return TokenPairs(*arrays), np.arange(len(members))

    def first_of_each_shape(self, first: int, last: int) -> list[int]:
        """The step from `first` on, before `last`, at which each shape comes first; in order."""
        found: dict[int, int] = {}
        for step in range(first, min(last, first + 2 * self.steps_per_epoch)):  # a whole epoch has all of them
            epoch, number = divmod(step, self.steps_per_epoch)
            found.setdefault(int(self._plan_of(epoch).batches[number, 2]), step)
            if len(found) == len(self.shapes):
                break
        return list(found.values())

    def statistics(self) -> BatchStatistics:
        """Statistics of the batches as they are trained on, with the rows added for devices and accumulation."""
        shapes = [shape._replace(rows=_rounded_up(shape.rows, self._row_multiple)) for shape in self.shapes]
        counted = tuple(zip(shapes, self._batches_of_shape, strict=True))
        source_lengths, target_lengths = self._source_lengths[self._kept], self._target_lengths[self._kept]
        source_tokens, target_tokens = int(source_lengths.sum()), int(target_lengths.sum())
        cells = sum(n * shape.rows * (shape.source + shape.target) for shape, n in counted)
        return BatchStatistics(
            pairs=len(self._kept),
            dropped=self.dropped,
            steps_per_epoch=self.steps_per_epoch,
            shapes=counted,
            source_tokens=source_tokens,
            target_tokens=target_tokens,
            longest_target=int(target_lengths.max()),
            share=(source_tokens + target_tokens) / cells,
        )

    @property
    def digest(self) -> str:
        """Equal digests mean equal batches if the tokens are equal; a resumed run compares it."""
        sampled = [sampler.settings for sampler in self._samplers]
        settings = (type(self).__name__, self.shapes, self._batches_of_shape, self._seed, *sampled)
        digest = hashlib.sha256(repr(settings).encode())
        for lengths in (self._kept, *self._planned):
            digest.update(np.ascontiguousarray(lengths, "<i8").data)
        return digest.hexdigest()

    def _make_plan(self, epoch: int) -> Plan:
        return self._plan(np.random.Philox(np.random.SeedSequence((self._seed, epoch))))


class BucketBatches(TrainingBatches):
    """The paper's batches (section 5.1): pairs of similar length together, in at most `num_shapes` static shapes."""

    def _lay_out(self, tokens_per_batch: int, limit: int, num_shapes: int) -> tuple[int, ...]:
        self._buckets = choose_buckets(
            *self._planned, limit=limit, tokens_per_batch=tokens_per_batch, num_shapes=num_shapes
        )
        self.shapes = self._buckets.shapes
        return self._buckets.batches

    def _plan(self, rng: np.random.Philox) -> Plan:
        plan = _bucket_plan(self._buckets, _shuffled(len(self._kept), rng))
        mixed = _shuffled(self.steps_per_epoch, rng)
        return plan._replace(members=self._kept[plan.members], batches=plan.batches[mixed])


class PackedBatches(TrainingBatches):
    """Many pairs in a row, separated by segment ids; one static shape.

    Which *lengths* share a row is decided once; each epoch deals the pairs of these lengths to the rows again, and the
    rows to the batches. So every epoch has the same number of batches, and planning one costs two sorts.
    """

    _packed = True

    def _lay_out(self, tokens_per_batch: int, limit: int, num_shapes: int) -> tuple[int, ...]:
        source_lengths, target_lengths = self._planned
        source_width, target_width = row_widths(source_lengths, target_lengths, limit)
        self._packs = pack(source_lengths, target_lengths, source_width, target_width)
        self._num_rows = len(self._packs.starts) - 1
        rows = even_rows(self._num_rows, rows_within(tokens_per_batch, source_width, target_width))
        self.shapes = (Shape(rows, source_width, target_width),)
        self._lengths_key = source_lengths * (limit + 1) + target_lengths
        self._by_lengths = np.argsort(self._lengths_key, kind="stable").astype(np.int32)
        return (-(-self._num_rows // rows),)

    def _plan(self, rng: np.random.Philox) -> Plan:
        shuffled = _shuffled(len(self._kept), rng)
        # Both sides of this assignment run through the same lengths in the same order, the right one shuffled.
        substitute = np.empty_like(self._by_lengths)
        substitute[self._by_lengths] = shuffled[np.argsort(self._lengths_key[shuffled], kind="stable")]

        mixed = _shuffled(self._num_rows, rng)
        sizes = np.diff(self._packs.starts)[mixed]
        row_starts = np.concatenate([[0], np.cumsum(sizes)])
        places = np.repeat(self._packs.starts[mixed] - row_starts[:-1], sizes) + np.arange(row_starts[-1])
        members = self._kept[substitute[self._packs.members[places]]]
        return Plan(members, row_starts, _batches_of_rows(0, self._num_rows, self.shapes[0].rows, 0))


def training_batches(config: DataConfig, pairs: TokenPairs, row_multiple: int = 1) -> TrainingBatches:
    """The training batches of a config."""
    samplers: list[SubwordSampler] = []
    if config.subword_sampling is not None and config.trains_tokenizer and pairs.load_tokenizers is not None:
        for tokenizer in cast(Sequence[SentencePieceTokenizer], pairs.load_tokenizers()):
            samplers.append(SubwordSampler(tokenizer, config.tokenizer, config.subword_sampling))
    return (PackedBatches if config.batching == "packing" else BucketBatches)(
        pairs,
        tokens_per_batch=config.tokens_per_batch,
        max_length=config.max_length,
        seed=config.seed if config.order_seed is None else config.order_seed,
        num_shapes=config.num_shapes,
        row_multiple=row_multiple,
        samplers=samplers,
    )


class EvaluationBatches(_Batches):
    """Every sentence pair exactly once, in batches of similar length; none is dropped.

    `pair_index` restores the order: result[batch.pair_index[row]] belongs to that row, unless it is -1.
    """

    def __init__(self, pairs: TokenPairs, *, tokens_per_batch: int, row_multiple: int = 1):
        super().__init__(pairs, row_multiple)
        longest = int(max(self._source_lengths.max(), self._target_lengths.max()))
        _check_budget(tokens_per_batch, longest, "sentence to evaluate, which data.max_length does not limit")
        of_one_shape = len(pairs) // rows_within(tokens_per_batch, longest, longest)
        buckets = choose_buckets(
            self._source_lengths,
            self._target_lengths,
            limit=longest,  # a model's positions may end there
            tokens_per_batch=tokens_per_batch,
            num_shapes=min(1 + of_one_shape // BATCHES_OF_A_SHAPE, MOST_SHAPES),
        )
        self.shapes = buckets.shapes
        self._plan = _bucket_plan(buckets, np.arange(len(pairs), dtype=np.int32))

    def __len__(self) -> int:
        return len(self._plan.batches)

    def __iter__(self) -> Iterator[Batch]:
        return map(self.batch, range(len(self)))

    def first_of_each_shape(self) -> list[int]:
        """The number of the first batch of each shape."""
        return np.unique(self._plan.batches[:, 2], return_index=True)[1].tolist()

    def batch(self, number: int, shards: Sequence[int] = (0,), of: int = 1) -> Batch:
        members, sizes, shape = self._cut(self._plan, number, shards, of)
        batch = assemble(self._pairs, members, sizes, shape, packed=False)
        pair_index = np.full(len(batch.source), -1, np.int32)
        pair_index[: len(members)] = members
        return batch._replace(pair_index=pair_index)


def assemble(pairs: TokenPairs, members: np.ndarray, row_sizes: np.ndarray, shape: Shape, *, packed: bool) -> Batch:
    """The batch whose row r holds the next row_sizes[r] of the members (numbers of pairs); further rows are empty.

    No loop over sentences: a side is one gather from the flat tokens and one scatter into the array, whether a row
    holds one sentence or many.
    """
    row_of = np.repeat(np.arange(len(row_sizes)), row_sizes)
    first_of_row = np.repeat(np.cumsum(row_sizes) - row_sizes, row_sizes)

    def side(tokens: np.ndarray, offsets: np.ndarray, width: int, *, is_target: bool) -> list[np.ndarray]:
        """The target's input ids (after <bos>), the ids (before <eos>), and segments and positions if packed."""
        begins = offsets[members].astype(np.int64)
        lengths = offsets[members + 1] - begins + 1
        ends = np.cumsum(lengths)
        starts = ends - lengths
        positions = np.arange(lengths.sum()) - np.repeat(starts, lengths)
        cells = np.repeat(row_of * width + starts - starts[first_of_row], lengths) + positions

        is_token = np.ones(len(positions), bool)
        is_token[ends - 1] = False
        ids = np.full(len(positions), EOS, np.int32)
        ids[is_token] = tokens[(np.repeat(begins, lengths) + positions)[is_token]]

        def laid_out(values: np.ndarray, padding: int) -> np.ndarray:
            array = np.full(shape.rows * width, padding, np.int32)
            array[cells] = values
            return array.reshape(shape.rows, width)

        arrays = [laid_out(ids, PAD)]
        if is_target:
            shifted = np.empty_like(ids)
            shifted[1:] = ids[:-1]
            shifted[starts] = BOS
            arrays.insert(0, laid_out(shifted, PAD))
        if packed:
            segments = np.arange(len(members)) - first_of_row + 1
            arrays += [laid_out(np.repeat(segments, lengths), 0), laid_out(positions, 0)]
        return arrays

    source, *source_places = side(pairs.source_tokens, pairs.source_offsets, shape.source, is_target=False)
    target_input, target_output, *target_places = side(
        pairs.target_tokens, pairs.target_offsets, shape.target, is_target=True
    )
    return Batch(source, target_input, target_output, *source_places, *target_places)


def _rounded_up(rows: int, multiple: int) -> int:
    return rows + -rows % multiple


def _check_budget(tokens_per_batch: int, longest: int, what: str) -> None:
    if longest > tokens_per_batch:
        raise BadInput(
            f"data.tokens_per_batch = {tokens_per_batch} has no room for the longest {what}: "
            f"{longest} tokens, <eos> included"
        )


def _shuffled(count: int, rng: np.random.Philox) -> np.ndarray:
    """A permutation from the raw bits: those are the same in every numpy, which `Generator.permutation` need not be."""
    return np.argsort(rng.random_raw(count), kind="stable").astype(np.int32)


def _bucket_plan(buckets: Buckets, order: np.ndarray) -> Plan:
    """One pair per row; the batches shape by shape, and within a shape in the given order."""
    shape_of = buckets.shape_of[order]
    sizes = np.bincount(shape_of)
    ends = np.cumsum(sizes).tolist()
    batches = [
        _batches_of_rows(begin, end, shape.rows, number)
        for number, (shape, begin, end) in enumerate(zip(buckets.shapes, [0, *ends[:-1]], ends, strict=True))
    ]
    members = order[np.argsort(shape_of, kind="stable")]
    return Plan(members, np.arange(len(order) + 1), np.concatenate(batches))


def _batches_of_rows(begin: int, end: int, rows: int, shape: int) -> np.ndarray:
    """These rows cut into batches, as a `Plan` has them."""
    starts = np.arange(begin, end, rows)
    return np.stack([starts, np.minimum(starts + rows, end), np.full_like(starts, shape)], axis=1)
