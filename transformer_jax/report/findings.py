"""What a sweep found: how every variant differs from its baseline on each test set, by each metric."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.report.metrics import BLEU, EXACT_MATCH, LARGEST_EXPONENT, PERPLEXITY, Metric
from transformer_jax.report.results import Measured, SweepResult
from transformer_jax.report.statistics import (
    Difference,
    bleu_scores,
    compare,
    log_perplexity_scores,
    not_worse_than_the_best,
    share_scores,
)

# Why a variant is not compared.
OTHER_TEST_SET = "another test set"
# The scores of each seed in report.json, and in table.csv their means and deviations.
SCORES = ("perplexity", "word_perplexity", "bleu", "exact_match")

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

    def differences_json(self) -> dict[str, Any]:
        return {name: difference.to_json() for name, difference in self.differences.items()}

    def significant(self, mark: str) -> list[str]:
        """The variants that are significantly "better" or "worse", each with its difference, the largest first."""
        found = [(name, d.value) for name, d in self.differences.items() if self.metric.mark(d) == mark]
        found.sort(key=lambda pair: -abs(pair[1]))
        return [f"{name}: {self.metric.change(value)}" for name, value in found]

    def mde(self, baseline: str) -> str | None:
        """The median minimum detectable difference; "" if no score can differ so much, None if all runs tie."""
        known = [d.mde for d in self.differences.values() if d.mde is not None]
        return self.metric.mde_text(float(np.median(known)), self.mean(baseline)) if known else None


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
    scores: Mapping[str, Mapping[str, Sequence[float]]]  # by key and variant, of each seed
    not_compared: Mapping[str, str]  # variant -> reason

    @property
    def title(self) -> str:
        """The test set's name, after the split unless the name begins with it, as in "test of grammar"."""
        return self.name if re.match(rf"{re.escape(self.split)}\b", self.name) else f"{self.split}: {self.name}"

    @property
    def measured(self) -> list[Measured]:
        return [run for runs in self.runs.values() for run in runs]

    @property
    def in_clusters(self) -> str:
        return "" if self.clusters == self.sentences else f" in {self.clusters:,} clusters"

    @property
    def bleu_differences(self) -> Mapping[str, Difference]:
        return self.differences(BLEU)

    def differences(self, metric: Metric) -> Mapping[str, Difference]:
        compared = self.by_metric.get(metric.key)
        return {} if compared is None else compared.differences


def find(sweep: SweepResult) -> list[TestFindings]:
    """The findings on each test set, the main one first."""
    return [_on(sweep, split) for split in sweep.tests]


