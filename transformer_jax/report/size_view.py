"""Scores at equal size and at equal compute: a bigger model is no better idea.

The front: variants that no other of the same cost or less exceeds in mean score. Costs within a few percent of each
other are the same: otherwise the worst of two variants would lead for being a hair smaller. A mean may be higher by
chance, so a variant is called best only where each difference that this rests on is shown. And where the sweep has
models that differ from the baseline in size alone, a line through them (score against the log of the cost) says what a
usual model of a variant's cost would reach; the difference from it is the variant's own merit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from transformer_jax.report.findings import OTHER_TEST_SET, TestFindings
from transformer_jax.report.results import SweepResult, VariantResult

COSTS = {"parameters": "parameters", "training_flops": "training FLOPs"}
# A variant that changes nothing else is the baseline in another size.
SIZES = {
    "model.num_encoder_layers",
    "model.num_decoder_layers",
    "model.d_model",
    "model.d_ff",
    "train.steps",
    "train.epochs",
}
# Costs that differ by no more than this factor are the same cost.
SAME_COST = 1.05
RULE = (
    "Costs within 5 % of each other count as the same. By its mean, a variant leads if no other of the same cost or "
    "less has a better one; the cheapest lead because there is nothing to compare them with. A variant is shown to be "
    "the best of its cost or less only if it is better than each of the others there by a resolved difference, or by "
    "intervals against one baseline that do not overlap."
)
# A line through fewer points than this says nothing.
FEWEST = 3


class SizeView(NamedTuple):
    """All variants by one cost and one measure."""

    cost: str  # of COSTS
    measure: str  # "bleu" or "perplexity"
    points: Mapping[str, tuple[float, float]]  # variant -> cost, mean score (perplexity as its log)
    front: frozenset[str]  # by the means alone
    shown: frozenset[str]  # those of it that are shown to be better than each other variant of their cost or less
    resized: tuple[str, ...]  # those the line goes through
    line: tuple[float, float] | None  # slope and intercept over the log of the cost

    @property
    def reach(self) -> tuple[float, float]:
        """The costs between which the line stands on something."""
        costs = [self.points[name][0] for name in self.resized]
        return min(costs), max(costs)

    def expected(self, cost: float) -> float | None:
        """What a usual model of that cost would score; nothing is known beyond those the line goes through."""
        if self.line is None or not self.reach[0] <= cost <= self.reach[1]:
            return None
        return self.line[0] * math.log(cost) + self.line[1]

    def beyond(self, variant: str) -> float | None:
        """How much a variant's score differs from that of a usual model of its cost."""
        if variant not in self.points:
            return None
        cost, score = self.points[variant]
        expected = self.expected(cost)
        return None if expected is None else score - expected


def size_view(sweep: SweepResult, findings: TestFindings, cost: str, measure: str) -> SizeView:
    """The view of one test set by one cost."""
    points = {}
    for variant in sweep.variants:
        price, score = cost_of(variant, cost), _score(findings, variant.name, measure)
        if price and score is not None and findings.not_compared.get(variant.name) != OTHER_TEST_SET:
            points[variant.name] = (price, score)
    resized = tuple(
        variant.name for variant in sweep.variants if _is_resized(sweep, variant) and variant.name in points
    )
    front = _front(points, measure)
    shown = frozenset(
        name
        for name in front
        if (others := _rivals(points, name))
        and all(_is_shown_better(sweep, findings, name, other, measure) for other in others)
    )
    return SizeView(cost, measure, points, front, shown, resized, _line([points[name] for name in resized]))


def cost_of(variant: VariantResult, cost: str) -> float | None:
    """As measured: what was planned rests on a vocabulary of another size."""
    measured = variant.values(cost)
    return float(np.mean(measured)) if measured else None


def _score(findings: TestFindings, variant: str, measure: str) -> float | None:
    if measure == "bleu":
        values = findings.bleu.get(variant)
        return float(np.mean(values)) if values else None
    values = (findings.perplexity if findings.unit == "token" else findings.word_perplexity).get(variant)
    return float(np.mean(np.log(values))) if values else None


def _is_resized(sweep: SweepResult, variant: VariantResult) -> bool:
    return variant.name == sweep.baseline or (variant.baseline == sweep.baseline and set(variant.changes) <= SIZES)


def _rivals(points: Mapping[str, tuple[float, float]], name: str) -> list[str]:
    """All others of the same cost or less."""
    return [other for other in points if other != name and points[other][0] <= SAME_COST * points[name][0]]


def _front(points: Mapping[str, tuple[float, float]], measure: str) -> frozenset[str]:
    sign = 1 if measure == "bleu" else -1

    def beaten(name: str) -> bool:
        cost, score = points[name]
        return any(
            sign * points[other][1] > sign * score
            or (points[other][1] == score and SAME_COST * points[other][0] < cost)
            for other in _rivals(points, name)
        )

    return frozenset(name for name in points if not beaten(name))


def _is_shown_better(sweep: SweepResult, findings: TestFindings, name: str, other: str, measure: str) -> bool:
    """Whether one variant's score is better than another's by more than chance, as far as the comparisons tell."""
    sign = 1 if measure == "bleu" else -1
    differences = findings.bleu_differences if measure == "bleu" else findings.perplexity_differences
    baselines = {variant.name: variant.baseline for variant in sweep.variants}
    mine, theirs = differences.get(name), differences.get(other)
    if mine is not None and baselines[name] == other:
        return mine.resolved and sign * mine.value > 0
    if theirs is not None and baselines[other] == name:
        return theirs.resolved and sign * theirs.value < 0
    if mine is None or theirs is None or baselines[name] != baselines[other]:
        return False
    # All intervals of a column are simultaneous: where two of them are apart, so are the true differences.
    return mine.low > theirs.high if sign > 0 else mine.high < theirs.low


def _line(points: list[tuple[float, float]]) -> tuple[float, float] | None:
    if len({cost for cost, _ in points}) < FEWEST:
        return None
    costs, scores = zip(*points, strict=True)
    slope, intercept = np.polyfit(np.log(costs), scores, 1)
    return float(slope), float(intercept)
