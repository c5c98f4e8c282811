"""Drill: how often sweeps without any true difference find one, what intervals contain, and what is found: simulated.

Run by hand, `pytest tests/drills/test_false_alarms.py -m "" -n 0 -s -k whichever` prints the rows of the first table in
docs/statistics.md, `-k beside` the figures of the second, `-k different`, `-k effects`, `-k until` and `-k equivalent`
those of its text.
"""

import collections
import functools
import itertools
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from scipy.special import stdtrit

from tests.support.finished_sweeps import edit, make_sweep, variant
from transformer_jax.report import statistics
from transformer_jax.report.findings import effects, find
from transformer_jax.report.results import _variant, load_sweep
from transformer_jax.report.statistics import (
    bleu_scores,
    contrasts,
    log_perplexity_scores,
    mean_scores,
    simulated_scores,
)

TRIALS = 300  # of scores that are computed from sentences
SENTENCES = 100
SWEEPS = 2000  # of scores that are drawn
POWER_SURE = 3 * np.sqrt(0.8 * 0.2 / SWEEPS)
RATIOS = (3.0, 10.0)


def sure(trials):
    """Three standard errors of a rate of 5 %."""
    return 3 * np.sqrt(0.05 * 0.95 / trials)


def differences(variants):
    """Of all from the first."""
    return np.eye(variants)[1:] - np.eye(variants)[0]


class Intervals(NamedTuple):
    """P contrasts of simulated sweeps, with half the width of their intervals."""

    values_SP: np.ndarray
    half_SP: np.ndarray

    @property
    def alarms(self):
        return (np.abs(self.values_SP) > self.half_SP).any(1).mean()

    @property
    def coverage(self):
        return (np.abs(self.values_SP) <= self.half_SP).mean()

    @property
    def needed(self):
        return self.half_SP - self.values_SP

    @property
    def detectable(self):
        return np.quantile(self.needed, statistics.POWER)


def estimated(scores, groups, weights_PG):
    return statistics._estimates(scores, groups, weights_PG, statistics._spread(scores, groups))


def ours(scores, groups, weights_PG):
    found = estimated(scores, groups, weights_PG)
    return Intervals(found.values_P, found.critical_P * found.errors_P)


def welch(scores, groups, weights_PG):
    """Welch's intervals with Bonferroni's correction, of seeds alone."""
    values_SGK = np.stack([scores.values_R[:, group] for group in groups], axis=1)
    squares_GP, seeds = weights_PG.T**2, values_SGK.shape[-1]
    parts_SG = values_SGK.var(-1, ddof=1) / seeds
    variance = parts_SG @ squares_GP
    df = variance**2 / (parts_SG**2 / (seeds - 1) @ squares_GP**2)
    half = stdtrit(df, 1 - 0.025 / len(weights_PG)) * np.sqrt(variance)
    return Intervals(values_SGK.mean(-1) @ weights_PG.T, half)


def dunnett(scores, groups, weights_PG):
    """Dunnett's intervals with a variance pooled over all variants, of seeds alone; his constant is simulated."""
    values_SGK = np.stack([scores.values_R[:, group] for group in groups], axis=1)
    _, variants, seeds = values_SGK.shape
    error_S = np.sqrt(values_SGK.var(-1, ddof=1).mean(1) * 2 / seeds)
    values = values_SGK.mean(-1) @ weights_PG.T
    return Intervals(values, np.broadcast_to(dunnetts_constant(variants, seeds) * error_S[:, None], values.shape))


@functools.cache
def dunnetts_constant(variants, seeds, draws=50_000):
    rng, df = np.random.default_rng(1), variants * (seeds - 1)
    means = rng.standard_normal((draws, variants)) @ differences(variants).T / np.sqrt(2)
    return np.quantile(np.abs(means).max(1) / np.sqrt(rng.chisquare(df, draws) / df), 0.95)


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
    return mean_scores(100.0 * (dice.random((runs, SENTENCES)) < 1 / (1 + np.exp(-ease_RN))))


