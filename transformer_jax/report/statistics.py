"""Contrasts of variants: scores of several seeds on one test set, with simultaneous confidence intervals.

docs/statistics.md describes it. With weights c that sum to 0, k_v seeds of a variant v, and scores y,

    contrast = sum of c_v mean(y_v)
    variance = sum of c_v^2 s_v^2 / k_v + t^2

s^2 is the variance over seeds on this test set; t^2 is what another choice of sentences would add, from a bootstrap
over sentences (the same for all runs), less the interaction of seeds and sentences, which s^2 already counts. Each of
m contrasts has the level 5 %/m (Bonferroni). The difference of a variant from its baseline has weights 1 and -1.
tests/drills/test_false_alarms.py simulates the error rates.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import fdtri, nctdtrinc, stdtr, stdtrit

CONFIDENCE = 0.95
POWER = 0.8
SAMPLES = 2000
# The largest variance does not count as typical if an F test at this level tells it from the second largest: perhaps
# some seeds of that variant diverged. Only the largest: of two such variants, one may look quiet by chance, and needs
# the other.
OUTLYING = 0.01
ROUNDING = 1e-6  # of scores, or of the largest of them if that is below 1
# This many weights of resampled sentences are in memory at a time.
BLOCK = 1 << 22
# Sweeps that are simulated for the minimum detectable difference: the most, and the fewest of a large design, in which
# each sweep has many differences; and about how many runs they have together.
SIMULATED_SWEEPS, FEWEST_SWEEPS, SIMULATED_RUNS = 10_000, 1000, 4_000_000


class Scores(NamedTuple):
    """One measure of R runs on one test set."""

    values_R: np.ndarray
    covariance_RR: np.ndarray  # over choices of sentences
    sentences: int  # or clusters of them
    largest: float = np.inf  # that a difference can be

    @property
    def rounding(self) -> float:
        """A smaller difference or error is one of rounding."""
        return ROUNDING * min(1.0, float(np.abs(self.values_R).max()) or 1.0)


class Difference(NamedTuple):
    """A variant's mean score minus its baseline's, or another contrast, with its uncertainty."""

    value: float
    error: float  # the standard error of value
    df: float  # degrees of freedom of that error
    low: float  # the interval; all intervals of the family are simultaneous, with the stated confidence
    high: float
    p_value: float  # of this comparison alone
    corrected_p: float  # of the family: Bonferroni's
    mde: float | None  # the minimum detectable difference, found with the stated power; None if nothing varies
    seeds: tuple[int, int]  # the fewest of variants with positive and with negative weights
    # "own": all have several seeds; "borrowed": one has one seed, and the spread of other variants is used; "none": no
    # variant has two seeds, and the interval accounts for sentences only.
    seed_spread: str
    is_pooled: bool = False  # whether the spread of other variants also counts for one that has several seeds
    welch_p: float | None = None  # by Welch's t-test of these seeds alone; None unless all have two
    # Hypothesis: the true difference is at least the margin. Two one-sided tests, corrected. None: no margin.
    equivalence_p: float | None = None

    @property
    def significant(self) -> bool:
        return self.corrected_p < 1 - CONFIDENCE

    @property
    def equivalent(self) -> bool:
        """Whether the interval of the family's level on each side is within the margin."""
        return self.equivalence_p is not None and self.equivalence_p < 1 - CONFIDENCE

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


def mean_scores(scores_RN: np.ndarray, clusters_N: np.ndarray | None = None, largest: float = np.inf) -> Scores:
    """The mean scores of R runs from the score of each of N sentences."""
    columns_NC = np.concatenate([scores_RN, np.ones((1, scores_RN.shape[1]))]).T
    return _scores(columns_NC, clusters_N, lambda sums: sums[:, :-1] / sums[:, -1:], largest)


