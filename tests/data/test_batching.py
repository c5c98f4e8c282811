"""Batches: every pair once an epoch, the same for every process count, a pure function of (seed, step)."""

import copy
import functools
import itertools
import math
import pickle
import zlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.config import DataConfig
from transformer_jax.data.batching import (
    Batch,
    BucketBatches,
    EvaluationBatches,
    PackedBatches,
    TrainingBatches,
    training_batches,
)
from transformer_jax.data.prepared import TokenPairs
from transformer_jax.data.tokenizer import BOS, EOS, PAD
from transformer_jax.errors import BadInput

quick = settings(max_examples=30, deadline=None)
both_kinds = pytest.mark.parametrize("kind", [BucketBatches, PackedBatches])
lengths = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=150)
Kind = type[TrainingBatches]


def corpus(pair_lengths, dtype=np.int32) -> TokenPairs:
    """Pairs of these lengths, in which no token occurs twice: a mixed up sentence cannot look right."""
    source, target = np.array(pair_lengths, int).reshape(-1, 2).T
    source_offsets, target_offsets = (np.concatenate([[0], np.cumsum(side)]) for side in (source, target))
    ids = np.arange(4, 4 + source.sum() + target.sum()).astype(dtype)
    return TokenPairs(ids[: source.sum()], source_offsets, ids[source.sum() :], target_offsets)


def random_corpus(count: int, seed: int = 0, longest: int = 20) -> TokenPairs:
    return corpus(np.random.default_rng(seed).integers(0, longest + 1, (count, 2)))


def make(
    kind: Kind, pairs: TokenPairs, *, tokens_per_batch=130, max_length=21, seed=0, row_multiple=1
) -> TrainingBatches:
    return kind(pairs, tokens_per_batch=tokens_per_batch, max_length=max_length, seed=seed, row_multiple=row_multiple)


def epoch(batches: TrainingBatches, number: int = 0) -> list[Batch]:
    first = number * batches.steps_per_epoch
    return [batches.batch(step) for step in range(first, first + batches.steps_per_epoch)]


def sentences_of(pairs: TokenPairs) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    def side(tokens, offsets):
        return [tuple(tokens[a:b].tolist()) for a, b in itertools.pairwise(offsets)]

    sources, targets = side(pairs.source_tokens, pairs.source_offsets), side(pairs.target_tokens, pairs.target_offsets)
    return list(zip(sources, targets, strict=True))