def skewed(dice, runs, spread_R):
    """A metric of sentences as learned ones are: most score high, and a few translations are lost in each run."""
    seed_R1 = 0.02 * spread_R[:, None] * dice.standard_normal((runs, 1))
    lost_RN = (dice.random((runs, SENTENCES)) < 0.05) * dice.exponential(0.5, (runs, SENTENCES))
    return mean_scores(0.9 - dice.gamma(1.0, 0.1, SENTENCES) + seed_R1 - lost_RN)


@pytest.mark.parametrize("unequal", [0.0, 0.5], ids=["alike", "unequal"])
@pytest.mark.parametrize("variants", [2, 8])
@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize(
    ("measure", "wild"),
    # The mean of a wild variant's BLEU or share is another one: there the hypothesis would be wrong.
    [(log_perplexities, 1.0), (log_perplexities, 30.0), (bleus, 1.0), (matches, 1.0), (skewed, 1.0)],
    ids=["perplexity", "perplexity, one wild", "bleu", "matches", "skewed"],
)
def test_false_alarms_of_whole_families(measure, wild, seeds, variants, unequal, monkeypatch):
    """`unequal`: the spread between seeds differs from variant to variant, its log by that standard deviation; `wild`:
    that of the last is so many times as large."""
    monkeypatch.setattr(statistics, "SAMPLES", 300)
    dice = np.random.default_rng([seeds, variants, int(10 * unequal)])
    groups = np.arange(seeds * variants).reshape(variants, seeds).tolist()
    alarms = 0
    for _ in range(TRIALS):
        spread_G = np.exp(unequal * dice.standard_normal(variants))
        spread_G[-1] *= wild
        scores = measure(dice, seeds * variants, np.repeat(spread_G, seeds))
        alarms += any(found.significant for found in contrasts(scores, groups, differences(variants)))
    print(f"{measure.__name__}: {seeds} seeds, {variants} variants, x e^±{unequal}, the last x {wild:g}: {alarms}")
    assert alarms / TRIALS <= 0.05 + sure(TRIALS)


def test_a_metric_of_sentences_on_a_named_test_set(tmp_path):
    """Whole sweeps: what is planted on the set called long is found there alone, and a control differs from nothing."""
    made = [variant("base"), variant("planted"), variant("again", same_as="base")]
    sweep = make_sweep(tmp_path, made, (0, 1, 2), ("test", "long"), 50, primary="mine")
    dice, found, sweeps = np.random.default_rng(0), collections.Counter(), 200
    for _ in range(sweeps):
        for split in ("test", "long"):
            hard_N = dice.normal(60.0, 15.0, 50)
            for path in sorted(sweep.glob(f"runs/*/*/translations/{split}.latest.json")):
                planted = 10.0 * (path.parts[-4] == "planted" and split == "long")
                scores_N = hard_N + planted + dice.normal(0.0, 1.0) + dice.normal(0.0, 10.0, 50)
                measures = json.loads(path.read_text())["measures"] | {"mine": {"score": scores_N.mean()}}
                edit(path, measures=measures, sentence_scores={"mine": scores_N.tolist()})
        for test in find(load_sweep(sweep)):
            mine = test.by_metric["mine"]
            for name, difference in (*mine.families["differences"].items(), *mine.families["controls"].items()):
                found[test.split, name] += difference.significant
    print(found)
    assert found["long", "planted"] >= 0.9 * sweeps
    assert len(found) == 4 and max(found[key] for key in found if key != ("long", "planted")) <= sweeps * (
        0.05 + sure(sweeps)
    )


