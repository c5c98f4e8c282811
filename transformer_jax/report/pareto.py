"""Scores at equal size and at equal compute: a larger model that scores higher is not a better idea.

The Pareto front has the variants whose mean score no other of the same cost or less exceeds. A mean may be higher by
chance, so a variant is called best only where each difference that this rests on is significant. Where the sweep has
models that differ from the baseline in size alone (against FLOPs, also in how long they train), a line through them
(score against the log of the cost) gives the expected score at any cost, and a variant's distance from it is its own
merit.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from transformer_jax.pictures.plots import COLOURS
from transformer_jax.report import document
from transformer_jax.report.figures import INK, Point, scatter
from transformer_jax.report.findings import OTHER_TEST_SET, TestFindings
from transformer_jax.report.metrics import METRICS, PERPLEXITY, Metric
from transformer_jax.report.results import SweepResult, VariantResult
from transformer_jax.runs.metrics import count_text

COSTS = {"parameters": "parameters", "training_flops": "training FLOPs"}
# A variant that changes nothing else is the baseline in another size; where it trains for longer, at another compute.
SIZES = {"model.num_encoder_layers", "model.num_decoder_layers", "model.d_model", "model.d_ff"}
LENGTHS = {"train.steps", "train.epochs"}
# Costs within this factor are the same cost: otherwise the worse of two variants would lead for being a hair smaller.
SAME_COST = 1.05
RULE = (
    "Costs within 5 % of each other count as the same. The Pareto front of the means has the variants for which no "
    "other of the same cost or less has a better mean; the cheapest have none to be compared with. A variant is "
    "significantly the best of its cost or less only if it is better than each of the others there by a significant "
    "difference, or by intervals against one baseline that do not overlap."
)
# The fewest points for a line.
FEWEST = 3


class Front(NamedTuple):
    """All variants by one cost and one metric."""

    cost: str  # of COSTS
    metric: Metric
    points: Mapping[str, tuple[float, float]]  # variant -> cost, mean score (perplexity as its log)
    leading: frozenset[str]  # the Pareto front of the means
    shown: frozenset[str]  # those of it that are shown to be better than each other variant of their cost or less
    resized: tuple[str, ...]  # the variants that the line goes through
    line: tuple[float, float] | None  # slope and intercept over the log of the cost

    @property
    def title(self) -> str:
        return f"{self.metric.title} against {COSTS[self.cost]}"

    @property
    def reach(self) -> tuple[float, float]:
        """The costs between which the line interpolates."""
        costs = [self.points[name][0] for name in self.resized]
        return min(costs), max(costs)

    def expected(self, cost: float) -> float | None:
        """The score of the line at that cost; None outside its reach."""
        if self.line is None or not self.reach[0] <= cost <= self.reach[1]:
            return None
        return self.line[0] * math.log(cost) + self.line[1]

    def beyond(self, variant: str) -> float | None:
        """How much higher than expected a variant's score is."""
        cost, score = self.points.get(variant, (math.inf, 0.0))
        expected = self.expected(cost)
        return None if expected is None else score - expected

    def to_json(self) -> dict[str, object]:
        return {
            "cost": self.cost,
            "measure": self.metric.key,
            "points": self.points,
            "front": sorted(self.leading),
            "shown": sorted(self.shown),
            "resized": self.resized,
            "line": self.line,
            "beyond": {name: self.beyond(name) for name in self.points},
        }


def fronts(sweep: SweepResult, findings: TestFindings) -> list[Front]:
    return [front(sweep, findings, cost, metric) for cost in COSTS for metric in METRICS]


def front(sweep: SweepResult, findings: TestFindings, cost: str, metric: Metric) -> Front:
    """The view of one test set by one cost, as measured: planned costs assume another size of the vocabulary."""
    points = {}
    for variant in sweep.variants:
        price, score = variant.mean(cost), findings.mean(metric, variant.name)
        if price and score is not None and findings.not_compared.get(variant.name) != OTHER_TEST_SET:
            points[variant.name] = (price, score)
    resized = tuple(v.name for v in sweep.variants if v.name in points and _is_resized(sweep, v, cost))
    leading = frozenset(name for name in points if not _is_beaten(points, name, metric.sign))
    shown = frozenset(
        name
        for name in leading
        if (rivals := _rivals(points, name)) and all(_is_better(sweep, findings, metric, name, r) for r in rivals)
    )
    costs, scores = [points[name][0] for name in resized], [points[name][1] for name in resized]
    line = tuple(np.polyfit(np.log(costs), scores, 1).tolist()) if len(set(costs)) >= FEWEST else None
    return Front(cost, metric, points, leading, shown, resized, line)


def _is_resized(sweep: SweepResult, variant: VariantResult, cost: str) -> bool:
    sizes = SIZES if cost == "parameters" else SIZES | LENGTHS
    return variant.name == sweep.baseline or (variant.baseline == sweep.baseline and set(variant.changes) <= sizes)


def _rivals(points: Mapping[str, tuple[float, float]], name: str) -> list[str]:
    """All others of the same cost or less."""
    return [other for other in points if other != name and points[other][0] <= SAME_COST * points[name][0]]


