"""Differences between variants: scores of several seeds on one test set, with simultaneous confidence intervals.

docs/statistics.md derives it. With k seeds of a variant v, k' of its baseline b, and scores y,

    difference = mean(y_v) - mean(y_b)
    variance   = s_v^2 / k + s_b^2 / k' + t^2

s^2 is the variance over seeds on this test set; t^2 is what another choice of sentences would add, from a bootstrap
over sentences (the same for all runs), less the interaction of seeds and sentences, which s^2 already counts. Each of
m comparisons has the level 5 %/m (Bonferroni). tests/drills/test_false_alarms.py simulates the error rates.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import nctdtrinc, stdtr, stdtrit

CONFIDENCE = 0.95
POWER = 0.8
SAMPLES = 2000
# The largest variance does not count as typical if it is this many times the second largest: perhaps some seeds of that
# variant diverged. Only the largest: of two such variants, one may look quiet by chance, and needs the other.
OUTLYING = 100.0
# A smaller difference or error is one of rounding.
ROUNDING = 1e-6
# This many weights of resampled sentences are in memory at a time.
BLOCK = 1 << 22
# Sweeps that are simulated for the minimum detectable difference, and the shares of sentences for which they are.
SIMULATED_SWEEPS = 600
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)


class Scores(NamedTuple):
    """One measure of R runs on one test set."""

    values_R: np.ndarray
    covariance_RR: np.ndarray  # over choices of sentences
    sentences: int  # or clusters of them
    largest: float = np.inf  # that a difference can be


class Difference(NamedTuple):
    """A variant's mean score minus its baseline's, with its uncertainty."""

    value: float
    error: float  # the standard error of value
    df: float  # degrees of freedom of that error
    low: float  # the interval; all intervals of the family are simultaneous, with the stated confidence
    high: float
    p_value: float  # of this comparison alone
    corrected_p: float  # of the family: Bonferroni's
    mde: float | None  # the minimum detectable difference, found with the stated power; None if nothing varies
    seeds: tuple[int, int]  # of the variant and of its baseline
    # "own": both sides have several seeds; "borrowed": one side has one seed, and the spread of other variants is used;
    # "none": no variant has two seeds, and the interval accounts for sentences only.
    seed_spread: str
    is_pooled: bool = False  # whether the spread of other variants also counts for a side that has several seeds
    welch_p: float | None = None  # by Welch's t-test of the two sides' seeds alone; None unless both have two

    @property
    def significant(self) -> bool:
        return self.corrected_p < 1 - CONFIDENCE

    @property
    def fewest_seeds(self) -> int:
        return min(self.seeds)

    def to_json(self) -> dict[str, Any]:
        """With the names that these numbers have in report.json and table.csv."""
        names = {"df": "freedom", "mde": "detectable"}
        return {names.get(name, name): value for name, value in self._asdict().items()}


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


def bleu_scores(statistics_RN10: np.ndarray, clusters_N: np.ndarray | None = None) -> Scores:
    """BLEU of R runs from the statistics of each of N sentences."""
    runs, sentences, _ = statistics_RN10.shape
    columns = np.moveaxis(statistics_RN10, 0, 1).reshape(sentences, -1)
    return _scores(columns, clusters_N, lambda sums: bleu(sums.reshape(-1, runs, 10)), largest=100.0)


def log_perplexity_scores(
    log_probabilities_RN: np.ndarray, units_N: np.ndarray, clusters_N: np.ndarray | None = None
) -> Scores:
    """-log P / units of R runs: the log of the perplexity per token or word, of which each sentence has units_N."""
    columns = np.concatenate([log_probabilities_RN, units_N[None]]).T
    return _scores(columns, clusters_N, lambda sums: -sums[:, :-1] / sums[:, -1:])


def share_scores(right_RN: np.ndarray, clusters_N: np.ndarray | None = None) -> Scores:
    """The shares of right examples of R runs, in percent."""
    columns_NC = np.concatenate([right_RN, np.ones((1, right_RN.shape[1]))]).T
    return _scores(columns_NC, clusters_N, lambda sums: 100 * sums[:, :-1] / sums[:, -1:], largest=100.0)


def _scores(
    columns_NC: np.ndarray,
    clusters_N: np.ndarray | None,
    score: Callable[[np.ndarray], np.ndarray],
    largest: float = np.inf,
) -> Scores:
    """Scores of the sums over sentences, as they are and resampled; `score` makes BC sums into BR scores.

    Clusters of sentences are resampled whole.
    """
    columns = np.asarray(columns_NC, np.float64)
    if clusters_N is not None:
        _, numbers_N = np.unique(clusters_N, return_inverse=True)
        by_sentence, columns = columns, np.zeros((numbers_N.max() + 1, columns.shape[1]))
        np.add.at(columns, numbers_N, by_sentence)
    values = score(columns.sum(0)[None])[0]
    resampled = np.concatenate([score(weights @ columns) for weights in _resampled(len(columns))])
    covariance = np.atleast_2d(np.cov(resampled, rowvar=False))
    return Scores(values, covariance, len(columns), largest)


def _resampled(sentences: int) -> Iterator[np.ndarray]:
    """How often each sentence is drawn in each of SAMPLES bootstrap samples; the samples are always the same."""
    rng = np.random.default_rng(0)
    rows = max(1, min(SAMPLES, BLOCK // sentences))
    for start in range(0, SAMPLES, rows):
        yield rng.multinomial(sentences, np.full(sentences, 1 / sentences), size=min(rows, SAMPLES - start))


class Spread(NamedTuple):
    """The variance between seeds of each of G groups, and how well it is known."""

    variance_G: np.ndarray
    df_G: np.ndarray
    most_df: float  # the most degrees of freedom that any comparison may claim
    with_sentences_G: np.ndarray  # of that variance, the interaction with sentences
    is_pooled_G: np.ndarray  # whether groups with a variance of their own also use the typical one of the others


class Contrasts(NamedTuple):
    """Differences of means of P pairs of groups."""

    values_P: np.ndarray
    errors_P: np.ndarray
    df_P: np.ndarray
    of_sentences_P: np.ndarray  # of the squared errors, the share that the choice of sentences adds

    @property
    def critical_P(self) -> np.ndarray:
        """How many standard errors an interval has on each side."""
        return stdtrit(self.df_P, 1 - (1 - CONFIDENCE) / (2 * len(self.values_P)))

    @property
    def p_values_P(self) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.where(self.values_P == 0, 0.0, np.abs(self.values_P) / self.errors_P)
        return 2 * stdtr(self.df_P, -t)


Pairs = Sequence[tuple[int, int]]


def compare(scores: Scores, groups: Sequence[Sequence[int]], pairs: Pairs) -> list[Difference]:
    """Each pair (variant, baseline) of groups of runs compared, all as one family."""
    if not pairs:
        return []
    spread = _spread(scores, groups)
    found = _contrasts(scores, groups, pairs, spread)
    half = found.critical_P * found.errors_P
    low, high = np.clip([found.values_P - half, found.values_P + half], -scores.largest, scores.largest)
    corrected = np.minimum(found.p_values_P * len(pairs), 1.0)
    columns = (found.values_P, found.errors_P, found.df_P, low, high, found.p_values_P, corrected)
    mdes = _minimum_detectable(groups, pairs, found, has_spread=spread.most_df > 0)
    differences = []
    for numbers, mde, pair in zip(np.stack(columns, axis=-1).tolist(), mdes, pairs, strict=True):
        seeds = (len(groups[pair[0]]), len(groups[pair[1]]))
        seed_spread = "none" if spread.most_df == 0 else "own" if min(seeds) > 1 else "borrowed"
        is_pooled = bool(spread.is_pooled_G[list(pair)].any())
        welch_p = _welch_p(*(scores.values_R[list(groups[group])] for group in pair))
        differences.append(Difference._make([*numbers, mde, seeds, seed_spread, is_pooled, welch_p]))
    return differences


def _welch_p(one_S: np.ndarray, other_S: np.ndarray) -> float | None:
    if min(len(one_S), len(other_S)) < 2:
        return None
    one, other = one_S.var(ddof=1) / len(one_S), other_S.var(ddof=1) / len(other_S)
    if one + other < ROUNDING**2:
        return None
    df = (one + other) ** 2 / (one**2 / (len(one_S) - 1) + other**2 / (len(other_S) - 1))
    return float(2 * stdtr(df, -abs(one_S.mean() - other_S.mean()) / np.sqrt(one + other)))


def not_worse_than_the_best(scores: Scores, groups: Sequence[Sequence[int]], sign: int) -> list[int]:
    """The groups whose mean is not significantly worse than the best one; of `sign` 1 if more is better, else -1.

    Multiple comparisons with the best (Hsu 1984): the truly best group is among them with the stated confidence.
    """
    means = [sign * float(scores.values_R[list(group)].mean()) for group in groups]
    best = int(np.argmax(means))
    others = [number for number in range(len(groups)) if number != best]
    if not others:
        return [best]
    found = _contrasts(scores, groups, [(number, best) for number in others], _spread(scores, groups))
    worse = found.p_values_P * len(others) < 1 - CONFIDENCE
    return sorted([best, *(number for number, is_worse in zip(others, worse, strict=True) if not is_worse)])


def _minimum_detectable(
    groups: Sequence[Sequence[int]], pairs: Pairs, found: Contrasts, has_spread: bool
) -> list[float | None]:
    """The true difference of each pair that such a sweep would find significant with the stated power."""
    sizes = tuple(len(group) for group in groups)
    if has_spread:
        share = min(SHARES, key=lambda share: abs(share - float(np.median(found.of_sentences_P))))
        by_seeds = _simulated(sizes, tuple(pairs), share)
        in_errors = [by_seeds[sizes[variant], sizes[baseline]] for variant, baseline in pairs]
    else:
        # The shift at which the t of noncentrality `shift` is above the critical value with the wanted probability.
        in_errors = nctdtrinc(found.df_P, 1 - POWER, found.critical_P).tolist()
    return [size * error if error > 0 else None for size, error in zip(in_errors, found.errors_P.tolist(), strict=True)]


@functools.lru_cache(maxsize=128)
def _simulated(sizes: tuple[int, ...], pairs: Pairs, of_sentences: float) -> dict[tuple[int, int], float]:
    """The minimum detectable difference in median standard errors, by the seeds of both sides.

    No formula has it: errors and degrees of freedom are estimates, and depend on all groups. So sweeps of this design
    are simulated whose groups all vary alike, `of_sentences` being the sentences' share of a difference's variance.
    """
    rng, group_R = np.random.default_rng(0), np.repeat(np.arange(len(sizes)), sizes)
    groups = [np.flatnonzero(group_R == group).tolist() for group in range(len(sizes))]
    extra = of_sentences / (1 - of_sentences) / float(np.median(sizes))
    covariance = extra * (group_R[:, None] == group_R)
    sweeps = []
    for _ in range(SIMULATED_SWEEPS):
        values = rng.standard_normal(len(group_R)) + np.sqrt(extra) * rng.standard_normal(len(sizes))[group_R]
        scores = Scores(values, covariance, 10**6)
        found = _contrasts(scores, groups, pairs, _spread(scores, groups))
        sweeps.append((found.critical_P * found.errors_P - found.values_P, found.errors_P))
    needed_SP, errors_SP = (np.array(column) for column in zip(*sweeps, strict=True))
    seeds_P = [(sizes[variant], sizes[baseline]) for variant, baseline in pairs]
    alike = {seeds: [other == seeds for other in seeds_P] for seeds in set(seeds_P)}
    return {
        seeds: float(np.quantile(needed_SP[:, same], POWER) / np.median(np.median(errors_SP[:, same], axis=1)))
        for seeds, same in alike.items()
    }


def _spread(scores: Scores, groups: Sequence[Sequence[int]]) -> Spread:
    """The variance between the seeds of each group, adjusted by what is typical of the other groups.

    With n - 1 = f degrees of freedom of its own, a variance s^2 and the typical one of the others c,

        s^2 <= c:  (f s^2 + w c) / (f + w) with f + w degrees of freedom, w = f^2 / 2: so small a spread may be luck
        s^2 >  c:  s^2 with f + w sqrt(c) / s: the more the group scatters, the less the others say about it

    Two other groups at least are needed to say what is typical. The weight is the largest of a simple form that keeps
    the rate of simulated false alarms. No comparison may claim more than half of all degrees of freedom, or those of
    all groups but the largest; with two groups this is min(f), which is valid whatever the variances are (Mickey and
    Brown 1966). It bounds the sum of seeds and sentences too, and so does f times what the seeds alone have: where the
    spread of seeds looks small by luck, the sentences look like all there is.
    """
    dfs = np.array([max(len(group) - 1, 0) for group in groups])
    known = dfs > 0
    if not known.any():
        zeros = np.zeros(len(groups))
        return Spread(zeros, np.full(len(groups), np.inf), 0.0, zeros, known)
    observed, crossed = np.zeros(len(groups)), np.zeros(len(groups))
    for g in (int(index) for index in np.flatnonzero(known)):
        covariance = scores.covariance_RR[np.ix_(groups[g], groups[g])]
        observed[g] = scores.values_R[groups[g]].var(ddof=1)
        crossed[g] = (np.trace(covariance) - covariance.sum() / len(groups[g])) / dfs[g]
    crossed[~known] = crossed[known].mean()

    second = np.sort(observed[known])[-2] if known.sum() > 2 else 0.0
    telling = np.where((second > 0) & (observed > OUTLYING * second), 0, dfs)
    of_others = telling.sum() - telling
    typical = np.maximum((observed @ telling - observed * telling) / np.maximum(of_others, 1), 0)
    others = (telling > 0).sum() - (telling > 0)
    weight = np.where(others > 1, np.minimum(dfs**2 / 2, of_others), 0)
    is_pooled = known & (weight > 0)
    weight = np.where(known, weight, of_others)
    pooled = (dfs * observed + weight * typical) / (dfs + weight)
    wild = observed > typical
    share = np.sqrt(np.divide(typical, observed, out=np.ones(len(groups)), where=wild))
    most = max(min(dfs.sum() / 2, dfs.sum() - dfs.max()), 1.0)
    return Spread(np.where(wild, observed, pooled), dfs + weight * share, most, crossed, is_pooled)


def _contrasts(scores: Scores, groups: Sequence[Sequence[int]], pairs: Pairs, spread: Spread) -> Contrasts:
    sizes_G = np.array([len(group) for group in groups])
    means_GR = np.zeros((len(groups), len(scores.values_R)))
    for number, group in enumerate(groups):
        means_GR[number, list(group)] = 1 / len(group)
    one_P, other_P = np.array(pairs).T

    def both(variance_G: np.ndarray) -> np.ndarray:
        return variance_G[one_P] + variance_G[other_P]

    weights_PR = means_GR[one_P] - means_GR[other_P]
    of_seeds = both(spread.variance_G / sizes_G)
    crossed = np.minimum(both(spread.with_sentences_G / sizes_G), of_seeds)
    of_sentences = np.maximum((weights_PR @ scores.covariance_RR * weights_PR).sum(1) - crossed, 0)
    variance = of_seeds + of_sentences
    variance = np.where(variance < ROUNDING**2, 0.0, variance)
    # Each part counts by how little is known of it, 1 / df (Satterthwaite).
    uncertain = both((spread.variance_G / sizes_G) ** 2 / spread.df_G)
    with np.errstate(divide="ignore", invalid="ignore"):
        df = variance**2 / (of_sentences**2 / (scores.sentences - 1) + uncertain)
        df = np.where(variance > 0, df, scores.sentences - 1)
        if spread.most_df > 0:
            fewest = np.maximum(np.minimum(sizes_G[one_P], sizes_G[other_P]) - 1, 1)
            of_these = np.where(uncertain > 0, of_seeds**2 / uncertain, fewest)  # all seeds of both may tie
            df = np.minimum(np.minimum(df, spread.most_df), fewest * of_these)
        share = np.where(variance > 0, of_sentences / variance, 0.0)
    values = weights_PR @ scores.values_R
    return Contrasts(np.where(np.abs(values) < ROUNDING, 0.0, values), np.sqrt(variance), df, share)
