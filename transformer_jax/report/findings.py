"""The findings of a sweep: how every variant differs from its baseline on each test set, by each metric."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.report.families import DIFFERENCES, Family, families_of
from transformer_jax.report.metrics import BLEU, EXACT_MATCH, LARGEST_EXPONENT, METRICS, PERPLEXITY, Metric, metrics_of
from transformer_jax.report.results import Measured, SweepResult
from transformer_jax.report.statistics import (
    Difference,
    Scores,
    bleu_scores,
    contrasts,
    log_perplexity_scores,
    not_worse_than_the_best,
    share_scores,
)

# Why a variant is not compared.
OTHER_TEST_SET = "another test set"
# The scores of each seed in report.json, and in table.csv their means and deviations; custom metrics follow.
SCORES = ("perplexity", "word_perplexity", "bleu", "exact_match")

# The runs of each variant, by its name.
Runs = Mapping[str, Sequence[Measured]]


class Compared(NamedTuple):
    """The variants by one metric on one test set."""

    metric: Metric
    scores: Mapping[str, Sequence[float]]  # of each seed, by variant
    families: Mapping[str, Mapping[str, Difference]]  # by key and contrast; of perplexities, those of the logarithms
    leading: frozenset[str]  # variants that are not significantly worse than the best; empty where none is worse
    role: str = ""  # primary or secondary, where the sweep has a primary metric
    margin: float | None = None  # differences that are smaller do not matter; of perplexities, their ratio less 1
    by_sentence: bool = True  # whether scores of sentences are known, so that intervals account for their choice

    def mean(self, variant: str) -> float | None:
        values = self.scores.get(variant)
        return float(np.mean(values)) if values else None

    @property
    def differences(self) -> Mapping[str, Difference]:
        """From the baseline."""
        return self.families.get(DIFFERENCES, {})

    def to_json(self, key: str = DIFFERENCES) -> dict[str, Any]:
        """A family of contrasts, with what is concluded from each."""
        return {
            name: {**d.to_json(), "resolved": d.significant}  # the name that significance has in this file
            | ({} if d.equivalence_p is None else {"verdict": self.metric.verdict(d)})
            for name, d in self.families.get(key, {}).items()
        }

    def significant(self, mark: str, key: str = DIFFERENCES) -> list[str]:
        """The significantly "better" or "worse" contrasts, each with its difference, the largest first."""
        found = [(name, d.value) for name, d in self.families[key].items() if self.metric.mark(d) == mark]
        found.sort(key=lambda pair: -abs(pair[1]))
        return [f"{name}: {self.metric.change(value)}" for name, value in found]

    def judged(self, verdict: str) -> list[str]:
        return [name for name, d in self.differences.items() if self.metric.verdict(d) == verdict]

    @property
    def mde(self) -> str | None:
        """The median minimum detectable difference; "" if no score can differ so much, None if all runs tie."""
        known = [d.mde for d in self.differences.values() if d.mde is not None]
        return self.metric.mde_text(float(np.median(known))) if known else None


class TestFindings(NamedTuple):
    """One test set: the scores of every variant, and the differences, by the variants' names."""

    split: str
    name: str
    sentences: int
    clusters: int  # of sentences that are resampled together; as many as sentences where each is independent
    signature: str
    unit: str  # of the perplexities that are compared: token, or word where vocabularies differ
    runs: Runs
    by_metric: Mapping[str, Compared]  # the primary one first; exact_match where any translation is right
    families: Sequence[Family]  # the differences from the baseline first
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

    def contrasts(self, key: str) -> Mapping[str, Difference]:
        """A family, by the first metric that has any of it."""
        return next((found for compared in self.by_metric.values() if (found := compared.families.get(key))), {})

    @property
    def differences(self) -> Mapping[str, Difference]:
        return self.contrasts(DIFFERENCES)


def find(sweep: SweepResult) -> list[TestFindings]:
    """The findings on each test set, the main one first."""
    return [_on(sweep, split) for split in sweep.tests]


