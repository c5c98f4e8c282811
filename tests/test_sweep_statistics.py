"""Differences between variants: against scipy, sacreBLEU, brute force, and simulation where the truth is known."""

import numpy as np
import pytest
import sacrebleu
import scipy.optimize
import scipy.stats

from transformer_jax.evaluation import bleu_of_statistics, bleu_statistics, paired_bootstrap
from transformer_jax.sweeps import statistics
from transformer_jax.sweeps.statistics import (
    CONFIDENCE,
    MOST_ALIKE,
    POWER,
    Scores,
    bleu,
    bleu_scores,
    compare,
    holm,
    log_perplexity_scores,
    moderated,
)

WORDS = np.array(list("abcdefghijklmnop"))


def corpus(sentences, error_rates, seed=0):
    """References, and for each rate translations in which so many words are wrong."""
    dice = np.random.default_rng(seed)
    references = [" ".join(dice.choice(WORDS, dice.integers(6, 14))) for _ in range(sentences)]

    def translated(rate):
        return [
            " ".join(str(dice.choice(WORDS)) if dice.random() < rate else word for word in reference.split())
            for reference in references
        ]

    return references, [translated(rate) for rate in error_rates]


def exact(values_GK):
    """Scores of G groups of K seeds on so many sentences that their choice is no matter."""
    values = np.asarray(values_GK, float)
    groups = np.arange(values.size).reshape(values.shape).tolist()
    return Scores(values.ravel(), np.zeros((values.size, values.size)), 10**9), groups


# Scores of single runs


def test_bleu_of_sums_is_sacrebleus():
    dice = np.random.default_rng(0)
    counts = np.sort(dice.integers(0, 40, (200, 4)))[:, ::-1]
    matches = np.minimum(counts, dice.integers(0, 30, (200, 4)))
    totals = np.concatenate([dice.integers(1, 60, (200, 2)), matches, counts], axis=1)
    totals[0] = 0
    totals[1, 2:6] = 0
    totals[2, 3:6] = 0
    expected = [bleu_of_statistics(row) for row in totals]
    assert bleu(totals) == pytest.approx(expected, abs=1e-9)
    assert 20 < sum(score > 0 for score in expected) < 200


@pytest.mark.parametrize("rate", [0.1, 0.9, 1.0])
def test_added_up_statistics_give_the_corpus_score(rate):
    """Where no four words in a row are right, too: sacreBLEU smooths."""
    references, (lines,) = corpus(3, [rate])
    totals = np.sum(bleu_statistics(lines, references), axis=0)
    assert bleu_of_statistics(totals) == pytest.approx(sacrebleu.corpus_bleu(lines, [references]).score)
    assert bleu(totals) == pytest.approx(bleu_of_statistics(totals))


def test_scores_are_those_of_the_whole_set():
    references, systems = corpus(40, [0.1, 0.3])
    statistics_RN10 = np.array([bleu_statistics(lines, references) for lines in systems])
    assert bleu_scores(statistics_RN10).values_R == pytest.approx(
        [bleu_of_statistics(rows.sum(0)) for rows in statistics_RN10]
    )
    log_probabilities = np.array([[-1.0, -2.0, -6.0], [-2.0, -2.0, -2.0]])
    assert log_perplexity_scores(log_probabilities, np.array([1, 2, 3])).values_R == pytest.approx([9 / 6, 1.0])


def test_resampled_sentences_vary_as_brute_force_says():
    references, systems = corpus(60, [0.1, 0.3])
    statistics_RN10 = np.array([bleu_statistics(lines, references) for lines in systems])
    dice = np.random.default_rng(1)
    drawn = [dice.integers(0, 60, 60) for _ in range(1000)]
    brute = np.cov(
        [[bleu_of_statistics(rows[chosen].sum(0)) for rows in statistics_RN10] for chosen in drawn], rowvar=False
    )
    assert bleu_scores(statistics_RN10).covariance_RR == pytest.approx(brute, rel=0.15, abs=0.1 * brute.max())


def test_resampled_perplexity_varies_as_the_delta_method_says():
    dice = np.random.default_rng(2)
    tokens = dice.integers(3, 20, 400).astype(float)
    log_probabilities = -tokens * dice.gamma(4, 0.25, (2, 400))
    found = log_perplexity_scores(log_probabilities, tokens)
    residuals = (-log_probabilities - found.values_R[:, None] * tokens) / tokens.sum()
    expected = residuals @ residuals.T
    assert found.covariance_RR == pytest.approx(expected, rel=0.1, abs=0.03 * expected.max())


def test_blocks_of_samples_are_the_same_samples(monkeypatch):
    columns = np.random.default_rng(3).integers(0, 9, (2, 50, 10)).astype(float)
    whole = bleu_scores(columns)
    monkeypatch.setattr(statistics, "BLOCK", 50 * 300)
    assert bleu_scores(columns).covariance_RR == pytest.approx(whole.covariance_RR)