def _on(sweep: SweepResult, split: str) -> TestFindings:
    every = {variant.name: measured for variant in sweep.variants if (measured := variant.measured(split))}
    if not every:
        scores: dict[str, dict[str, list[float]]] = {key: {} for key in SCORES}
        return TestFindings(split, split, 0, 0, "", "token", {}, {}, scores, {})
    first = (every.get(sweep.baseline) or next(iter(every.values())))[0]
    runs, comparable, not_compared = {}, {}, {}
    for name, measured in every.items():
        same = [run for run in measured if run.digest == first.digest and len(run.tokens_N) == len(first.tokens_N)]
        if same:
            comparable[name] = same
        if 0 < len(same) < len(measured):
            not_compared[name] = f"{len(measured) - len(same)} of its runs: {OTHER_TEST_SET}"
        # The mean is over one test set, even where it is another one than the baseline's.
        runs[name] = same or [run for run in measured if run.digest == measured[0].digest]
    pairs = []
    for variant in sweep.variants:
        if not variant.baseline:
            continue
        if variant.name in comparable and variant.baseline in comparable:
            pairs.append((variant.name, variant.baseline))
        elif not variant.finished:
            not_compared[variant.name] = "no finished run"
        elif variant.name not in comparable:
            not_compared[variant.name] = OTHER_TEST_SET if variant.name in every else "not evaluated on it yet"
        else:
            not_compared[variant.name] = f"its baseline {variant.baseline} has no finished run"

    unit = "token"
    if not all(np.array_equal(run.tokens_N, first.tokens_N) for same in comparable.values() for run in same):
        unit = "word"
    exact = {name: same for name, same in comparable.items() if all(run.exact for run in same)}
    if not any(run.exact and (run.exact.groups or run.exact.right_N.any()) for same in exact.values() for run in same):
        exact = {}
    of_metrics = ((PERPLEXITY, runs), (BLEU, runs), (EXACT_MATCH, exact))
    scores = {metric.key: {name: _seeds(metric, same) for name, same in of.items()} for metric, of in of_metrics}
    scores["word_perplexity"] = {name: [_per_word(run) for run in same] for name, same in runs.items()}
    perplexities = scores["perplexity" if unit == "token" else "word_perplexity"]
    by_metric = {
        BLEU.key: _compared(BLEU, scores["bleu"], comparable, pairs),
        PERPLEXITY.key: _compared(PERPLEXITY, perplexities, comparable, pairs),
    }
    if exact:
        by_metric[EXACT_MATCH.key] = _compared(EXACT_MATCH, scores["exact_match"], exact, pairs)
    return TestFindings(
        split=split,
        name=first.test_set,
        sentences=len(first.tokens_N),
        clusters=len(first.tokens_N if first.clusters_N is None else np.unique(first.clusters_N)),
        signature=" and ".join(dict.fromkeys(run.signature for same in runs.values() for run in same)),
        unit=unit,
        runs=runs,
        by_metric=by_metric,
        scores={key: scores[key] for key in SCORES},
        not_compared=not_compared,
    )


def _seeds(metric: Metric, runs: Sequence[Measured]) -> list[float]:
    return [score for run in runs if (score := metric.of(run)) is not None]


def _per_word(run: Measured) -> float:
    return math.exp(min(-float(run.log_probabilities_N.sum()) / run.words, LARGEST_EXPONENT))


def _compared(
    metric: Metric, scores: Mapping[str, Sequence[float]], comparable: Runs, pairs: Sequence[tuple[str, str]]
) -> Compared:
    """The variants by one metric; `comparable` are the runs on the same sentences, `pairs` what is compared of them."""
    names, runs = list(comparable), [run for same in comparable.values() for run in same]
    clusters_N, units_N = runs[0].clusters_N, runs[0].tokens_N
    if len(units_N) < 2 or (clusters_N is not None and len(np.unique(clusters_N)) < 2):
        return Compared(metric, scores, {}, frozenset())
    if metric is BLEU:
        resampled = bleu_scores(np.stack([run.statistics_N10 for run in runs]), clusters_N)
    elif metric is EXACT_MATCH:
        resampled = share_scores(np.stack([run.exact.right_N for run in runs if run.exact]), clusters_N)
    else:
        if not all(np.array_equal(run.tokens_N, units_N) for run in runs):
            # Words per sentence as BLEU counts them in the reference, plus one for its end, scaled to the set's words.
            units_N = runs[0].statistics_N10[:, 1] + 1
            units_N = units_N * (runs[0].words / units_N.sum())
        resampled = log_perplexity_scores(np.stack([run.log_probabilities_N for run in runs]), units_N, clusters_N)
    ends = np.cumsum([len(same) for same in comparable.values()])
    groups = [group.tolist() for group in np.split(np.arange(len(runs)), ends[:-1])]
    pairs = [(variant, baseline) for variant, baseline in pairs if variant in comparable and baseline in comparable]
    found = compare(resampled, groups, [(names.index(variant), names.index(baseline)) for variant, baseline in pairs])
    leading = frozenset(names[index] for index in not_worse_than_the_best(resampled, groups, metric.sign))
    differences = {variant: difference for (variant, _), difference in zip(pairs, found, strict=True)}
    return Compared(metric, scores, differences, leading if len(leading) < len(names) else frozenset())
