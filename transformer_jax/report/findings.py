"""What a sweep found: how every variant differs from its baseline on each test set, by each metric."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from transformer_jax.report.metrics import BLEU, EXACT_MATCH, LARGEST_EXPONENT, PERPLEXITY, Metric
from transformer_jax.report.results import Measured, SweepResult
from transformer_jax.report.statistics import (
    Difference,
    Scores,
    bleu_scores,
    compare,
    log_perplexity_scores,
    not_worse_than_the_best,
    share_scores,
)

# Why a variant is not compared.
OTHER_TEST_SET = "another test set"

# The runs of each variant, by its name.
Runs = Mapping[str, Sequence[Measured]]


class Compared(NamedTuple):
    """The variants by one metric on one test set."""

    metric: Metric
    scores: Mapping[str, Sequence[float]]  # of each seed, by variant
    differences: Mapping[str, Difference]  # from the baseline; of perplexities, those of the logarithms
    leading: frozenset[str]  # variants that are not significantly worse than the best; empty where none is worse

    def mean(self, variant: str) -> float | None:
        """A variant's mean score as it is compared; of perplexities, the mean of their logarithms."""
        if not (values := self.scores.get(variant)):
            return None
        return float(np.mean(np.log(values) if self.metric is PERPLEXITY else values))


class TestFindings(NamedTuple):
    """One test set: the scores of every variant, and the differences, by the variants' names."""

    split: str
    name: str
    sentences: int
    clusters: int  # of sentences that are resampled together; as many as sentences where each is independent
    signature: str
    unit: str  # of the perplexities that are compared: token, or word where vocabularies differ
    runs: Runs
    by_metric: Mapping[str, Compared]  # bleu, perplexity and, where any translation is right, exact_match
    token_perplexity: Mapping[str, Sequence[float]]
    word_perplexity: Mapping[str, Sequence[float]]
    not_compared: Mapping[str, str]  # variant -> reason

    @property
    def title(self) -> str:
        """The test set's name, after the split unless the name begins with it, as in "test of grammar"."""
        return self.name if re.match(rf"{re.escape(self.split)}\b", self.name) else f"{self.split}: {self.name}"

    def differences(self, metric: Metric) -> Mapping[str, Difference]:
        compared = self.by_metric.get(metric.key)
        return {} if compared is None else compared.differences


def find(sweep: SweepResult) -> list[TestFindings]:
    """The findings on each test set, the main one first."""
    return [_on(sweep, split) for split in sweep.tests]


def _on(sweep: SweepResult, split: str) -> TestFindings:
    every = {variant.name: variant.measured(split) for variant in sweep.variants}
    runs: dict[str, list[Measured]] = {name: measured for name, measured in every.items() if measured}
    if not runs:
        return TestFindings(split, split, 0, 0, "", "token", {}, {}, {}, {}, {})
    first = (runs.get(sweep.baseline) or next(iter(runs.values())))[0]
    comparable = {}
    for name, measured in runs.items():
        same = [run for run in measured if run.digest == first.digest and len(run.tokens_N) == len(first.tokens_N)]
        if same:
            comparable[name] = same
        # The mean is over one test set, even where it is another one than the baseline's.
        runs[name] = same or [run for run in measured if run.digest == measured[0].digest]
    one_vocabulary = all(np.array_equal(run.tokens_N, first.tokens_N) for same in comparable.values() for run in same)
    pairs, not_compared = _pairs(sweep, split, comparable)
    for name, same in comparable.items():
        if missing := len(every[name]) - len(same):
            not_compared[name] = f"{missing} of its runs: {OTHER_TEST_SET}"
    token = {name: [run.perplexity for run in measured] for name, measured in runs.items()}
    word = {name: [_per_word(run) for run in measured] for name, measured in runs.items()}
    return TestFindings(
        split=split,
        name=first.test_set,
        sentences=len(first.tokens_N),
        clusters=len(first.tokens_N if first.clusters_N is None else np.unique(first.clusters_N)),
        signature=" and ".join(dict.fromkeys(run.signature for measured in runs.values() for run in measured)),
        unit="token" if one_vocabulary else "word",
        runs=runs,
        by_metric={
            BLEU.key: _compared(BLEU, {n: [run.bleu for run in same] for n, same in runs.items()}, comparable, pairs),
            PERPLEXITY.key: _compared(PERPLEXITY, token if one_vocabulary else word, comparable, pairs),
            **_exact_match(comparable, pairs),
        },
        token_perplexity=token,
        word_perplexity=word,
        not_compared=not_compared,
    )


