"""Whether variants differ: scores of several seeds on one test set, and how sure one can be of their differences.

A score depends on the seed of a training and on the sentences of the test set, and a difference between two variants is
judged against both. With k seeds of a variant v, k' of its baseline b, and scores y,

    difference = mean(y_v) - mean(y_b)
    variance   = s_v^2 / k + s_b^2 / k' + t^2

s^2 is the variance over seeds, as observed on this test set; t^2 is what another choice of sentences would add. The
bootstrap over sentences (the same for all runs, so that what is hard for all cancels) gives the covariance of all
scores, and with it the variance of a difference of means; this contains once more what one seed does by chance with one
sentence, which s^2 has counted already, and which is therefore taken off.

Two, three or five seeds tell little about s. Seeds of other variants help: each s^2 is drawn towards the typical one,
the more so the more alike all are (the empirical Bayes of Smyth 2004, "moderated t"). Welch and Satterthwaite give the
degrees of freedom of the sum. Of m comparisons, the intervals hold all together, and Holm corrects the p-values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import digamma, nctdtrinc, polygamma, stdtr, stdtrit

CONFIDENCE = 0.95
POWER = 0.8
SAMPLES = 2000
# What the typical variance of seeds is worth at most, in degrees of freedom: chosen by simulation (tests/drills).
MOST_ALIKE = 12.0
# A variance so many times the median one is of another kind: some seeds of that variant diverged, perhaps. It tells
# nothing of the others, and they tell nothing of it.
OUTLYING = 20.0
# Of the weights of resampled sentences, this many numbers are held at a time.
BLOCK = 1 << 22


class Scores(NamedTuple):
    """One measure of R runs on one test set."""

    values_R: np.ndarray
    # What another choice of sentences would do to them.
    covariance_RR: np.ndarray
    sentences: int


class Difference(NamedTuple):
    """A variant less its baseline, and how sure one can be of it."""

    value: float
    error: float  # the standard error of value
    freedom: float  # degrees of freedom of that error
    low: float  # the interval; all intervals of the family hold together with the stated confidence
    high: float
    p_value: float  # of this comparison alone
    corrected_p: float  # Holm's, of the family
    detectable: float  # the true difference that would have been found with the stated power
    seeds: tuple[int, int]  # of the variant and of its baseline
    # "own": the seeds' spread was seen on both sides; "borrowed": one side has one seed, and was given the spread of
    # the others; "none": nothing here has two seeds, and the interval counts sentences only.
    seed_spread: str

    @property
    def resolved(self) -> bool:
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


def _scores(columns_NC: np.ndarray, score: Callable[[np.ndarray], np.ndarray]) -> Scores:
    """Scores of the sums over sentences, as they are and resampled; `score` makes BC sums into BR scores."""
    columns = np.asarray(columns_NC, np.float64)
    values = score(columns.sum(0)[None])[0]
    resampled = np.concatenate([score(weights @ columns) for weights in _resampled(len(columns))])
    covariance = np.atleast_2d(np.cov(resampled, rowvar=False))
    return Scores(values, covariance, len(columns))


def _resampled(sentences: int) -> Iterator[np.ndarray]:
    """How often each sentence is drawn, in each of SAMPLES draws with replacement; the same draws every time."""
    dice = np.random.default_rng(0)
    rows = max(1, min(SAMPLES, BLOCK // sentences))
    for start in range(0, SAMPLES, rows):
        yield dice.multinomial(sentences, np.full(sentences, 1 / sentences), size=min(rows, SAMPLES - start))


class Spread(NamedTuple):
    """The variance between seeds of each of G groups, each drawn towards what is typical of all."""

    variance_G: np.ndarray
    freedom_G: np.ndarray
    # No estimate can be worth more than all that was seen.
    all_freedom: float
    # Of that variance, the part in which a seed and a sentence meet by chance.
    with_sentences_G: np.ndarray


def compare(scores: Scores, groups: Sequence[Sequence[int]], pairs: Sequence[tuple[int, int]]) -> list[Difference]:
    """Each pair (variant, baseline) of groups of runs compared, all as one family."""
    if not pairs:
        return []
    spread = _spread(scores, groups)
    contrasts = [_contrast(scores, groups, pair, spread) for pair in pairs]
    values, errors, freedoms = (np.array(column) for column in zip(*contrasts, strict=True))
    p_values = _p_values(values, errors, freedoms)
    tail = (1 - CONFIDENCE) / (2 * len(pairs))
    critical = stdtrit(freedoms, 1 - tail)
    # The shift at which the t of noncentrality `shift` is above the critical value with the wanted probability.
    detectable = errors * nctdtrinc(freedoms, 1 - POWER, critical)
    corrected = holm(p_values)
    return [
        Difference(
            value=float(values[i]),
            error=float(errors[i]),
            freedom=float(freedoms[i]),
            low=float(values[i] - critical[i] * errors[i]),
            high=float(values[i] + critical[i] * errors[i]),
            p_value=float(p_values[i]),
            corrected_p=float(corrected[i]),
            detectable=float(detectable[i]),
            seeds=(len(groups[pair[0]]), len(groups[pair[1]])),
            seed_spread=_seed_spread(spread, [len(groups[group]) for group in pair]),
        )
        for i, pair in enumerate(pairs)
    ]


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Holm's step-down correction: the smallest p-value times m, the next times m - 1, never falling."""
    values = np.asarray(p_values, np.float64)
    order = np.argsort(values)
    stepped = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(stepped, 1)
    return corrected


