"""Differences between variants: scores of several seeds on one test set, with simultaneous confidence intervals.

A score depends on the seed of a training and on the sentences of the test set, and a difference between two variants is
judged against both. With k seeds of a variant v, k' of its baseline b, and scores y,

    difference = mean(y_v) - mean(y_b)
    variance   = s_v^2 / k + s_b^2 / k' + t^2

s^2 is the variance over seeds on this test set; t^2 is what another choice of sentences would add. The bootstrap over
sentences (the same for all runs, so that what is hard for all cancels) gives the covariance of all scores, and with it
the variance of a difference of means. That includes the interaction of seeds and sentences, which s^2 already counts,
so it is subtracted; but no more than s^2 counts, since seeds often tie by luck where few examples are right, or wrong.
So no interval is narrower than that of the sentences alone.

Two, three or five seeds say little about s, and the seeds of one variant may vary more than those of another: a pooled
variance raises false alarms, most of all where it is the baseline, part of every comparison, that varies more. So the
typical variance of the other variants only raises a small s^2, and adds degrees of freedom only as far as s^2 looks
typical (see `_spread`). Welch and Satterthwaite give the degrees of freedom of the sum. Each of m comparisons has the
level 5 %/m (Bonferroni), so an interval excludes zero exactly where the corrected p-value is below 5 %. Holm's steps
would not be valid: the last of them tests a single p-value at 5 %, where so few seeds give up to 9 % false alarms.
docs/experiments.md has the simulated rates; tests/drills/test_false_alarms.py computes them.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import nctdtrinc, stdtr, stdtrit

CONFIDENCE = 0.95
POWER = 0.8
SAMPLES = 2000
# The largest variance does not count as typical if it is this many times the second largest: perhaps some seeds of that
# variant diverged. Only the largest: of two such variants, one may look quiet by chance, and needs the other.
OUTLYING = 100.0
# This many weights of resampled sentences are in memory at a time.
BLOCK = 1 << 22


class Scores(NamedTuple):
    """One measure of R runs on one test set."""

    values_R: np.ndarray
    covariance_RR: np.ndarray  # over choices of sentences
    sentences: int


class Difference(NamedTuple):
    """A variant's mean score minus its baseline's, with its uncertainty."""

    value: float
    error: float  # the standard error of value
    freedom: float  # degrees of freedom of that error
    low: float  # the interval; all intervals of the family are simultaneous, with the stated confidence
    high: float
    p_value: float  # of this comparison alone
    corrected_p: float  # of the family: Bonferroni's
    detectable: float  # the true difference that would have been found with the stated power
    seeds: tuple[int, int]  # of the variant and of its baseline
    # "own": both sides have several seeds; "borrowed": one side has one seed, and the spread of other variants is used;
    # "none": no variant has two seeds, and the interval accounts for sentences only.
    seed_spread: str
    is_pooled: bool = False  # whether the spread of other variants also counts for a side that has several seeds

    @property
    def significant(self) -> bool:
        return self.corrected_p < 1 - CONFIDENCE


def bleu(totals: np.ndarray) -> np.ndarray:
    """Corpus BLEU of added-up `evaluation.bleu_statistics` (the last axis), with sacreBLEU's exponential smoothing."""
    sums = np.asarray(totals, np.float64)
    length, reference, matches, counts = sums[..., 0], sums[..., 1], sums[..., 2:6], sums[..., 6:10]
    none = matches == 0
    smoothed = np.where(none, 0.5 ** np.cumsum(none, axis=-1), matches)
    with np.errstate(divide="ignore", invalid="ignore"):
        precisions = np.where(counts > 0, smoothed / counts, 0.0)
        brevity = np.where(length < reference, np.exp(1 - reference / length), 1.0)
        score = 100 * brevity * np.exp(np.log(precisions).mean(-1))
    return np.where(none.all(-1) | (length == 0), 0.0, score)


def bleu_scores(statistics_RN10: np.ndarray) -> Scores:
    """BLEU of R runs from the statistics of each of N sentences."""
    runs, sentences, _ = statistics_RN10.shape
    columns = np.moveaxis(statistics_RN10, 0, 1).reshape(sentences, -1)
    return _scores(columns, lambda sums: bleu(sums.reshape(-1, runs, 10)))


def log_perplexity_scores(log_probabilities_RN: np.ndarray, units_N: np.ndarray) -> Scores:
    """-log P / units of R runs: the log of the perplexity per token or word, of which each sentence has units_N."""
    columns = np.concatenate([log_probabilities_RN, units_N[None]]).T
    return _scores(columns, lambda sums: -sums[:, :-1] / sums[:, -1:])