def mean_interval(seeds: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """The t interval of the mean of several seeds, alone and not corrected."""
    if len(seeds) < 2:
        return None, None
    mean, df = float(np.mean(seeds)), len(seeds) - 1
    half = float(stdtrit(df, (1 + CONFIDENCE) / 2) * np.std(seeds, ddof=1) / (df + 1) ** 0.5)
    return mean - half, mean + half


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
    with_sentences_G: np.ndarray  # of that variance, the interaction with sentences
    is_pooled_G: np.ndarray  # whether groups of several seeds also use the typical variance of the others


class Estimates(NamedTuple):
    """P contrasts of means of groups; of simulated sweeps, with an axis of these before."""

    values_P: np.ndarray
    errors_P: np.ndarray
    df_P: np.ndarray
    of_sentences_P: np.ndarray  # of the squared errors, the share that the choice of sentences adds

    @property
    def critical_P(self) -> np.ndarray:
        """How many standard errors an interval has on each side."""
        return stdtrit(self.df_P, 1 - (1 - CONFIDENCE) / (2 * self.values_P.shape[-1]))

    @property
    def p_values_P(self) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.where(self.values_P == 0, 0.0, np.abs(self.values_P) / self.errors_P)
        return 2 * stdtr(self.df_P, -t)

    def outside_P(self, margin: float) -> np.ndarray:
        """The p-values of two one-sided tests that the true value is outside the margin; 1 where no score varies."""
        with np.errstate(divide="ignore"):
            p_values = stdtr(self.df_P, (np.abs(self.values_P) - margin) / self.errors_P)
        return np.where(self.errors_P > 0, p_values, 1.0)


def contrasts(
    scores: Scores, groups: Sequence[Sequence[int]], weights_PG: ArrayLike, margin: float | None = None
) -> list[Difference]:
    """Sums of the means of groups of runs with these weights, all as one family.

    With a `margin`, each is also tested for equivalence: whether the true value is closer to 0 than that.
    """
    weights_PG = np.asarray(weights_PG, np.float64)
    if not weights_PG.size:
        return []
    spread, sizes_G = _spread(scores, groups), np.array([len(group) for group in groups])
    found = _estimates(scores, groups, weights_PG, spread)
    half, largest = found.critical_P * found.errors_P, scores.largest * np.abs(weights_PG).sum(1) / 2
    values, low, high = np.clip([found.values_P, found.values_P - half, found.values_P + half], -largest, largest)
    corrected = np.minimum(found.p_values_P * len(weights_PG), 1.0)
    columns = (values, found.errors_P, found.df_P, low, high, found.p_values_P, corrected)
    has_spread = sizes_G.max() > 1
    mdes = _minimum_detectable(sizes_G, weights_PG, found, has_spread)
    welch = _welch_p(scores, groups, weights_PG)
    outside = [None] * len(mdes)
    if margin is not None:
        # Single seeds do not show how much another seed would change.
        p_values_P = found.outside_P(margin) if has_spread else np.ones(len(mdes))
        outside = np.minimum(p_values_P * len(mdes), 1.0).tolist()
    differences = []
    for numbers, mde, weights_G, welch_p, equivalence_p in zip(
        np.stack(columns, axis=-1).tolist(), mdes, weights_PG, welch, outside, strict=True
    ):
        seeds = (int(sizes_G[weights_G > 0].min()), int(sizes_G[weights_G < 0].min()))
        seed_spread = "none" if not has_spread else "own" if min(seeds) > 1 else "borrowed"
        is_pooled = bool(spread.is_pooled_G[weights_G != 0].any())
        differences.append(Difference._make([*numbers, mde, seeds, seed_spread, is_pooled, welch_p, equivalence_p]))
    return differences


def _welch_p(scores: Scores, groups: Sequence[Sequence[int]], weights_PG: np.ndarray) -> list[float | None]:
    """Welch's t-test of each contrast, uncorrected, of the seeds of its groups alone."""
    found: list[float | None] = []
    for weights_G in weights_PG:
        used = [(c, scores.values_R[list(group)]) for c, group in zip(weights_G, groups, strict=True) if c]
        dfs = np.array([len(values) - 1 for _, values in used])
        parts = np.array([c**2 * values.var() / max(len(values) - 1, 1) for c, values in used])
        variance, value = parts.sum(), abs(sum(c * values.mean() for c, values in used))
        is_known = dfs.min() > 0 and variance > scores.rounding**2
        df = variance**2 / (parts**2 / np.maximum(dfs, 1)).sum() if is_known else 1
        found.append(float(2 * stdtr(df, -value / variance**0.5)) if is_known else None)
    return found


def _minimum_detectable(
    sizes_G: np.ndarray, weights_PG: np.ndarray, found: Estimates, has_spread: bool
) -> list[float | None]:
    """The true value of each contrast that such a sweep would find significant with the stated power."""
    if has_spread:
        share = min(round(float(np.median(found.of_sentences_P)), 1), 0.9)
        in_errors = _simulated(tuple(sizes_G.tolist()), tuple(map(tuple, weights_PG.tolist())), share)
    else:
        # The shift at which the t of noncentrality `shift` is above the critical value with the wanted probability.
        in_errors = nctdtrinc(found.df_P, 1 - POWER, found.critical_P).tolist()
    return [size * error if error > 0 else None for size, error in zip(in_errors, found.errors_P.tolist(), strict=True)]


@functools.lru_cache(maxsize=128)
def _simulated(sizes_G: tuple[int, ...], weights_PG: tuple[tuple[float, ...], ...], of_sentences: float) -> list[float]:
    """The minimum detectable value of each contrast in median standard errors.

    No formula has it: errors and degrees of freedom are estimates, and depend on all groups. So sweeps of this design
    are simulated whose groups all vary alike, `of_sentences` being the sentences' share of a contrast's variance.
    """
    sweeps = min(max(SIMULATED_RUNS // sum(sizes_G), FEWEST_SWEEPS), SIMULATED_SWEEPS)
    scores, groups = simulated_scores(np.random.default_rng(0), sweeps, sizes_G, of_sentences)
    found = _estimates(scores, groups, np.array(weights_PG), _spread(scores, groups))
    needed_SP = found.critical_P * found.errors_P - found.values_P
    # Contrasts of one form, as all differences of variants with three seeds, are one quantity.
    forms = [tuple(sorted(zip(row, sizes_G, strict=True))) for row in weights_PG]
    by_form = {}
    for form in set(forms):
        alike = [other == form for other in forms]
        errors = np.median(np.median(found.errors_P[:, alike], axis=1))
        by_form[form] = float(np.quantile(needed_SP[:, alike], POWER) / errors)
    return [by_form[form] for form in forms]


def simulated_scores(
    rng: np.random.Generator,
    sweeps: int,
    sizes_G: Sequence[int],
    of_sentences: float = 0.0,
    deviations_G: ArrayLike = 1.0,
) -> tuple[Scores, list[list[int]]]:
    """Scores of many sweeps without true differences, on an axis before the runs, and the groups of runs.

    Seeds have these standard deviations; where these are 1, `of_sentences` is the sentences' share of a difference's
    variance.
    """
    group_R = np.repeat(np.arange(len(sizes_G)), sizes_G)
    groups = [np.flatnonzero(group_R == group).tolist() for group in range(len(sizes_G))]
    extra = of_sentences / (1 - of_sentences) / float(np.median(sizes_G))
    deviations_R = np.broadcast_to(deviations_G, len(sizes_G))[group_R]
    values_SR = deviations_R * rng.standard_normal((sweeps, len(group_R)))
    values_SR += np.sqrt(extra) * rng.standard_normal((sweeps, len(sizes_G)))[:, group_R]
    return Scores(values_SR, extra * (group_R[:, None] == group_R), 10**6), groups


def _averages(scores: Scores, groups: Sequence[Sequence[int]]) -> np.ndarray:
    """The weights by which scores become the means of groups."""
    means_GR = np.zeros((len(groups), scores.values_R.shape[-1]))
    for number, group in enumerate(groups):
        means_GR[number, list(group)] = 1 / len(group)
    return means_GR


def _spread(scores: Scores, groups: Sequence[Sequence[int]]) -> Spread:
    """The variance between the seeds of each group, adjusted by what is typical of the other groups.

    With n - 1 = f degrees of freedom, a variance s^2 and the typical one of the others c,

        s^2 <= c:  (f s^2 + w c) / (f + w) with f + w degrees of freedom, w = f^2 / 2: so small a spread may be luck
        s^2 >  c:  s^2 with f + w sqrt(c) / s: the more the group scatters, the less the others say about it

    Two other groups at least are needed to say what is typical. The weight is the largest of a simple form that keeps
    the rate of simulated false alarms.
    """
    dfs = np.array([len(group) - 1 for group in groups])
    known = dfs > 0
    if not known.any():
        zeros = np.zeros(len(groups))
        return Spread(zeros, np.full(len(groups), np.inf), zeros, known)
    means_GR = _averages(scores, groups)
    in_group_GR = means_GR > 0
    deviations = scores.values_R - scores.values_R @ means_GR.T @ in_group_GR
    observed = (deviations**2 @ in_group_GR.T) / np.maximum(dfs, 1)
    observed = np.where(known & (observed > scores.rounding**2), observed, 0.0)
    joint = (means_GR @ scores.covariance_RR * means_GR).sum(1)
    crossed = (in_group_GR @ scores.covariance_RR.diagonal() - joint * (dfs + 1)) / np.maximum(dfs, 1)
    crossed = np.where(known, crossed, crossed[known].mean())

    telling = np.broadcast_to(dfs, observed.shape)
    if known.sum() > 2:
        at = np.argsort(observed, axis=-1)[..., -2, None]
        second = np.take_along_axis(observed, at, axis=-1)
        ratio = fdtri(np.maximum(dfs, 1), np.maximum(dfs[at], 1), 1 - OUTLYING)
        telling = np.where((second > 0) & (observed > ratio * second), 0, dfs)
    of_others = telling.sum(-1, keepdims=True) - telling
    told = (observed * telling).sum(-1, keepdims=True) - observed * telling
    typical = np.maximum(told / np.maximum(of_others, 1), 0)
    others = (telling > 0).sum(-1, keepdims=True) - (telling > 0)
    weight = np.where(others > 1, np.minimum(dfs**2 / 2, of_others), 0)
    is_pooled = known & (weight > 0)
    weight = np.where(known, weight, of_others)
    pooled = (dfs * observed + weight * typical) / (dfs + weight)
    wild = observed > typical
    share = np.sqrt(np.divide(typical, observed, out=np.ones_like(observed), where=wild))
    return Spread(np.where(wild, observed, pooled), dfs + weight * share, crossed, is_pooled)


def _most_df(sizes_G: np.ndarray, weights_PG: np.ndarray) -> np.ndarray:
    """The most degrees of freedom that each contrast may claim, as false alarms were simulated.

    Half of all degrees of freedom, and those of all groups but the largest: with two groups this is min(f), which is
    valid whatever the variances are (Mickey and Brown 1966). The same as if every group had only the fewest seeds of
    the contrast's groups, and 2.5 f^2 of these.
    """
    dfs = sizes_G[sizes_G > 1] - 1
    own_PG = np.where((weights_PG != 0) & (sizes_G > 1), sizes_G - 1, dfs.max())
    fewest_P = own_PG.min(1)
    of_all = min(dfs.sum() / 2, dfs.sum() - dfs.max())
    as_if_P = np.minimum(min(len(dfs) / 2, len(dfs) - 1) * fewest_P, 2.5 * fewest_P**2)
    return np.maximum(np.minimum(of_all, as_if_P), 1.0)


def _estimates(scores: Scores, groups: Sequence[Sequence[int]], weights_PG: np.ndarray, spread: Spread) -> Estimates:
    sizes_G = np.array([len(group) for group in groups])
    squares_GP = weights_PG.T**2
    weights_PR = weights_PG @ _averages(scores, groups)
    of_seeds = spread.variance_G / sizes_G @ squares_GP
    crossed = np.minimum(spread.with_sentences_G / sizes_G @ squares_GP, of_seeds)
    of_sentences = np.maximum((weights_PR @ scores.covariance_RR * weights_PR).sum(1) - crossed, 0)
    variance = of_seeds + of_sentences
    variance = np.where(variance < scores.rounding**2, 0.0, variance)
    # Each part counts by how little is known of it, 1 / df (Satterthwaite).
    uncertain = (spread.variance_G / sizes_G) ** 2 / spread.df_G @ squares_GP**2
    df_of_sentences = max(scores.sentences - 1, 1)  # a single one is the same in every sample
    with np.errstate(divide="ignore", invalid="ignore"):
        df = variance**2 / (of_sentences**2 / df_of_sentences + uncertain)
        df = np.where(variance > 0, df, df_of_sentences)
        if sizes_G.max() > 1:
            # Where the spread of seeds looks small by luck, the sentences look like all there is: f times what the
            # seeds alone have bounds the sum of both.
            fewest = np.array([max(sizes_G[row != 0].min() - 1, 1) for row in weights_PG])
            of_these = np.where(uncertain > 0, of_seeds**2 / uncertain, fewest)  # all of these seeds may tie
            of_two = np.stack([np.sort(spread.df_G[..., row != 0])[..., -2:].sum(-1) for row in weights_PG], axis=-1)
            df = np.minimum(np.minimum(df, _most_df(sizes_G, weights_PG)), fewest * np.minimum(of_these, of_two))
        share = np.where(variance > 0, of_sentences / variance, 0.0)
    values = scores.values_R @ weights_PR.T
    return Estimates(np.where(np.abs(values) < scores.rounding, 0.0, values), np.sqrt(variance), df, share)
