"""Differences between variants: against scipy, sacreBLEU, brute force, and simulation where the truth is known."""

import numpy as np
import pytest
import scipy.stats

from tests.support.bleu import bleu_of_statistics
from transformer_jax.bootstrap import paired_bootstrap
from transformer_jax.evaluation import bleu_statistics
from transformer_jax.report.statistics import (
    CONFIDENCE,
    POWER,
    Scores,
    bleu,
    bleu_scores,
    contrasts,
    log_perplexity_scores,
)

WORDS = np.array(list("abcdefghijklmnop"))


def corpus(sentences, error_rates, seed=0):
    """References, and for each rate translations in which so many words are wrong."""
    rng = np.random.default_rng(seed)
    references = [" ".join(rng.choice(WORDS, rng.integers(6, 14))) for _ in range(sentences)]

    def translated(rate):
        return [
            " ".join(str(rng.choice(WORDS)) if rng.random() < rate else word for word in reference.split())
            for reference in references
        ]

    return references, [translated(rate) for rate in error_rates]


def exact(values_GK):
    """Scores of G groups of K seeds on so many sentences that their choice is no matter."""
    values = np.asarray(values_GK, float)
    groups = np.arange(values.size).reshape(values.shape).tolist()
    return Scores(values.ravel(), np.zeros((values.size, values.size)), 10**9), groups


def compare(scores, groups, pairs):
    """Each pair (variant, baseline) of groups, all as one family."""
    return contrasts(scores, groups, [np.eye(len(groups))[a] - np.eye(len(groups))[b] for a, b in pairs])


# Scores of single runs


def test_bleu_of_sums_is_sacrebleus():
    rng = np.random.default_rng(0)
    counts = np.sort(rng.integers(0, 40, (200, 4)))[:, ::-1]
    matches = np.minimum(counts, rng.integers(0, 30, (200, 4)))
    totals = np.concatenate([rng.integers(1, 60, (200, 2)), matches, counts], axis=1)
    totals[0] = 0
    totals[1, 2:6] = 0
    totals[2, 3:6] = 0
    expected = [bleu_of_statistics(row) for row in totals]
    assert bleu(totals) == pytest.approx(expected, abs=1e-9)
    assert 20 < sum(score > 0 for score in expected) < 200


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
    rng = np.random.default_rng(1)
    drawn = [rng.integers(0, 60, 60) for _ in range(1000)]
    brute = np.cov(
        [[bleu_of_statistics(rows[chosen].sum(0)) for rows in statistics_RN10] for chosen in drawn], rowvar=False
    )
    assert bleu_scores(statistics_RN10).covariance_RR == pytest.approx(brute, rel=0.15, abs=0.1 * brute.max())


# Comparisons


def test_two_groups_are_welchs_t_test_with_the_fewest_degrees_of_freedom():
    """Valid whatever the two variances are: the group with fewer seeds bounds what Welch's formula estimates."""
    values = [[25.1, 25.9, 25.4], [24.2, 24.4, 24.9]]
    scores, groups = exact(values)
    (difference,) = compare(scores, groups, [(1, 0)])
    welch = scipy.stats.ttest_ind(values[1], values[0], equal_var=False)
    assert difference.df == pytest.approx(2)
    assert difference.p_value == pytest.approx(2 * scipy.stats.t.sf(abs(welch.statistic), 2))
    assert difference.welch_p == pytest.approx(welch.pvalue)
    half = scipy.stats.t.isf((1 - CONFIDENCE) / 2, 2) * difference.error
    assert (difference.low, difference.high) == pytest.approx((difference.value - half, difference.value + half))
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
    rng = np.random.default_rng(5)
    noise = rng.standard_normal((6, 6))
    noise += 2 * np.repeat(rng.standard_normal((2, 6)), 3, axis=0)  # what the seeds of one variant share
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
    # Welch and Satterthwaite would say more, but where both spreads may be small by luck they cannot be believed.
    assert (of_seeds + of_sentences) ** 2 / (of_seeds**2 / 2 + of_sentences**2 / 49) > 2
    assert difference.df == pytest.approx(2)


def test_sentences_add_degrees_of_freedom_as_far_as_seeds_allow():
    """Of many groups with the same spread, 3 seeds each: each s^2 is the typical one."""
    groups = np.arange(30).reshape(10, 3)
    of_sentences = 0.8 * np.kron(np.eye(10), np.ones((3, 3)))
    scores = Scores(np.tile([4.0, 5.0, 6.0], 10), of_sentences, 50)
    (difference,) = compare(scores, groups.tolist(), [(1, 0)])
    assert difference.error**2 == pytest.approx(2 / 3 + 1.6)
    assert difference.df == pytest.approx(min((2 / 3 + 1.6) ** 2 / ((2 / 3) ** 2 / 8 + 1.6**2 / 49), 20 / 2))
    few = compare(scores._replace(covariance_RR=0.01 * of_sentences), groups.tolist(), [(1, 0)])[0]
    assert few.df == pytest.approx((2 / 3 + 0.016) ** 2 / ((2 / 3) ** 2 / 8 + 0.016**2 / 49))
    assert 8 < few.df < 10


@pytest.mark.parametrize(
    ("seeds", "comparisons", "of_sentences", "size"),
    [(3, 1, 0.0, 4.3), (3, 19, 0.0, 5.5), (3, 7, 0.5, None)],
)
def test_a_true_difference_of_the_minimum_detectable_size_is_found_as_often_as_stated(
    seeds, comparisons, of_sentences, size
):
    """The median of what is reported, in standard deviations between seeds; a formula gave 3.8 for the second."""
    rng = np.random.default_rng([8, seeds, comparisons])
    groups = np.arange(seeds * (comparisons + 1)).reshape(comparisons + 1, seeds)
    pairs = [(variant, 0) for variant in range(1, comparisons + 1)]
    covariance = of_sentences * np.kron(np.eye(comparisons + 1), np.ones((seeds, seeds)))
    reported, needed = [], []
    for _ in range(400):
        values = rng.standard_normal(groups.shape) + np.sqrt(of_sentences) * rng.standard_normal((comparisons + 1, 1))
        found = compare(Scores(values.ravel(), covariance, 10**6), groups.tolist(), pairs)
        reported.append(np.median([difference.mde for difference in found]))
        needed += [(difference.high - difference.low) / 2 - difference.value for difference in found]
    mde = np.median(reported)
    assert size is None or mde == pytest.approx(size, rel=0.12)
    assert np.mean(np.array(needed) < mde) == pytest.approx(POWER, abs=0.05)


def test_of_one_seed_the_minimum_detectable_difference_has_the_stated_power():
    scores = Scores(np.array([1.0, 1.3, 0.8]), np.diag([0.1, 0.2, 0.3]), 50)
    for found in compare(scores, [[0], [1], [2]], [(1, 0), (2, 0)]):
        critical = (found.high - found.value) / found.error
        assert scipy.stats.nct.sf(critical, found.df, found.mde / found.error) == pytest.approx(POWER, abs=1e-6)


def test_no_interval_is_wider_than_the_scale():
    scores = bleu_scores(np.tile(np.array([9, 9, 5, 2, 1, 0, 9, 8, 7, 6]), (4, 3, 1)))
    (found,) = compare(scores._replace(values_R=np.array([0.0, 90.0, 0.0, 95.0])), [[0, 1], [2, 3]], [(1, 0)])
    assert (found.low, found.high) == (-100.0, 100.0)
