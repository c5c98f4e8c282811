"""Scores at equal size and at equal compute: a bigger model is no better idea.

The front: variants that no other beats in score at the same cost or less. And where the sweep has models that differ
from the baseline in size alone, a line through them (score against the log of the cost) says what a usual model of a
variant's cost would reach; the difference from it is the variant's own merit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from transformer_jax.sweeps.findings import TestFindings
from transformer_jax.sweeps.results import SweepResult, VariantResult

COSTS = {"parameters": "parameters", "training_flops": "training FLOPs"}
# A variant that changes nothing else is the baseline in another size.
SIZES = {
    "model.num_encoder_layers",
    "model.num_decoder_layers",
    "model.d_model",
    "model.d_ff",
    "train.steps",
}
# A line through fewer points than this says nothing.
FEWEST = 3


class SizeView(NamedTuple):
    """All variants by one cost and one measure."""

    cost: str  # of COSTS
    measure: str  # "bleu" or "perplexity"
    points: Mapping[str, tuple[float, float]]  # variant -> cost, mean score (perplexity as its log)
    front: frozenset[str]
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
        if price and score is not None:
            points[variant.name] = (price, score)
    resized = tuple(
        variant.name for variant in sweep.variants if _is_resized(sweep, variant) and variant.name in points
    )
    return SizeView(cost, measure, points, _front(points, measure), resized, _line([points[name] for name in resized]))


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


def _front(points: Mapping[str, tuple[float, float]], measure: str) -> frozenset[str]:
    sign = 1 if measure == "bleu" else -1

    def beaten(name: str) -> bool:
        cost, score = points[name]
        return any(
            price <= cost and sign * other >= sign * score and (price, other) != (cost, score)
            for price, other in points.values()
        )

    return frozenset(name for name in points if not beaten(name))


def _line(points: list[tuple[float, float]]) -> tuple[float, float] | None:
    if len({cost for cost, _ in points}) < FEWEST:
        return None
    costs, scores = zip(*points, strict=True)
    slope, intercept = np.polyfit(np.log(costs), scores, 1)
    return float(slope), float(intercept)