def _on(sweep: SweepResult, split: str) -> TestFindings:
    every = {variant.name: measured for variant in sweep.variants if (measured := variant.measured(split))}
    if not every:
        no_scores: dict[str, dict[str, list[float]]] = {key: {} for key in SCORES}
        return TestFindings(split, split, 0, 0, "", "token", {}, {}, families_of(sweep, ()), no_scores, {})
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
    families, by_metric = families_of(sweep, comparable), {}
    for variant in sweep.variants:
        if not variant.baseline or variant.same_as or variant.name in families[0].contrasts:
            continue
        if not variant.finished:
            not_compared[variant.name] = "no finished run"
        elif variant.name not in comparable:
            not_compared[variant.name] = OTHER_TEST_SET if variant.name in every else "not evaluated on it yet"
        else:
            not_compared[variant.name] = f"its baseline {variant.baseline} has no finished run"

    unit = "token"
    if not all(np.array_equal(run.tokens_N, first.tokens_N) for same in comparable.values() for run in same):
        unit = "word"
    exact = {name: same for name, same in comparable.items() if all(run.exact for run in same)}
    is_telling = [run.exact.groups or run.exact.right_N.any() for same in exact.values() for run in same if run.exact]
    if sweep.primary != EXACT_MATCH.key and not any(is_telling):
        exact = {}
    scores: dict[str, dict[str, list[float]]] = {key: {} for key in SCORES}
    scores["word_perplexity"] = {name: [_per_word(run) for run in same] for name, same in runs.items()}
    for metric in metrics_of(sweep):
        shown_runs, compared_runs = (exact, exact) if metric is EXACT_MATCH else (runs, comparable)
        scores[metric.key] = {name: _seeds(metric, same) for name, same in shown_runs.items()}
        shown = scores["word_perplexity" if metric is PERPLEXITY and unit == "word" else metric.key]
        whole = {n: same for n, same in compared_runs.items() if all(metric.of(run) is not None for run in same)}
        if whole:
            compared = _compared(sweep, metric, shown, whole, families)
            role = "primary" if metric.key == sweep.primary and split == sweep.tests[0] else "secondary"
            by_metric[metric.key] = compared._replace(role=role if sweep.primary else "")
    return TestFindings(
        split=split,
        name=first.test_set,
        sentences=len(first.tokens_N),
        clusters=len(first.tokens_N if first.clusters_N is None else np.unique(first.clusters_N)),
        signature=" and ".join(dict.fromkeys(run.signature for same in runs.values() for run in same)),
        unit=unit,
        runs=runs,
        by_metric=by_metric,
        families=families,
        scores=scores,
        not_compared=not_compared,
    )


def _seeds(metric: Metric, runs: Sequence[Measured]) -> list[float]:
    return [score for run in runs if (score := metric.of(run)) is not None]


def _per_word(run: Measured) -> float:
    return math.exp(min(-float(run.log_probabilities_N.sum()) / run.words, LARGEST_EXPONENT))


def _compared(
    sweep: SweepResult,
    metric: Metric,
    scores: Mapping[str, Sequence[float]],
    comparable: Runs,
    families: Sequence[Family],
) -> Compared:
    """The variants by one metric; `comparable` are the runs on the same sentences."""
    names, runs = list(comparable), [run for same in comparable.values() for run in same]
    ends = np.cumsum([len(same) for same in comparable.values()])
    groups = [group.tolist() for group in np.split(np.arange(len(runs)), ends[:-1])]
    by_sentence = metric in METRICS
    scored = _scores(metric, runs)
    if scored.sentences < 2 or not (by_sentence or max(map(len, groups)) > 1):
        return Compared(metric, scores, {}, frozenset(), by_sentence=by_sentence)
    margin = sweep.margin.get(metric.key)
    limit = None if margin is None else metric.largest_within(margin)

    def differences(weights: Mapping[str, Mapping[str, float]]) -> dict[str, Difference]:
        known = {name: row for name, row in weights.items() if set(row) <= set(names)}
        weights_PG = [[row.get(name, 0.0) for name in names] for row in known.values()]
        return dict(zip(known, contrasts(scored, groups, weights_PG, limit), strict=True))

    repeats = {variant.name for variant in sweep.variants if variant.same_as}
    candidates = [number for number, name in enumerate(names) if name not in repeats]
    best = not_worse_than_the_best(scored, [groups[number] for number in candidates], metric.sign)
    return Compared(
        metric,
        scores,
        {family.key: differences(family.contrasts) for family in families},
        frozenset(names[candidates[number]] for number in best) if len(best) < len(candidates) else frozenset(),
        margin=margin,
        by_sentence=by_sentence,
    )


def _scores(metric: Metric, runs: Sequence[Measured]) -> Scores:
    """With what a choice of sentences contributes, which is known of the library's metrics only."""
    if metric not in METRICS:
        return Scores(np.array([metric.of(run) for run in runs]), np.zeros((len(runs), len(runs))), 10**9)
    clusters_N, units_N = runs[0].clusters_N, runs[0].tokens_N
    if metric is BLEU:
        return bleu_scores(np.stack([run.statistics_N10 for run in runs]), clusters_N)
    if metric is EXACT_MATCH:
        return share_scores(np.stack([run.exact.right_N for run in runs if run.exact]), clusters_N)
    if not all(np.array_equal(run.tokens_N, units_N) for run in runs):
        # Words per sentence as BLEU counts them in the reference, plus one for its end, scaled to the set's words.
        units_N = runs[0].statistics_N10[:, 1] + 1
        units_N = units_N * (runs[0].words / units_N.sum())
    return log_perplexity_scores(np.stack([run.log_probabilities_N for run in runs]), units_N, clusters_N)