# Comparisons


def test_two_alike_groups_are_students_t_test():
    values = [[25.1, 25.9, 25.4], [24.2, 24.4, 24.9]]
    scores, groups = exact(values)
    (difference,) = compare(scores, groups, [(1, 0)])
    student = scipy.stats.ttest_ind(values[1], values[0])
    assert difference.p_value == pytest.approx(student.pvalue)
    assert difference.freedom == pytest.approx(4)
    interval = student.confidence_interval(CONFIDENCE)
    assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high))
    assert difference.seed_spread == "own"


def test_one_seed_is_sacrebleus_paired_bootstrap():
    references, (base, variant) = corpus(250, [0.2, 0.22], seed=4)
    scores = bleu_scores(np.array([bleu_statistics(lines, references) for lines in (base, variant)]))
    (difference,) = compare(scores, [[0], [1]], [(1, 0)])
    theirs = paired_bootstrap(variant, base, references)["bleu"]
    assert difference.value == pytest.approx(theirs["this"] - theirs["other"], abs=1e-6)
    # sacreBLEU's p-value is of one thousand samples, and of one side.
    assert 0.01 < theirs["p_value"] < 0.5
    assert difference.p_value == pytest.approx(theirs["p_value"], abs=0.04)
    assert difference.seed_spread == "none"


def test_seeds_and_sentences_add_up():
    """The variance written out: of seeds, of sentences, less what both have counted."""
    dice = np.random.default_rng(5)
    noise = dice.standard_normal((6, 6))
    noise += 2 * np.repeat(dice.standard_normal((2, 6)), 3, axis=0)  # what the seeds of one variant share
    scores = Scores(np.array([3.0, 3.4, 3.2, 2.0, 2.1, 2.6]), noise @ noise.T / 100, 50)
    groups = [[0, 1, 2], [3, 4, 5]]
    (difference,) = compare(scores, groups, [(1, 0)])
    of_seeds = sum(np.var(scores.values_R[group], ddof=1) for group in groups) / 3
    c = np.array([-1, -1, -1, 1, 1, 1]) / 3
    of_sentences = c @ scores.covariance_RR @ c
    for group in groups:
        centred = np.eye(3) - 1 / 3  # a seed's score less the mean over seeds
        block = scores.covariance_RR[np.ix_(group, group)]
        of_sentences -= np.trace(centred @ block @ centred) / 2 / 3
    assert of_sentences > 0
    assert difference.error**2 == pytest.approx(of_seeds + of_sentences)
    freedom = (of_seeds + of_sentences) ** 2 / (of_seeds**2 / 4 + of_sentences**2 / 49)
    assert difference.freedom == pytest.approx(freedom)


def test_intervals_are_wider_for_many_comparisons():
    scores, groups = exact(np.random.default_rng(6).standard_normal((8, 3)))
    alone = compare(scores, groups, [(1, 0)])[0]
    together = compare(scores, groups, [(variant, 0) for variant in range(1, 8)])[0]
    assert alone.error == together.error
    ratio = (together.high - together.low) / (alone.high - alone.low)
    expected = scipy.stats.t.ppf(1 - 0.025 / 7, alone.freedom) / scipy.stats.t.ppf(1 - 0.025, alone.freedom)
    assert ratio == pytest.approx(expected)


def test_the_detectable_difference_has_the_stated_power():
    scores, groups = exact(np.random.default_rng(7).standard_normal((5, 3)))
    for found in compare(scores, groups, [(variant, 0) for variant in range(1, 5)]):
        critical = (found.high - found.value) / found.error
        power = scipy.stats.nct.sf(critical, found.freedom, found.detectable / found.error)
        assert power == pytest.approx(POWER, abs=1e-6)


def test_a_true_difference_of_detectable_size_is_found_as_often_as_stated():
    dice = np.random.default_rng(8)
    error = np.sqrt(2 / 3)
    critical = scipy.stats.t.ppf(0.975, 4)
    size = scipy.optimize.brentq(lambda d: scipy.stats.nct.sf(critical, 4, d / error) - POWER, 0.1, 20)
    trials = 600
    found = sum(
        compare(*exact(dice.standard_normal((2, 3)) + np.array([[0], [size]])), [(1, 0)])[0].resolved
        for _ in range(trials)
    )
    assert found / trials == pytest.approx(POWER, abs=0.06)