def _per_word(run: Measured) -> float:
    return math.exp(min(-float(run.log_probabilities_N.sum()) / run.words, LARGEST_EXPONENT))


def _pairs(sweep: SweepResult, split: str, comparable: Runs) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """The comparisons (variant, baseline), and why other variants are not compared."""
    pairs, not_compared = [], {}
    for variant in sweep.variants:
        if not variant.baseline:
            continue
        if not variant.finished:
            not_compared[variant.name] = "no finished run"
        elif variant.name not in comparable:
            not_compared[variant.name] = OTHER_TEST_SET if variant.measured(split) else "not evaluated on it yet"
        elif variant.baseline not in comparable:
            not_compared[variant.name] = f"its baseline {variant.baseline} has no finished run"
        else:
            pairs.append((variant.name, variant.baseline))
    return pairs, not_compared


def _exact_match(comparable: Runs, pairs: Sequence[tuple[str, str]]) -> dict[str, Compared]:
    """Exact match, of the variants that have it, if any translation is right or examples have labels."""
    having = {name: same for name, same in comparable.items() if all(run.exact is not None for run in same)}
    shares = {n: [100 * float(run.exact.right_N.mean()) for run in same if run.exact] for n, same in having.items()}
    is_labelled = any(run.exact.groups for same in having.values() for run in same if run.exact)
    if not having or not (is_labelled or any(any(seeds) for seeds in shares.values())):
        return {}
    pairs = [pair for pair in pairs if set(pair) <= having.keys()]
    return {EXACT_MATCH.key: _compared(EXACT_MATCH, shares, having, pairs)}


def _compared(
    metric: Metric, scores: Mapping[str, Sequence[float]], comparable: Runs, pairs: Sequence[tuple[str, str]]
) -> Compared:
    """The variants by one metric; `comparable` are the runs on the same sentences, `pairs` what is compared of them."""
    runs = [run for measured in comparable.values() for run in measured]
    clusters_N = runs[0].clusters_N
    if len(runs[0].tokens_N) < 2 or (clusters_N is not None and len(np.unique(clusters_N)) < 2):
        return Compared(metric, scores, {}, frozenset())
    ends = np.cumsum([len(measured) for measured in comparable.values()])
    groups = [group.tolist() for group in np.split(np.arange(len(runs)), ends[:-1])]
    names = list(comparable)
    resampled = _scores_of(metric, runs)
    found = compare(resampled, groups, [(names.index(variant), names.index(baseline)) for variant, baseline in pairs])
    leading = frozenset(names[index] for index in not_worse_than_the_best(resampled, groups, metric.sign))
    differences = {variant: difference for (variant, _), difference in zip(pairs, found, strict=True)}
    return Compared(metric, scores, differences, leading if len(leading) < len(names) else frozenset())


def _scores_of(metric: Metric, runs: Sequence[Measured]) -> Scores:
    clusters_N = runs[0].clusters_N
    if metric is BLEU:
        return bleu_scores(np.stack([run.statistics_N10 for run in runs]), clusters_N)
    if metric is EXACT_MATCH:
        return share_scores(np.stack([run.exact.right_N for run in runs if run.exact]), clusters_N)
    units = runs[0].tokens_N
    if not all(np.array_equal(run.tokens_N, units) for run in runs):
        # Words per sentence as BLEU counts them in the reference, plus one for its end, scaled to the set's words.
        units = runs[0].statistics_N10[:, 1] + 1
        units = units * (runs[0].words / units.sum())
    return log_perplexity_scores(np.stack([run.log_probabilities_N for run in runs]), units, clusters_N)