def moderated(variances: np.ndarray, freedoms: np.ndarray) -> tuple[float, float]:
    """The prior of the variances: what is typical, and how many degrees of freedom that is worth (Smyth 2004, 6.2).

    The log of a variance with d degrees of freedom about a true one varies by trigamma(d/2); what it varies more than
    that over the groups is how unlike they are. From a few seeds of a few groups this is known badly, and believing
    that all are alike is what makes false alarms: typical is therefore the mean, to which the largest contribute most,
    and it is never worth more than MOST_ALIKE.
    """
    typical = float((variances * freedoms).sum() / freedoms.sum())
    if typical == 0 or len(variances) < 2:
        return typical, MOST_ALIKE
    floored = np.maximum(variances, 1e-5 * typical)  # two seeds may agree by chance; the log must not be -inf
    logs = np.log(floored) - digamma(freedoms / 2) + np.log(freedoms / 2)
    excess = float(logs.var(ddof=1) - polygamma(1, freedoms / 2).mean())
    return typical, MOST_ALIKE if excess <= 0 else min(2 * _inverse_trigamma(excess), MOST_ALIKE)


def _inverse_trigamma(value: float) -> float:
    """x with trigamma(x) = value, by Newton's method on 1 / trigamma, which is convex and nearly straight."""
    if value > 1e7:
        return float(1 / np.sqrt(value))
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = polygamma(1, x)
        step = trigamma * (1 - trigamma / value) / polygamma(2, x)
        x += step
        if abs(step) < 1e-9 * x:
            break
    return float(x)


def _spread(scores: Scores, groups: Sequence[Sequence[int]]) -> Spread:
    """Of each group what its seeds say, drawn towards what those of all groups say."""
    sizes = np.array([len(group) for group in groups])
    own = sizes > 1
    if not own.any():
        zeros = np.zeros(len(groups))
        return Spread(zeros, np.full(len(groups), np.inf), 0.0, zeros)
    observed, crossed = np.zeros(len(groups)), np.zeros(len(groups))
    for g in (int(place) for place in np.flatnonzero(own)):
        covariance = scores.covariance_RR[np.ix_(groups[g], groups[g])]
        observed[g] = scores.values_R[groups[g]].var(ddof=1)
        crossed[g] = (np.trace(covariance) - covariance.sum() / sizes[g]) / (sizes[g] - 1)
    crossed[~own] = crossed[own].mean()
    freedoms = np.where(own, sizes - 1, 0)
    limit = OUTLYING * float(np.median(observed[own]))
    typical, prior_freedom = moderated(np.minimum(observed[own], limit), freedoms[own])
    variances = (prior_freedom * typical + freedoms * observed) / (prior_freedom + freedoms)
    outlying = observed > limit
    return Spread(
        np.where(outlying, observed, variances),
        np.where(outlying, freedoms, prior_freedom + freedoms),
        float(freedoms.sum()),
        crossed,
    )


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
    of_sentences = max(float(weights @ scores.covariance_RR @ weights) - crossed, 0.0)
    variance = of_seeds + of_sentences
    if variance == 0:
        return float(weights @ scores.values_R), 0.0, float(scores.sentences - 1)
    # Each part weighs in by how little it is known: 1 / freedom (Satterthwaite).
    uncertain = of_sentences**2 / (scores.sentences - 1)
    if of_seeds > 0:
        of_seeds_alone = of_seeds**2 / max(sum(part**2 / freedom for part, freedom in seeds), 1e-300)
        uncertain += of_seeds**2 / min(of_seeds_alone, spread.all_freedom)
    return float(weights @ scores.values_R), float(np.sqrt(variance)), float(variance**2 / uncertain)


def _p_values(values: np.ndarray, errors: np.ndarray, freedoms: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(values == 0, 0.0, np.abs(values) / errors)
    return 2 * stdtr(freedoms, -t)


def _seed_spread(spread: Spread, sizes: Sequence[int]) -> str:
    if spread.all_freedom == 0:
        return "none"
    return "own" if min(sizes) > 1 else "borrowed"