def test_one_seed_among_many_borrows_their_spread():
    scores, groups = exact([[1.0, 2.0, 3.0], [1.5, 2.5, 3.5], [5.0, 6.0, 7.0]])
    groups[2] = groups[2][:1]
    own, borrowed = compare(scores, groups, [(1, 0), (2, 0)])
    assert (own.seed_spread, borrowed.seed_spread) == ("own", "borrowed")
    assert borrowed.seeds == (1, 3)
    assert borrowed.error == pytest.approx(np.sqrt(1.0 / 1 + 1.0 / 3))
    assert own.error == pytest.approx(np.sqrt(2 / 3))


def test_a_variant_whose_seeds_diverged_is_judged_alone_and_blurs_no_other():
    dice = np.random.default_rng(13)
    values = dice.standard_normal((6, 3))
    calm = compare(*exact(values[:5]), [(1, 0)])[0]
    values[5] = [0.0, 40.0, 80.0]
    scores, groups = exact(values)
    among, diverged = compare(scores, groups, [(1, 0), (5, 0)])
    assert among.error == pytest.approx(calm.error, rel=1.0)
    assert diverged.error == pytest.approx(40 / np.sqrt(3), rel=0.01)
    assert diverged.freedom == pytest.approx(2, rel=0.01)


def test_scores_without_any_noise_differ_by_nothing_or_certainly():
    scores, groups = exact([[100.0, 100.0], [100.0, 100.0], [99.0, 99.0]])
    same, other = compare(scores, groups, [(1, 0), (2, 0)])
    assert (same.p_value, same.low, same.high, same.resolved) == (1.0, 0.0, 0.0, False)
    assert other.resolved


def test_no_comparisons_are_none():
    assert compare(*exact([[1.0, 2.0]]), []) == []


# Correction and moderation


def test_holm_steps_down():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])


def test_holm_is_its_definition():
    p_values = np.random.default_rng(9).random(12) ** 3
    ordered = sorted(p_values)
    expected = [max(min(1, (12 - j) * p) for j, p in enumerate(ordered) if p <= mine) for mine in p_values]
    assert holm(p_values) == pytest.approx(expected)


@pytest.mark.parametrize("prior_freedom", [3.0, 8.0])
def test_the_prior_is_found_again(prior_freedom):
    """Variances drawn as the model says: their own of an inverse chi-square, each seen through three seeds."""
    dice = np.random.default_rng(10)
    true = 2.0 * prior_freedom / dice.chisquare(prior_freedom, 20_000)
    seen = true * dice.chisquare(2, 20_000) / 2
    typical, freedom = moderated(seen, np.full(20_000, 2.0))
    assert freedom == pytest.approx(prior_freedom, rel=0.1)
    assert typical == pytest.approx(seen.mean())


def test_alike_groups_are_worth_the_most_and_no_more():
    seen = np.random.default_rng(11).chisquare(2, 5000) / 2
    assert moderated(seen, np.full(5000, 2.0))[1] == pytest.approx(MOST_ALIKE, rel=0.35)
    assert moderated(np.array([1.0, 1.0, 1.0]), np.array([2, 2, 2]))[1] == MOST_ALIKE


# Simulation


@pytest.mark.parametrize("comparisons", [1, 7, 20])
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_without_a_true_difference_false_alarms_come_at_the_stated_rate(seeds, comparisons):
    """Of a whole family; the drill does the same with sentences, with unequal spreads, and more often."""
    dice = np.random.default_rng([1, seeds, comparisons])
    pairs = [(variant, 0) for variant in range(1, comparisons + 1)]
    trials = 400
    alarms = wrong_intervals = 0
    for _ in range(trials):
        found = compare(*exact(dice.standard_normal((comparisons + 1, seeds))), pairs)
        alarms += any(difference.resolved for difference in found)
        wrong_intervals += any(difference.low > 0 or difference.high < 0 for difference in found)
    assert 0.005 <= alarms / trials <= 0.085  # 5 %, and what 400 trials tell of it
    assert wrong_intervals <= alarms


@pytest.mark.parametrize("of_seeds", [0.0, 0.3])
def test_errors_are_as_large_as_differences_without_a_true_one(of_seeds, monkeypatch):
    """What a seed does by chance with a sentence is seen between seeds and between sentences, and counts once."""
    monkeypatch.setattr(statistics, "SAMPLES", 200)
    dice = np.random.default_rng(12)
    sentences, trials = 60, 250
    differences, variances = [], []
    for _ in range(trials):
        log_probabilities = dice.standard_normal((6, sentences)) + of_seeds * dice.standard_normal((6, 1))
        scores = log_perplexity_scores(log_probabilities + dice.standard_normal(sentences), np.ones(sentences))
        (found,) = compare(scores, [[0, 1, 2], [3, 4, 5]], [(1, 0)])
        differences.append(found.value)
        variances.append(found.error**2)
    assert np.mean(variances) == pytest.approx(2 / 3 * (of_seeds**2 + 1 / sentences), rel=0.2)
    assert np.mean(variances) == pytest.approx(np.var(differences), rel=0.3)