def _is_beaten(points: Mapping[str, tuple[float, float]], name: str, sign: int) -> bool:
    cost, score = points[name]
    return any(
        sign * points[other][1] > sign * score or (points[other][1] == score and SAME_COST * points[other][0] < cost)
        for other in _rivals(points, name)
    )


def _is_better(sweep: SweepResult, findings: TestFindings, metric: Metric, name: str, other: str) -> bool:
    """Whether one variant's score is significantly better than another's, as far as the comparisons show."""
    differences = findings.differences(metric)
    baselines = {variant.name: variant.baseline for variant in sweep.variants}
    mine, theirs = differences.get(name), differences.get(other)
    if mine is not None and baselines[name] == other:
        return metric.mark(mine) == "better"
    if theirs is not None and baselines[other] == name:
        return metric.mark(theirs) == "worse"
    if mine is None or theirs is None or baselines[name] != baselines[other]:
        return False
    # All intervals of a column are simultaneous: if two of them do not overlap, the true differences differ.
    return mine.low > theirs.high if metric.sign > 0 else mine.high < theirs.low


def blocks(sweep: SweepResult, fronts: Sequence[Front], unit: str) -> list[document.Block]:
    """The report's part about size and compute; `unit` is that of the perplexities."""
    found = [front for front in fronts if front.points]
    if not found:
        return []
    lines = []
    for front in found:
        leading, shown = (sorted(names, key=lambda n: front.points[n]) for names in (front.leading, front.shown))
        metric = front.metric.name
        best = f"significantly the best: {', '.join(shown) or 'none'}"
        lines.append(f"{metric} by {COSTS[front.cost]}: Pareto front of the means: {', '.join(leading)}; {best}.")
    note = "A ring, and ◇ in the table, marks the Pareto front of the means; ◆ those that are significantly the best."
    if resized := {COSTS[front.cost]: ", ".join(front.resized) for front in found if front.line}:
        names = "; ".join(f"against {cost}: {names}" for cost, names in resized.items())
        note += (
            " The dashed line goes through the models that differ from the baseline in size alone or, against training "
            f"FLOPs, also in how long they train ({names}), and gives the score to expect at that cost; the columns of "
            "the table give each variant's distance from it."
        )
    figures = [_figure(sweep, front, unit) for front in found]
    return [
        document.Text(RULE),
        document.Bullets(lines),
        document.Figures(figures, note, large=True),
        document.Folded("By size and compute", [_table(sweep, found)]),
    ]


def _figure(sweep: SweepResult, front: Front, unit: str) -> document.Figure:
    groups = dict.fromkeys(v.group for v in sweep.variants if v.name != sweep.baseline)
    colours = {group: COLOURS[number % len(COLOURS)] for number, group in enumerate(groups)}
    metric, points = front.metric, []
    for variant in sweep.variants:
        if variant.name in front.points:
            cost, score = front.points[variant.name]
            shown = metric.displayed(score)
            tip = f"{variant.name}: {metric.title} {shown:.4g}, {count_text(cost)} {COSTS[front.cost]}"
            colour = INK if variant.name == sweep.baseline else colours[variant.group]
            points.append(Point(cost, shown, tip, colour, variant.name in front.leading))
    line = []
    for cost in np.geomspace(*front.reach, 20).clip(*front.reach).tolist() if front.line else ():
        if (expected := front.expected(cost)) is not None:
            line.append((cost, metric.displayed(expected)))
    legend = [
        document.Key(sweep.baseline, INK),
        *(document.Key(group or "others", colour) for group, colour in colours.items()),
    ]
    y = metric.title + (" per word" if metric is PERPLEXITY and unit == "word" else "")
    return document.Figure(front.title, scatter(points, COSTS[front.cost], y, line), legend)


def _table(sweep: SweepResult, fronts: Sequence[Front]) -> document.Table:
    """The variants by size, with their positions on the fronts and their distances from the lines."""
    costs: dict[str, dict[str, float]] = {cost: {} for cost in COSTS}
    for front in fronts:
        costs[front.cost] |= {name: cost for name, (cost, _) in front.points.items()}
    names = [v.name for v in sweep.variants if any(v.name in by_name for by_name in costs.values())]
    names.sort(key=lambda name: costs["parameters"].get(name, 0.0))
    columns: list[document.Filled] = [
        (document.Column(title), [document.number_cell(by_name.get(name), count_text) for name in names])
        for title, by_name in zip(("parameters", "FLOPs"), costs.values(), strict=True)
    ]
    for front in fronts:
        places = [(name in front.leading) + (name in front.shown) for name in names]
        cells = [document.Cell(("", "◇", "◆")[place], place) for place in places]
        columns.append((document.Column(f"{front.title}: best"), cells))
        if front.line:
            what = "size" if front.cost == "parameters" else "compute"
            cells = [document.number_cell(front.beyond(name), front.metric.change) for name in names]
            columns.append((document.Column(f"{front.metric.title} beyond its {what}"), cells))
    return document.Table([column for column, _ in columns], document.rows_of(names, columns))