def patterns(variants):
    """Whose seeds scatter more than the others': masks over the baseline, which is first, and the variants."""
    groups = np.arange(variants)
    masks = {"none": groups < 0, "baseline": groups == 0, "one variant": groups == variants - 1}
    half = (groups > 0) & (groups <= max(variants // 2, 1))
    return masks | {"half": half, "baseline and half": half | (groups == 0), "all variants": groups > 0}


def rates(seeds, variants, weights_PG, share, method=ours):
    """The false alarms of each pattern of variances and ratio of standard deviations."""
    dice, found = np.random.default_rng([seeds, variants, int(10 * share)]), {}
    for name, mask in patterns(variants).items():
        for ratio in RATIOS if mask.any() else (1.0,):
            scores, groups = simulated_scores(dice, SWEEPS, [seeds] * variants, share, np.where(mask, ratio, 1.0))
            found[name, ratio] = method(scores, groups, weights_PG).alarms
    return found


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("variants", [2, 3, 6, 8, 20])
@pytest.mark.parametrize("seeds", [2, 3, 5, 8])
def test_false_alarms_whichever_scatters_more(seeds, variants, share):
    """The promised 5 %, whichever groups' seeds scatter 3 or 10 times as much as the others'."""
    found = rates(seeds, variants, differences(variants), share)
    row = [f"{100 * rate:.1f}" for (_, ratio), rate in found.items() if ratio < 10]
    worst = max(rate for (_, ratio), rate in found.items() if ratio == 10)
    print(f"\n| {seeds} | {variants} | {share} | {' | '.join(row)} | {100 * worst:.1f} |")
    assert max(found.values()) <= 0.05 + sure(SWEEPS)


UNEQUAL = [(2, 8, 8), (8, 2, 2), (8, 2, 2, 2), (8, 2, 2, 8), (2, 5, 5, 5), (8, 3, 3, 3), (3, 8, 8, 3), (3, 3, 3, 8)]


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("sizes", UNEQUAL, ids=str)
def test_false_alarms_with_different_numbers_of_seeds(sizes, ratio):
    """Whichever variants scatter more. If two with two seeds do, ten times as much, there are up to 10 %."""
    dice, variants, worst = np.random.default_rng(sizes), len(sizes), 0.0
    for mask in itertools.product((False, True), repeat=variants):
        scores, groups = simulated_scores(dice, SWEEPS, sizes, 0.0, np.where(mask, ratio, 1.0))
        worst = max(worst, ours(scores, groups, differences(variants)).alarms)
    print(f"\n{sizes}, x {ratio:g}: {100 * worst:.1f} %")
    assert worst <= (0.11 if ratio == 10 and 2 in sizes else 0.05 + sure(SWEEPS))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("variants", [2, 8, 20])
@pytest.mark.parametrize("seeds", [2, 3, 5, 8])
def test_beside_welch_and_dunnett(seeds, variants, share):
    """False alarms, coverage, and the power at what is reported as detectable, where all scatter alike."""
    dice, weights_PG = np.random.default_rng([seeds, variants, int(10 * share)]), differences(variants)
    scores, groups = simulated_scores(dice, SWEEPS, [seeds] * variants, share)
    found = ours(scores, groups, weights_PG)
    reported = []
    for values_R in scores.values_R[:400]:
        family = contrasts(scores._replace(values_R=values_R), groups, weights_PG)
        reported.append(np.median([difference.mde for difference in family]))
    mde = np.median(reported)
    power = (found.needed < mde).mean()
    row = [f"{100 * found.alarms:.1f}", f"{100 * found.coverage:.1f}", f"{mde:.2f}", f"{100 * power:.1f}"]
    for method in (welch, dunnett):
        wild = max(rate for (_, ratio), rate in rates(seeds, variants, weights_PG, share, method).items() if ratio < 10)
        other = method(scores, groups, weights_PG)
        row += [f"{100 * other.alarms:.1f}", f"{100 * wild:.1f}", f"{other.detectable:.2f}"]
    print(f"\n| {seeds} | {variants} | {share} | {' | '.join(row)} |")
    assert found.alarms <= 0.05 + sure(SWEEPS) and found.coverage >= 0.95
    assert abs(power - statistics.POWER) <= 0.05


def of_design(*levels):
    """The main effects and interactions of a factorial design with so many levels of each factor."""
    cells = itertools.product(*(range(count) for count in levels))
    facts = [variant(str(cell), levels={str(at): str(level) for at, level in enumerate(cell)}) for cell in cells]
    definition = {"seeds": [], "tests": [], "baseline": "base", "variants": facts}
    variants = [_variant(Path(), each, definition, {}, []) for each in facts]
    return np.array([[weights.get(v.name, 0) for v in variants] for weights in effects(variants, "").values()])


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("levels", [(2, 2), (2, 3), (2, 2, 2), (3, 4)], ids=str)
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_effects_of_factors(seeds, levels, share):
    weights_PG = of_design(*levels)
    found = rates(seeds, weights_PG.shape[1], weights_PG, share)
    print(
        f"\n{seeds} seeds, {levels}, {share}: {100 * found['none', 1.0]:.1f}, worst {100 * max(found.values()):.1f} %"
    )
    assert max(found.values()) <= 0.05 + sure(SWEEPS)
    dice = np.random.default_rng(seeds)
    scores, groups = simulated_scores(dice, SWEEPS, [seeds] * weights_PG.shape[1], share)
    needed, reported = ours(scores, groups, weights_PG).needed, []
    for values_R in scores.values_R[:400]:
        family = statistics.contrasts(scores._replace(values_R=values_R), groups, weights_PG)
        reported.append([contrast.mde for contrast in family])
    power = (needed < np.median(reported, axis=0)).mean(0)
    assert np.abs(power - statistics.POWER).max() <= 0.05 + POWER_SURE


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("variants", [2, 8, 20])
@pytest.mark.parametrize("seeds", [2, 3, 5, 8])
def test_variants_at_the_margin_are_hardly_ever_called_equivalent(seeds, variants, share):
    """All true differences are as large as the margin: the chance that any of the verdicts is false."""
    dice, weights_PG = np.random.default_rng([seeds, variants]), differences(variants)
    rate = 0.0
    for mask in patterns(variants).values():
        scores, groups = simulated_scores(dice, SWEEPS, [seeds] * variants, share, np.where(mask, 3.0, 1.0))
        found = estimated(scores, groups, weights_PG)
        for margin in (3.0, 20.0):
            shifted = found._replace(values_P=found.values_P + margin)
            equivalent = shifted.outside_P(margin) * (variants - 1) < 0.05
            worse = shifted.values_P < -shifted.critical_P * shifted.errors_P
            rate = max(rate, (equivalent | worse).any(1).mean())
    print(f"\n{seeds} seeds, {variants} variants, {share}: {100 * rate:.1f} % have a false verdict")
    assert rate <= 0.05 + sure(SWEEPS)


@pytest.mark.parametrize("variants", [2, 8, 20])
def test_seeds_that_are_added_until_something_is_significant(variants):
    """What reports say of seeds that were added after a look."""
    looks, weights_PG = (3, 4, 5, 6, 8), differences(variants)
    scores, groups = simulated_scores(np.random.default_rng(variants), 5 * SWEEPS, [8] * variants)
    alarms_LS = []
    for seeds in looks:
        found = ours(scores, [group[:seeds] for group in groups], weights_PG)
        alarms_LS.append((np.abs(found.values_SP) > found.half_SP).any(1))
    single, whole = np.mean(alarms_LS, axis=1), np.any(alarms_LS, axis=0).mean()
    print(f"\n{variants} variants, looks {looks}: {100 * whole:.1f} %, each alone {np.round(100 * single, 1)}")
    assert single.max() <= 0.05 + sure(5 * SWEEPS) and single.max() < whole <= 0.08


@pytest.mark.parametrize("measure", [log_perplexities, bleus])
@pytest.mark.parametrize("variants", [2, 8])
def test_one_seed_counts_sentences_only(measure, variants):
    """Without any spread between seeds the sentences are all there is, and the rate holds; with it, it cannot."""
    dice = np.random.default_rng(variants)
    groups = [[number] for number in range(variants)]
    for spread, fits in ((0.0, lambda rate: rate <= 0.05 + sure(TRIALS)), (3.0, lambda rate: rate > 0.3)):
        rate = 0
        for _ in range(TRIALS):
            scores = measure(dice, variants, np.full(variants, spread))
            rate += any(found.significant for found in contrasts(scores, groups, differences(variants))) / TRIALS
        print(f"{measure.__name__}: one seed, {variants} variants, spread of seeds x {spread}: {rate:.3f}")
        assert fits(rate)
