"""How often a sweep without any true difference finds one: seeds, sentences and the meeting of both all vary.

Run by hand, `pytest tests/drills/test_false_alarms.py -s` prints the table that the choice of the method rests on.
"""

import numpy as np
import pytest

from transformer_jax.sweeps import statistics
from transformer_jax.sweeps.statistics import bleu_scores, compare, log_perplexity_scores

TRIALS = 300
SENTENCES = 100
# Half the width of what 300 trials tell of a rate of 5 %.
SURE = 3 * np.sqrt(0.05 * 0.95 / TRIALS)


def families(seeds, comparisons):
    groups = np.arange(seeds * (comparisons + 1)).reshape(comparisons + 1, seeds).tolist()
    return groups, [(variant, 0) for variant in range(1, comparisons + 1)]


def log_perplexities(dice, runs, spread_R):
    """Hard and easy sentences, good and bad seeds, and what a seed does by chance with a sentence."""
    hard_N, lucky_R1 = dice.gamma(4, 0.5, SENTENCES), 0.1 * spread_R[:, None] * dice.standard_normal((runs, 1))
    tokens_N = dice.integers(5, 30, SENTENCES)
    per_token_RN = hard_N + lucky_R1 + 0.3 * dice.standard_normal((runs, SENTENCES))
    return log_perplexity_scores(-per_token_RN * tokens_N, tokens_N)


def bleus(dice, runs, spread_R):
    """Each n-gram agrees with a chance that the sentence and the seed decide."""
    length_N = dice.integers(8, 30, SENTENCES)
    ease_RN = 0.8 + dice.standard_normal(SENTENCES) + 0.15 * spread_R[:, None] * dice.standard_normal((runs, 1))
    chance_RN = 1 / (1 + np.exp(-ease_RN))
    counts_N4 = np.maximum(length_N[:, None] - np.arange(4), 0)
    matches_RN4 = dice.binomial(counts_N4, chance_RN[..., None] ** np.arange(1, 5))
    lengths_RN2 = np.broadcast_to(np.stack([length_N, length_N], axis=-1), (runs, SENTENCES, 2))
    return bleu_scores(np.concatenate([lengths_RN2, matches_RN4, np.broadcast_to(counts_N4, matches_RN4.shape)], -1))


@pytest.mark.parametrize("unequal", [0.0, 0.5], ids=["alike", "unequal"])
@pytest.mark.parametrize("comparisons", [1, 7, 20])
@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize(
    ("measure", "wild"),
    # The mean BLEU of a wild variant is another one: there the hypothesis would be wrong.
    [(log_perplexities, 1.0), (log_perplexities, 30.0), (bleus, 1.0)],
    ids=["perplexity", "perplexity, one wild", "bleu"],
)
def test_false_alarms_of_whole_families(measure, wild, seeds, comparisons, unequal, monkeypatch):
    """`unequal`: the spread between seeds differs from variant to variant, its log by that standard deviation; `wild`:
    that of the last is so many times as large."""
    monkeypatch.setattr(statistics, "SAMPLES", 300)
    dice = np.random.default_rng([seeds, comparisons, int(10 * unequal)])
    groups, pairs = families(seeds, comparisons)
    runs = seeds * (comparisons + 1)
    alarms = 0
    for _ in range(TRIALS):
        spread_G = np.exp(unequal * dice.standard_normal(comparisons + 1))
        spread_G[-1] *= wild
        spread_R = np.repeat(spread_G, seeds)
        alarms += any(found.resolved for found in compare(measure(dice, runs, spread_R), groups, pairs))
    kind = f"{measure.__name__}: {seeds} seeds, {comparisons} comparisons, spreads x e^±{unequal}, the last x {wild:g}"
    print(f"{kind}: {alarms / TRIALS:.3f}")
    # Two seeds a side cannot tell that one side varies far more: Student's t then has one degree of freedom, not two.
    one_against_one = wild > 1 and seeds == 2 and comparisons == 1
    rate = 0.145 if one_against_one else 0.08 if unequal or wild > 1 else 0.05
    assert alarms / TRIALS <= rate + SURE


@pytest.mark.parametrize("measure", [log_perplexities, bleus])
@pytest.mark.parametrize("comparisons", [1, 7])
def test_one_seed_counts_sentences_only(measure, comparisons):
    """Without any spread between seeds the sentences are all there is, and the rate holds; with it, it cannot."""
    dice = np.random.default_rng(comparisons)
    groups, pairs = families(1, comparisons)
    for spread, fits in ((0.0, lambda rate: rate <= 0.05 + SURE), (3.0, lambda rate: rate > 0.3)):
        rate = 0
        for _ in range(TRIALS):
            scores = measure(dice, comparisons + 1, np.full(comparisons + 1, spread))
            rate += any(found.resolved for found in compare(scores, groups, pairs)) / TRIALS
        print(f"{measure.__name__}: one seed, {comparisons} comparisons, spread of seeds x {spread}: {rate:.3f}")
        assert fits(rate)
