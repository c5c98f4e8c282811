"""Subword regularization: what is sampled, and that batches stay a pure function of (data, seed, step)."""

import collections
import itertools
import math
import random

import numpy as np
import pytest

from tests.support.prepared_data import experiment
from transformer_jax.config import DataConfig
from transformer_jax.data.batching import training_batches
from transformer_jax.data.prepare import prepare
from transformer_jax.data.prepared import TokenPairs, flatten
from transformer_jax.data.subword_sampling import SubwordSampler, _sampled, _with_dropout
from transformer_jax.data.tokenizer import BOS, EOS, PAD, SPACE_MARK, UNK, train_sentencepiece

DICE = random.Random(0)
WORDS = ["".join(DICE.choice("aabcdeé한국") for _ in range(DICE.randint(1, 9))) for _ in range(60)]
TEXTS = [" ".join(DICE.choice(WORDS) for _ in range(DICE.randint(1, 12))) for _ in range(400)]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def tokenizer(kind):
    return train_sentencepiece(lambda: TEXTS, kind, 340, hard_vocab_limit=kind == "bpe")


def pairs_of(tokenizer):
    tokens, lengths = flatten(tokenizer.encode_batch(TEXTS), np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return TokenPairs(tokens, offsets, tokens, offsets, load_tokenizers=lambda: (tokenizer, tokenizer))


def test_bpe_without_dropout_is_sentencepieces():
    tokenizer = train_sentencepiece(lambda: TEXTS, "bpe", 340)
    for word in WORDS:
        pieces = _with_dropout(tokenizer.scores, 0.0, SPACE_MARK + word, random.Random(0))
        assert pieces == tokenizer.pieces(tokenizer.encode(word))
        assert _with_dropout(tokenizer.scores, 1.0, SPACE_MARK + word, random.Random(0)) == [*SPACE_MARK, *word]


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_unigram_segmentations_have_their_probabilities(alpha):
    scores = {"a": -1.0, "b": -2.0, "ab": -1.5, "ba": -2.5, "aba": -3.0}
    weights = {}
    for cuts in itertools.product((False, True), repeat=3):
        starts = [0, *(place for place, is_cut in enumerate(cuts, 1) if is_cut), 4]
        pieces = tuple("abab"[start:end] for start, end in itertools.pairwise(starts))
        if all(piece in scores for piece in pieces):
            weights[pieces] = math.exp(alpha * sum(scores[piece] for piece in pieces))
    dice, drawn = random.Random(1), 4000
    found = collections.Counter(tuple(_sampled(scores, 3, alpha, "abab", dice)) for _ in range(drawn))
    assert found.keys() == weights.keys()
    for pieces, weight in weights.items():
        share = weight / sum(weights.values())
        assert abs(found[pieces] / drawn - share) < 4 * math.sqrt(share * (1 - share) / drawn)


def test_no_text_longer_than_a_piece_is_looked_up():
    """A sentence without spaces may have thousands of characters."""
    looked_up = []

    class Scores(dict):
        def __contains__(self, text):
            looked_up.append(text)
            return super().__contains__(text)

    word = "ab" * 50
    pieces = _sampled(Scores({"a": -1.0, "b": -2.0, "ab": -1.5}), 2, 1.0, word, random.Random(0))
    assert "".join(pieces) == word and max(map(len, looked_up)) == 2


def test_a_sample_is_the_same_text_and_what_cannot_be_cut_stays(kind, tokenizer):
    sampler = SubwordSampler(tokenizer, kind, 0.3)
    ids = tokenizer.encode(f"{TEXTS[0]} 😀 {TEXTS[1]}")
    samples = [sampler(ids, str(key)) for key in range(20)]
    assert {tokenizer.decode(sample) for sample in samples} == {tokenizer.decode(ids)}
    assert len({tuple(sample) for sample in samples}) > 10 and samples[3] == sampler(ids, "3")
    assert sampler([UNK, *ids], "0")[0] == UNK and sampler([], "0") == []


def texts_of(batch, tokenizer):
    """The decoded sentences of both sides; packed rows have several."""
    found = []
    for side in (batch.source, batch.target_output):
        tokens = side[side != PAD].tolist()
        ends = [place for place, token in enumerate(tokens) if token == EOS]
        found.append([tokenizer.decode(tokens[a:b]) for a, b in itertools.pairwise([0, *(end + 1 for end in ends)])])
    return found


@pytest.mark.parametrize("batching", ["buckets", "packing"])
def test_batches_are_a_pure_function_of_seed_and_step(kind, tokenizer, batching):
    options = {"batching": batching, "tokens_per_batch": 600, "tokenizer": kind, "order_seed": 3}
    pairs, config = pairs_of(tokenizer), DataConfig(subword_sampling=0.2, **options)
    made, again = training_batches(config, pairs), training_batches(config, pairs, row_multiple=2)
    steps = made.steps_per_epoch
    seen, changed = [], 0
    for step in reversed(range(2 * steps)):  # in any order, by any process
        batch, halves = made.batch(step), [again.batch(step, (half,), 2) for half in range(2)]
        sides = zip(*[half[:3] for half in halves], strict=True)
        joined = [np.concatenate(parts)[: len(batch.source)] for parts in sides]
        for whole, parts in zip(batch[:3], joined, strict=True):
            np.testing.assert_array_equal(whole, parts)
        sources, targets = texts_of(batch, tokenizer)
        assert sources == targets
        changed += not np.array_equal(batch.source, batch.target_output)  # each side has another segmentation
        assert (batch.target_input == BOS).sum() == (batch.target_output == EOS).sum()
        seen += sources
    assert sorted(seen) == sorted(2 * TEXTS) and changed == 2 * steps
    assert not np.array_equal(made.batch(0).source, made.batch(steps).source)
    others = [DataConfig(**options), DataConfig(subword_sampling=0.3, **options)]
    assert made.digest == again.digest
    assert len({made.digest, *(training_batches(other, pairs).digest for other in others)}) == 3


def test_nearly_all_samples_fit_where_they_are_planned(kind, tokenizer):
    pairs = pairs_of(tokenizer)
    sampler = SubwordSampler(tokenizer, kind, 0.1)
    growth = sampler.growth(*pairs.side(0))
    assert 1.05 < growth < 4
    stored = tokenizer.encode_batch(TEXTS)
    too_long = [len(sampler(ids, f"x{n}")) > math.ceil(growth * (len(ids) + 1)) - 1 for n, ids in enumerate(stored)]
    assert np.mean(too_long) < 0.03


def test_prepared_pairs_know_their_tokenizers(tmp_path):
    prepared = prepare(experiment(tmp_path), tmp_path / "data")
    assert prepared.pairs("train").load_tokenizers() == (prepared.tokenizer, prepared.target_tokenizer)
