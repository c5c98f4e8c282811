"""How often a sweep without any true difference finds one: seeds, sentences and the meeting of both all vary.

Run by hand, `pytest tests/drills/test_false_alarms.py -s -k whichever` prints the rows of the table in
docs/statistics.md, and `-k detectable` what the method can find.
"""

import numpy as np
import pytest

from transformer_jax.report import statistics
from transformer_jax.report.statistics import Scores, bleu_scores, compare, log_perplexity_scores, share_scores

TRIALS = 300
SENTENCES = 100
# Half the width of what 300 trials tell of a rate of 5 %.
SURE = 3 * np.sqrt(0.05 * 0.95 / TRIALS)
# Of the grid, whose scores are drawn and not computed. One standard error of 5 % is then 0.5 %.
GRID_TRIALS = 2000
GRID_SURE = 3 * np.sqrt(0.05 * 0.95 / GRID_TRIALS)
RATIOS = (3.0, 10.0)


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


def matches(dice, runs, spread_R):
    """Nearly all examples are right, so that the seeds of a variant often tie."""
    ease_RN = 4.5 + 0.15 * spread_R[:, None] * dice.standard_normal((runs, 1))
    return share_scores(dice.random((runs, SENTENCES)) < 1 / (1 + np.exp(-ease_RN)))


@pytest.mark.parametrize("unequal", [0.0, 0.5], ids=["alike", "unequal"])
@pytest.mark.parametrize("comparisons", [1, 7, 20])
@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize(
    ("measure", "wild"),
    # The mean of a wild variant's BLEU or share is another one: there the hypothesis would be wrong.
    [(log_perplexities, 1.0), (log_perplexities, 30.0), (bleus, 1.0), (matches, 1.0)],
    ids=["perplexity", "perplexity, one wild", "bleu", "matches"],
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
        alarms += any(found.significant for found in compare(measure(dice, runs, spread_R), groups, pairs))
    kind = f"{measure.__name__}: {seeds} seeds, {comparisons} comparisons, spreads x e^±{unequal}, the last x {wild:g}"
    print(f"{kind}: {alarms / TRIALS:.3f}")
    assert alarms / TRIALS <= 0.05 + SURE


def patterns(comparisons):
    """Whose seeds scatter more than the others': masks over the baseline, which is first, and the variants."""
    groups = np.arange(comparisons + 1)
    masks = {"none": groups < 0, "baseline": groups == 0, "one variant": groups == comparisons}
    half = (groups > 0) & (groups <= max(comparisons // 2, 1))
    return masks | {"half": half, "baseline and half": half | (groups == 0), "all variants": groups > 0}


def drawn(dice, spread_G, seeds, of_sentences):
    """Scores of seeds with these standard deviations; the sentences add a variance to the mean of each group."""
    groups = len(spread_G)
    values = spread_G[:, None] * dice.standard_normal((groups, seeds))
    values += np.sqrt(of_sentences) * dice.standard_normal((groups, 1))
    covariance = of_sentences * np.kron(np.eye(groups), np.ones((seeds, seeds)))
    return Scores(values.ravel(), covariance, SENTENCES)


def alarm_rate(dice, spread_G, seeds, of_sentences, different=0, trials=GRID_TRIALS):
    """Of sweeps, those with any false alarm; the last `different` variants do differ, by far."""
    groups, pairs = families(seeds, len(spread_G) - 1)
    alike = len(pairs) - different
    shift = np.repeat(np.where(np.arange(len(spread_G)) > alike, 1e6, 0.0), seeds)
    alarms = 0
    for _ in range(trials):
        scores = drawn(dice, spread_G, seeds, of_sentences)
        found = compare(scores._replace(values_R=scores.values_R + shift), groups, pairs)
        alarms += any(difference.significant for difference in found[:alike])
    return alarms / trials


@pytest.mark.parametrize("of_sentences", [1e-4, 0.2, 1.0], ids=["of seeds", "of both", "of sentences"])
@pytest.mark.parametrize("comparisons", [1, 2, 7, 20])
@pytest.mark.parametrize("seeds", [2, 3, 4, 5])
def test_false_alarms_whichever_scatters_more(seeds, comparisons, of_sentences):
    """The promised 5 %, whichever groups' seeds scatter 3 or 10 times as much as the others'."""
    dice = np.random.default_rng([seeds, comparisons, int(10 * of_sentences)])
    rates = {}
    for name, mask in patterns(comparisons).items():
        for ratio in RATIOS if mask.any() else (1.0,):
            rates[name, ratio] = alarm_rate(dice, np.where(mask, ratio, 1.0), seeds, of_sentences)
    row = [f"{100 * rate:.1f}" for (_, ratio), rate in rates.items() if ratio < 10]
    worst = max(rate for (_, ratio), rate in rates.items() if ratio == 10)
    print(f"\n| {seeds} | {comparisons} | {of_sentences:.1f} | {' | '.join(row)} | {100 * worst:.1f} |")
    assert max(rates.values()) <= 0.05 + GRID_SURE


@pytest.mark.parametrize("comparisons", [1, 2, 7, 20])
@pytest.mark.parametrize("seeds", [2, 3, 4, 5])
def test_what_is_detectable_where_all_scatter_alike(seeds, comparisons):
    """The true difference that is found four times out of five, in standard deviations between seeds."""
    dice = np.random.default_rng([seeds, comparisons])
    groups, pairs = families(seeds, comparisons)
    needed = []
    for _ in range(400):
        found = compare(drawn(dice, np.ones(comparisons + 1), seeds, 0.0), groups, pairs)[0]
        needed.append((found.high - found.low) / 2 - found.value)
    size = float(np.quantile(needed, statistics.POWER))
    print(f"\n{seeds} seeds, {comparisons} comparisons: {size:.1f} standard deviations")
    assert size < 50 if seeds == 2 else size < 7


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
            rate += any(found.significant for found in compare(scores, groups, pairs)) / TRIALS
        print(f"{measure.__name__}: one seed, {comparisons} comparisons, spread of seeds x {spread}: {rate:.3f}")
        assert fits(rate)
