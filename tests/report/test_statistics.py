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
    mean_scores,
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


def compare(scores, groups, pairs, margin=None):
    """Each pair (variant, baseline) of groups, all as one family."""
    return contrasts(scores, groups, [np.eye(len(groups))[a] - np.eye(len(groups))[b] for a, b in pairs], margin)


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


@pytest.mark.parametrize("scale", [1e-3, 1e-8])
def test_small_scores_are_compared_as_large_ones_are(scale):
    scores = Scores(np.array([3.0, 3.1, 2.9, 6.0, 6.2, 5.9]), np.diag([0.01] * 6), 50)
    small = Scores(scores.values_R * scale, scores.covariance_RR * scale**2, 50)
    (usual,), (found,) = (compare(each, [[0, 1, 2], [3, 4, 5]], [(1, 0)]) for each in (scores, small))
    assert found.p_value == pytest.approx(usual.p_value) and found.value == pytest.approx(usual.value * scale)
    assert found.welch_p == pytest.approx(usual.welch_p) and found.error == pytest.approx(usual.error * scale)


def test_no_interval_is_wider_than_the_scale():
    scores = bleu_scores(np.tile(np.array([9, 9, 5, 2, 1, 0, 9, 8, 7, 6]), (4, 3, 1)))
    (found,) = compare(scores._replace(values_R=np.array([0.0, 90.0, 0.0, 95.0])), [[0, 1], [2, 3]], [(1, 0)])
    assert (found.low, found.high) == (-100.0, 100.0)


def test_no_value_is_outside_its_interval():
    """Means of seven equal scores differ by 100.00000000000001."""
    scores = mean_scores(np.repeat([[0.0], [100.0]], 7, axis=0).repeat(5, axis=1), largest=100.0)
    (found,) = compare(scores, [[*range(7)], [*range(7, 14)]], [(1, 0)])
    assert found.low <= found.value <= found.high == 100.0


@pytest.mark.parametrize("score", ["bleu", "perplexity", "share"])
def test_clusters_are_resampled_whole(score):
    """Ten clusters of ten alike vary as ten examples do, by whatever metric."""
    rng = np.random.default_rng(17)
    ten = rng.random((1, 10)) < 0.5
    once, tenfold = np.where(ten, 1.0, 0.0), np.repeat(np.where(ten, 1.0, 0.0), 10, axis=1)

    def scored(right_RN, clusters_N):
        if score == "share":
            return mean_scores(100 * right_RN, clusters_N)
        if score == "perplexity":
            return log_perplexity_scores(-1 - right_RN, np.ones(right_RN.shape[1]), clusters_N)
        return bleu_scores(right_RN[..., None] * 3 + np.array([9, 9, 5, 4, 3, 2, 9, 8, 7, 6]), clusters_N)

    whole, clustered = scored(once, None), scored(tenfold, np.repeat(np.arange(10), 10))
    assert clustered.sentences == 10 and scored(tenfold, None).sentences == 100
    assert clustered.values_R == pytest.approx(whole.values_R)
    assert clustered.covariance_RR == pytest.approx(whole.covariance_RR)
    assert scored(tenfold, None).covariance_RR[0, 0] < clustered.covariance_RR[0, 0] / 5


def test_a_single_cluster_leaves_the_interval_of_the_seeds():
    right_RN = np.random.default_rng(0).normal(size=(6, 50)) + np.repeat([0, 5], 3)[:, None]
    one_cluster = mean_scores(right_RN, np.zeros(50, int))
    known = one_cluster._replace(sentences=10**9)
    groups, weights = [[0, 1, 2], [3, 4, 5]], [[-1, 1]]
    (found,), (of_seeds,) = (contrasts(scores, groups, weights) for scores in (one_cluster, known))
    assert found.significant and (found.low, found.high) == pytest.approx((of_seeds.low, of_seeds.high))


def test_one_seed_among_many_borrows_their_spread():
    scores, groups = exact([[1.0, 2.0, 3.0], [1.5, 2.5, 3.5], [5.0, 6.0, 7.0]])
    groups[2] = groups[2][:1]
    own, borrowed = compare(scores, groups, [(1, 0), (2, 0)])
    assert (own.seed_spread, borrowed.seed_spread, borrowed.seeds) == ("own", "borrowed", (1, 3))
    assert (own.error, borrowed.error) == pytest.approx((np.sqrt(2 / 3), np.sqrt(4 / 3)))


def test_a_contrast_claims_no_more_than_if_all_groups_had_its_fewest_seeds():
    """False alarms were up to 14 % where quiet groups with many seeds lent two wild seeds their certainty."""
    rng, groups = np.random.default_rng(0), [[*range(8)], [8, 9], [10, 11], [*range(12, 20)]]
    scores = Scores(rng.standard_normal(20), np.zeros((20, 20)), 10**6)
    few, many = contrasts(scores, groups, [[-1, 1, 0, 0], [-1, 0, 0, 1]])
    assert few.df <= 2 < many.df


def test_single_seeds_are_never_equivalent():
    scores = Scores(np.array([20.0, 20.0]), np.eye(2) / 100, 100)
    (single,) = contrasts(scores, [[0], [1]], [[1, -1]], margin=5.0)
    assert single.equivalence_p == 1.0 and not single.equivalent


def test_a_variant_whose_seeds_diverged_is_judged_alone_and_blurs_no_other():
    rng = np.random.default_rng(13)
    values = rng.standard_normal((6, 3))
    calm = compare(*exact(values[:5]), [(1, 0)])[0]
    values[5] = [0.0, 40.0, 80.0]
    scores, groups = exact(values)
    among, diverged = compare(scores, groups, [(1, 0), (5, 0)])
    assert among.error == pytest.approx(calm.error, rel=0.01)
    assert diverged.error == pytest.approx(40 / np.sqrt(3), rel=0.01)
    assert diverged.df == pytest.approx(2, rel=0.05)