def share_scores(right_RN: np.ndarray, clusters_N: np.ndarray) -> Scores:
    """The shares of right examples of R runs, in percent; clusters of examples are resampled whole."""
    columns_NC = np.concatenate([right_RN, np.ones((1, right_RN.shape[1]))]).T
    _, numbers_N = np.unique(clusters_N, return_inverse=True)
    by_cluster = np.zeros((numbers_N.max() + 1, columns_NC.shape[1]))
    np.add.at(by_cluster, numbers_N, columns_NC)
    return _scores(by_cluster, lambda sums: 100 * sums[:, :-1] / sums[:, -1:])


def _scores(columns_NC: np.ndarray, score: Callable[[np.ndarray], np.ndarray]) -> Scores:
    """Scores of the sums over sentences, as they are and resampled; `score` makes BC sums into BR scores."""
    columns = np.asarray(columns_NC, np.float64)
    values = score(columns.sum(0)[None])[0]
    resampled = np.concatenate([score(weights @ columns) for weights in _resampled(len(columns))])
    covariance = np.atleast_2d(np.cov(resampled, rowvar=False))
    return Scores(values, covariance, len(columns))


def _resampled(sentences: int) -> Iterator[np.ndarray]:
    """How often each sentence is drawn in each of SAMPLES bootstrap samples; the samples are always the same."""
    rng = np.random.default_rng(0)
    rows = max(1, min(SAMPLES, BLOCK // sentences))
    for start in range(0, SAMPLES, rows):
        yield rng.multinomial(sentences, np.full(sentences, 1 / sentences), size=min(rows, SAMPLES - start))


def rank_correlation(one_N: Sequence[float], other_N: Sequence[float]) -> float | None:
    """Spearman's: the correlation of the ranks, equal values sharing their mean rank; None if it is undefined."""
    ranks = np.array([_ranks(one_N), _ranks(other_N)])
    if ranks.shape[1] < 2 or (ranks.std(-1) == 0).any():
        return None
    return float(np.corrcoef(ranks)[0, 1])


def _ranks(values_N: Sequence[float]) -> np.ndarray:
    _, place, times = np.unique(values_N, return_inverse=True, return_counts=True)
    return (np.cumsum(times) - (times - 1) / 2)[place]


class Spread(NamedTuple):
    """The variance between seeds of each of G groups, and how well it is known."""

    variance_G: np.ndarray
    freedom_G: np.ndarray
    most_freedom: float  # the most degrees of freedom that any comparison may claim
    with_sentences_G: np.ndarray  # of that variance, the interaction with sentences
    is_pooled_G: np.ndarray  # whether groups with a variance of their own also use the typical one of the others


def compare(scores: Scores, groups: Sequence[Sequence[int]], pairs: Sequence[tuple[int, int]]) -> list[Difference]:
    """Each pair (variant, baseline) of groups of runs compared, all as one family."""
    if not pairs:
        return []
    spread = _spread(scores, groups)
    contrasts = [_contrast(scores, groups, pair, spread) for pair in pairs]
    values, errors, freedoms = (np.array(column) for column in zip(*contrasts, strict=True))
    p_values = _p_values(values, errors, freedoms)
    critical = stdtrit(freedoms, 1 - (1 - CONFIDENCE) / (2 * len(pairs)))
    low, high = values - critical * errors, values + critical * errors
    corrected = np.minimum(p_values * len(pairs), 1.0)
    # The shift at which the t of noncentrality `shift` is above the critical value with the wanted probability.
    detectable = errors * nctdtrinc(freedoms, 1 - POWER, critical)
    columns = (values, errors, freedoms, low, high, p_values, corrected, detectable)
    differences = []
    for numbers, pair in zip(np.stack(columns, axis=-1).tolist(), pairs, strict=True):
        seeds = (len(groups[pair[0]]), len(groups[pair[1]]))
        is_pooled = bool(spread.is_pooled_G[list(pair)].any())
        differences.append(Difference._make([*numbers, seeds, _seed_spread(spread, seeds), is_pooled]))
    return differences


def _spread(scores: Scores, groups: Sequence[Sequence[int]]) -> Spread:
    """The variance between the seeds of each group, adjusted by what is typical of the other groups.

    With n - 1 = f degrees of freedom of its own, a variance s^2 and the typical one of the others c,

        s^2 <= c:  (f s^2 + w c) / (f + w) with f + w degrees of freedom, w = f^2 / 2: so small a spread may be luck
        s^2 >  c:  s^2 with f + w sqrt(c) / s: the more the group scatters, the less the others say about it

    Two other groups at least are needed to say what is typical. The weight was chosen by simulation, as the largest of
    a simple form that keeps the rate of false alarms whichever groups are the wild ones (tests/drills). No comparison
    may claim more than half of all degrees of freedom, or those of all groups but the largest: the others may be quiet.
    With two groups this is min(f), which is valid whatever the variances are (Mickey and Brown 1966). It bounds the sum
    of seeds and sentences too, and so does f times what the seeds alone have: where the spread of seeds looks small by
    luck, the sentences look like all there is.
    """
    freedoms = np.array([max(len(group) - 1, 0) for group in groups])
    known = freedoms > 0
    if not known.any():
        zeros = np.zeros(len(groups))
        return Spread(zeros, np.full(len(groups), np.inf), 0.0, zeros, known)
    observed, crossed = np.zeros(len(groups)), np.zeros(len(groups))
    for g in (int(index) for index in np.flatnonzero(known)):
        covariance = scores.covariance_RR[np.ix_(groups[g], groups[g])]
        observed[g] = scores.values_R[groups[g]].var(ddof=1)
        crossed[g] = (np.trace(covariance) - covariance.sum() / len(groups[g])) / freedoms[g]
    crossed[~known] = crossed[known].mean()

    telling = np.where(_is_outlying(observed, known), 0, freedoms)
    of_others = telling.sum() - telling
    typical = np.maximum((observed @ telling - observed * telling) / np.maximum(of_others, 1), 0)
    others = (telling > 0).sum() - (telling > 0)
    weight = np.where(others > 1, np.minimum(freedoms**2 / 2, of_others), 0)
    is_pooled = known & (weight > 0)
    weight = np.where(known, weight, of_others)
    pooled = (freedoms * observed + weight * typical) / (freedoms + weight)
    wild = observed > typical
    share = np.sqrt(np.divide(typical, observed, out=np.ones(len(groups)), where=wild))
    most = max(min(freedoms.sum() / 2, freedoms.sum() - freedoms.max()), 1.0)
    return Spread(np.where(wild, observed, pooled), freedoms + weight * share, most, crossed, is_pooled)


def _is_outlying(observed_G: np.ndarray, known_G: np.ndarray) -> np.ndarray:
    """Marks the group whose variance is far beyond the second largest, if there is one."""
    largest = np.sort(observed_G[known_G])[::-1]
    return observed_G > OUTLYING * largest[1] if len(largest) > 2 and largest[1] > 0 else np.zeros(len(known_G), bool)


def _contrast(
    scores: Scores, groups: Sequence[Sequence[int]], pair: tuple[int, int], spread: Spread
) -> tuple[float, float, float]:
    """The difference of two groups' means, its standard error, and the degrees of freedom of that."""
    weights = np.zeros(len(scores.values_R))
    seeds = []
    crossed = 0.0
    for group, sign in zip(pair, (1, -1), strict=True):
        size = len(groups[group])
        weights[list(groups[group])] += sign / size
        seeds.append((spread.variance_G[group] / size, spread.freedom_G[group]))
        crossed += spread.with_sentences_G[group] / size
    of_seeds = sum(variance for variance, _ in seeds)
    uncertain = sum(variance**2 / freedom for variance, freedom in seeds)
    of_sentences = max(float(weights @ scores.covariance_RR @ weights) - min(crossed, of_seeds), 0.0)
    variance = of_seeds + of_sentences
    if variance == 0:
        return float(weights @ scores.values_R), 0.0, float(scores.sentences - 1)
    # Each part counts by how little is known of it, 1 / freedom (Satterthwaite).
    freedom = float(variance**2 / (of_sentences**2 / (scores.sentences - 1) + uncertain))
    if spread.most_freedom > 0:
        fewest = max(min(len(groups[group]) for group in pair) - 1, 1)
        of_these = float(of_seeds**2 / uncertain) if uncertain > 0 else fewest  # all seeds of both tie
        freedom = min(freedom, spread.most_freedom, fewest * of_these)
    return float(weights @ scores.values_R), float(np.sqrt(variance)), freedom


def _p_values(values: np.ndarray, errors: np.ndarray, freedoms: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(values == 0, 0.0, np.abs(values) / errors)
    return 2 * stdtr(freedoms, -t)


def _seed_spread(spread: Spread, sizes: Sequence[int]) -> str:
    if spread.most_freedom == 0:
        return "none"
    return "own" if min(sizes) > 1 else "borrowed"