def sentences_in(batch: Batch) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The pairs of a batch read back, one cell at a time; what holds of every sentence is checked on the way."""
    found = []
    for row in range(len(batch.source)):
        source_segments, target_segments = (
            (ids[row] != PAD).astype(int) if segments is None else segments[row]
            for ids, segments in (
                (batch.source, batch.source_segments),
                (batch.target_output, batch.target_segments),
            )
        )
        assert ((source_segments == 0) == (batch.source[row] == PAD)).all()
        assert ((target_segments == 0) == (batch.target_output[row] == PAD)).all()
        assert ((target_segments == 0) == (batch.target_input[row] == PAD)).all()
        assert set(source_segments.tolist()) - {0} == set(target_segments.tolist()) - {0}
        for segments, positions in (
            (source_segments, batch.source_positions),
            (target_segments, batch.target_positions),
        ):
            assert (np.diff(segments[segments > 0]) >= 0).all() and not segments[np.count_nonzero(segments) :].any()
            if positions is not None:  # they begin anew in every segment
                wanted = [number for size in np.bincount(segments)[1:] for number in range(size)]
                assert positions[row].tolist() == wanted + [0] * (len(segments) - len(wanted))
        for segment in range(1, source_segments.max() + 1):
            *source, source_end = batch.source[row][source_segments == segment].tolist()
            begin, *target_input = batch.target_input[row][target_segments == segment].tolist()
            *target, target_end = batch.target_output[row][target_segments == segment].tolist()
            assert (source_end, begin, target_end) == (EOS, BOS, EOS)
            assert target_input == target
            found.append((tuple(source), tuple(target)))
    return found


def assert_equal(left: Batch, right: Batch) -> None:
    for field, a, b in zip(Batch._fields, left, right, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=field)


def joined(parts: list[Batch]) -> Batch:
    return Batch(*(None if sides[0] is None else np.concatenate(sides) for sides in zip(*parts, strict=True)))


@both_kinds
@quick
@given(lengths, st.integers(1, 12), st.integers(21, 400), st.integers(0, 3))
def test_an_epoch_has_every_pair_exactly_once_and_keeps_to_the_budget(kind, pair_lengths, num_shapes, budget, number):
    pairs = corpus(pair_lengths)
    options = {"num_shapes": num_shapes} if kind is BucketBatches else {}
    batches = kind(pairs, tokens_per_batch=budget, max_length=21, seed=5, **options)
    found: Counter = Counter()
    shapes = set()
    for batch in epoch(batches, number):
        found.update(sentences_in(batch))
        shapes.add((*batch.source.shape, batch.target_output.shape[1]))
        assert batch.source.size <= budget and batch.target_output.size <= budget
        assert all(array is None or array.dtype == np.int32 for array in batch)
    assert found == Counter(sentences_of(pairs))
    assert shapes == set(batches.shapes)
    assert len(shapes) <= (num_shapes if kind is BucketBatches else 1)


@both_kinds
@quick
@given(lengths, st.randoms(use_true_random=False))
def test_a_step_has_the_same_batch_whatever_was_asked_before(kind, pair_lengths, random):
    pairs = corpus(pair_lengths)
    sequential = make(kind, pairs)
    steps = list(range(3 * sequential.steps_per_epoch))
    straight = [sequential.batch(step) for step in steps]
    resumed = make(kind, pairs)
    random.shuffle(steps)
    for step in steps:
        assert_equal(resumed.batch(step), straight[step])


@both_kinds
@quick
@given(lengths, st.sampled_from([2, 3, 8]), st.sampled_from([1, 2, 8]), st.integers(21, 400))
def test_the_rows_of_all_processes_are_the_batch_of_one(kind, pair_lengths, process_count, devices, budget):
    pairs = corpus(pair_lengths)
    whole = make(kind, pairs, tokens_per_batch=budget)
    multiple = math.lcm(devices, process_count)
    shared = make(kind, pairs, tokens_per_batch=budget, row_multiple=multiple)
    for step in range(whole.steps_per_epoch):
        expected = whole.batch(step)
        parts = [shared.batch(step, (index,), process_count) for index in range(process_count)]
        assert len({part.source.shape for part in parts}) == 1
        together = joined(parts)
        rows = len(expected.source)
        assert len(together.source) % multiple == 0 and len(together.source) - rows < multiple
        assert_equal(Batch(*(None if side is None else side[:rows] for side in together)), expected)
        assert all(side is None or not side[rows:].any() for side in together)


@both_kinds
def test_epochs_and_seeds_have_orders_of_their_own(kind):
    pairs = random_corpus(300)
    batches = make(kind, pairs)
    orders = {
        tuple(sentence for batch in epoch(either, number) for sentence in sentences_in(batch))
        for either, number in [
            (batches, 0),
            (batches, 1),
            (make(kind, pairs, seed=1), 0),
            (make(kind, pairs, seed=1), 1),
        ]
    }
    assert len(orders) == 4
    first, second = ({frozenset(sentences_in(batch)) for batch in epoch(batches, number)} for number in (0, 1))
    assert not first & second  # other company, not only another order of the same batches


def test_shapes_are_mixed_within_an_epoch():
    widths = [batch.source.shape[1] for batch in epoch(make(BucketBatches, random_corpus(3000)))]
    assert np.abs(np.corrcoef(widths, range(len(widths)))[0, 1]) < 0.2


@pytest.mark.parametrize(("kind", "checksum"), [(BucketBatches, 428325899), (PackedBatches, 527430743)])
def test_the_order_is_the_same_on_every_machine_for_ever(kind, checksum):
    """A changed order breaks the resumption of every run that is under way: change these numbers knowingly."""
    i = np.arange(400)
    batches = make(kind, corpus(np.stack([i * i % 19, i * i * i % 17], axis=1)), seed=42)
    rows = np.concatenate([batch.source.ravel() for batch in epoch(batches, 1)])
    assert zlib.crc32(rows.astype("<i4").tobytes()) == checksum


@both_kinds
def test_pairs_longer_than_the_limit_are_dropped_and_counted(kind):
    pairs = corpus([(3, 3), (10, 3), (3, 10), (9, 9), (0, 0)])
    batches = make(kind, pairs, max_length=10)
    assert batches.dropped == batches.statistics().dropped == 2
    found = Counter(sentence for batch in epoch(batches) for sentence in sentences_in(batch))
    assert found == Counter(sentences_of(pairs)[i] for i in (0, 3, 4))


@both_kinds
def test_bad_input_names_both_numbers(kind):
    with pytest.raises(BadInput, match=r"max_length = 7 .* 8 tokens"):
        make(kind, corpus([(7, 3), (3, 9)]), max_length=7)
    for batches in (functools.partial(make, kind), EvaluationBatches):
        with pytest.raises(
            BadInput, match=r"tokens_per_batch = 9 .* longest (training sentence|.*to evaluate).* 10 tokens"
        ):
            batches(corpus([(7, 3), (3, 9)]), tokens_per_batch=9)


@both_kinds
@pytest.mark.parametrize("multiple", [1, 5, 64])
def test_the_statistics_are_what_the_batches_show(kind, multiple):
    """With the rows that are added for devices and accumulation."""
    batches = make(kind, random_corpus(300), row_multiple=multiple)
    made = epoch(batches)
    statistics = batches.statistics()
    assert Counter((*batch.source.shape, batch.target_output.shape[1]) for batch in made) == dict(statistics.shapes)
    sides = [side for batch in made for side in (batch.source, batch.target_output)]
    share = sum((side != PAD).sum() for side in sides) / sum(side.size for side in sides)
    assert statistics.share == pytest.approx(share)


@pytest.mark.parametrize("batching", ["buckets", "packing"])
def test_the_order_has_a_seed_that_is_data_seed_unless_given(batching):
    pairs = random_corpus(50)

    def batches(**options):
        return training_batches(DataConfig(batching=batching, tokens_per_batch=130, max_length=21, **options), pairs)

    assert batches(seed=3).digest == batches(seed=0, order_seed=3).digest == batches(seed=7, order_seed=3).digest
    ordered, other = batches(order_seed=0), batches(order_seed=4)
    assert ordered.digest == batches().digest != other.digest
    assert other.shapes == ordered.shapes and other.steps_per_epoch == ordered.steps_per_epoch
    one, another = ([pair for batch in epoch(made) for pair in sentences_in(batch)] for made in (ordered, other))
    assert one != another and sorted(one) == sorted(another)


@both_kinds
def test_the_digest_follows_what_the_batches_depend_on(kind):
    pairs = random_corpus(50)
    same = make(kind, pairs).digest
    assert same == make(kind, pairs, row_multiple=8).digest
    others = {make(kind, pairs, seed=1).digest, make(kind, pairs, tokens_per_batch=60).digest}
    assert len(others | {same, make(kind, random_corpus(50, seed=1)).digest}) == 4


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([1, 2, 7, 97, 127]),
    st.integers(21, 300),
    st.sampled_from([1, 2, 3, 8]),
    st.sampled_from([1, 4]),
    st.integers(0, 9),
)
def test_evaluation_meets_every_sentence_once_and_knows_its_place(count, budget, process_count, devices, seed):
    pairs = random_corpus(count, seed)
    multiple = math.lcm(devices, process_count)
    batches = EvaluationBatches(pairs, tokens_per_batch=budget, row_multiple=multiple)
    results: dict[int, tuple] = {}
    for number, whole in enumerate(batches):
        parts = [batches.batch(number, (index,), process_count) for index in range(process_count)]
        batch = joined(parts)
        assert_equal(Batch(*(side[: len(whole.source)] if side is not None else None for side in batch)), whole)
        assert len(batch.source) % multiple == 0
        real = batch.pair_index[batch.pair_index >= 0].tolist()
        assert ((batch.pair_index >= 0) == (batch.source != PAD).any(axis=1)).all()
        assert not results.keys() & set(real)
        results |= dict(zip(real, sentences_in(batch), strict=True))
    assert [results[i] for i in range(count)] == sentences_of(pairs)


def test_evaluation_has_more_shapes_where_one_would_have_many_batches():
    assert len(EvaluationBatches(corpus([(1000, 1000), *[(5, 5)] * 2000]), tokens_per_batch=4096)) < 10
    few = corpus([(n, n) for n in range(1, 31)] * 5)
    assert len(EvaluationBatches(few, tokens_per_batch=512).shapes) <= 3


@both_kinds
def test_the_first_step_of_each_shape(kind):
    batches = make(kind, random_corpus(200))
    shapes = [batches.batch(step).source.shape + batches.batch(step).target_input.shape for step in range(60)]
    for first, last in ((0, 60), (3, 4), (batches.steps_per_epoch - 1, 60), (5, 5)):
        found = batches.first_of_each_shape(first, last)
        assert found == [step for step in range(first, last) if shapes[step] not in shapes[first:step]]
    evaluation = EvaluationBatches(random_corpus(200), tokens_per_batch=130)
    shapes = [batch.source.shape + batch.target_input.shape for batch in evaluation]
    found = evaluation.first_of_each_shape()
    assert sorted(found) == [number for number, shape in enumerate(shapes) if shape not in shapes[:number]]


@both_kinds
def test_batches_may_be_sent_to_another_process(kind):
    batches = make(kind, random_corpus(50))
    for other in (pickle.loads(pickle.dumps(batches)), copy.deepcopy(batches)):
        for ours, theirs in zip(epoch(batches, 1), epoch(other, 1), strict=True):
            np.testing.assert_array_equal(ours.source, theirs.source)


@pytest.mark.parametrize("kind", [BucketBatches, PackedBatches, EvaluationBatches])
def test_no_pairs_are_refused(kind):
    limits = {} if kind is EvaluationBatches else {"max_length": 10, "seed": 0}
    with pytest.raises(BadInput, match="there are no sentence pairs"):
        kind(corpus([]), tokens_per_batch=64, **limits)