def test_one_seed_of_eight_that_learned_badly_blurs_no_other_variant():
    """Its variant's variance is 12 times the second largest, and an F test at 1 % tells more than 7 times."""
    values = np.random.default_rng(13).standard_normal((6, 8))
    calm = compare(*exact(values[:5]), [(1, 0)])[0]
    values[5, 7] = 15.0
    (among,) = compare(*exact(values), [(1, 0)])
    assert among.error == pytest.approx(calm.error, rel=0.01)


def test_a_small_spread_is_taken_for_luck_and_a_large_one_for_true():
    """Written out: three seeds each, variances 0, 1, 1, 1 and 9."""
    quiet, usual, wild = [5.0, 5.0, 5.0], [4.0, 5.0, 6.0], [2.0, 5.0, 8.0]
    scores, groups = exact([quiet, usual, usual, usual, wild])
    found = compare(scores, groups, [(0, 1), (4, 1), (4, 0)])
    typical = {"quiet": 12 / 4, "usual": 11 / 4, "wild": 3 / 4}  # of the others
    drawn = {"quiet": (2 * 0 + 2 * typical["quiet"]) / 4, "usual": (2 * 1 + 2 * typical["usual"]) / 4, "wild": 9.0}
    freedom = {"quiet": 4, "usual": 4, "wild": 2 + 2 * np.sqrt(typical["wild"]) / 3}
    for difference, pair in zip(found, (("quiet", "usual"), ("wild", "usual"), ("wild", "quiet")), strict=True):
        parts = [drawn[name] / 3 for name in pair]
        assert difference.error**2 == pytest.approx(sum(parts))
        satterthwaite = sum(parts) ** 2 / sum(part**2 / freedom[name] for part, name in zip(parts, pair, strict=True))
        assert difference.df == pytest.approx(min(satterthwaite, 10 / 2))


def test_scores_without_any_noise_differ_by_nothing_or_certainly():
    scores, groups = exact([[100.0, 100.0], [100.0, 100.0], [99.0, 99.0]])
    same, other = compare(scores, groups, [(1, 0), (2, 0)])
    assert (same.p_value, same.low, same.high, same.significant, same.mde) == (1.0, 0.0, 0.0, False, None)
    assert not compare(scores, groups, [(1, 0)], margin=1.0)[0].equivalent  # how much they may differ is not known
    assert other.significant
    (found,) = compare(mean_scores(np.tile(100.0 * (np.arange(49) % 7 < 3), (6, 1))), [[0, 1, 2], [3, 4, 5]], [(1, 0)])
    assert (found.value, found.error, found.p_value) == (0, 0, 1)  # identical runs do not differ by rounding


@pytest.mark.parametrize("wrong", [(0, 0, 1, 1), (1, 1, 2, 2), (2, 2, 2, 4, 4, 4)])
def test_seeds_that_tie_by_luck_are_not_certain(wrong):
    """Few of 500 examples are wrong, each in one run only, so that all is interaction of seeds and examples."""
    right = np.ones((len(wrong), 500))
    ends = np.cumsum(wrong)
    for run, (end, number) in enumerate(zip(ends, wrong, strict=True)):
        right[run, end - number : end] = 0
    scores, groups = mean_scores(100 * right), np.split(np.arange(len(wrong)), 2)
    (found,) = compare(scores, groups, [(1, 0)])
    seeds = len(groups[0])
    # The variance of a count is about the count, and one example is 0.2 %.
    assert found.error**2 == pytest.approx(0.04 * sum(wrong) / seeds**2, rel=0.1)
    assert found.df == pytest.approx(seeds - 1)
    assert found.p_value > 0.05


def test_a_contrast_of_two_groups_is_their_difference_and_others_add_variances():
    scores, groups = exact([[1.0, 2.0, 3.0], [2.0, 3.0, 4.0], [5.0, 6.0, 7.0], [9.0, 10.0, 11.0]])
    (pair,) = compare(scores, groups, [(3, 0)])
    assert contrasts(scores, groups, [[-1, 0, 0, 1]]) == [pair]
    main, interaction = contrasts(scores, groups, [[-0.5, 0.5, -0.5, 0.5], [1, -1, -1, 1]])
    assert (main.value, interaction.value) == pytest.approx((2.5, 3.0))
    assert (main.error, interaction.error) == pytest.approx((np.sqrt(1 / 3), np.sqrt(4 / 3)))
    assert main.welch_p == pytest.approx(2 * scipy.stats.t.sf(2.5 / np.sqrt(1 / 3), 8))


def test_intervals_agree_with_p_values_of_difference_and_equivalence():
    rng = np.random.default_rng(19)
    verdicts, seen = set(), set()
    for _ in range(60):
        scores, groups = exact(rng.standard_normal((4, 5)) + np.array([0, 0, 0, 2])[:, None])
        for found in compare(scores, groups, [(1, 0), (2, 0), (3, 0)], margin=2.5):
            assert found.corrected_p == pytest.approx(min(1, 3 * found.p_value))
            assert found.significant == (found.low > 0 or found.high < 0)
            half = scipy.stats.t.isf(0.05 / 3, found.df) * found.error
            assert found.equivalent == (found.value - half > -2.5 and found.value + half < 2.5)
            verdicts.add(found.equivalent)
            seen.add(found.significant)
    assert verdicts == seen == {True, False}
    assert compare(scores, groups, [(1, 0)])[0].equivalence_p is None
