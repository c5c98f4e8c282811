"""The metrics that a report compares, and how numbers are displayed."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from transformer_jax.metric_names import best_value
from transformer_jax.report.results import SweepResult
from transformer_jax.report.statistics import Difference

# exp() of more overflows.
LARGEST_EXPONENT = 700.0
# An interval of the perplexity from below 1 / WIDE to above WIDE times the baseline's says nothing.
WIDE = 1000.0
MOST_DECIMALS = 9
TOO_FEW_SEEDS, ALL_TIE = "too few seeds", "all runs tie"


class Metric(NamedTuple):
    """Which direction is better, and how scores and differences are displayed. Perplexity is compared by its log."""

    key: str
    title: str
    name: str
    sign: int = 1  # -1 if lower is better
    decimals: int = 2  # of differences
    score_decimals: int | None = None  # none = 3 where all scores are below 10, else 2
    points: str = "BLEU"  # what a difference is a number of
    largest: float = 100.0  # score, where the lowest is 0; infinite where scores may be any
    by_sentence: bool = True  # whether scores of sentences are known, so that intervals account for their choice
    is_ratio: bool = False  # compared by its logarithm

    def shown(self, difference: float) -> float:
        """A difference in points, or of the logarithms of perplexities the change in percent."""
        return 100 * math.expm1(min(difference, LARGEST_EXPONENT)) if self.is_ratio else float(difference)

    def change(self, difference: float) -> str:
        """ "+1.20" points, or "+1.2 %" of perplexity."""
        shown = self.shown(difference)
        form = "+.0e" if self.is_ratio and shown >= 1e5 else f"+.{self.decimals}f"
        return f"{shown:{form}}{' %' * (self.is_ratio)}".replace("-", "−")

    def interval(self, difference: Difference) -> str:
        """The interval, or why there is none that says anything."""
        widest = math.log(WIDE) if self.is_ratio else self.largest
        if difference.error == difference.value == 0:
            return ALL_TIE
        if difference.low <= -widest and difference.high >= widest:
            return TOO_FEW_SEEDS
        low, high = (self.change(bound).removesuffix(" %") for bound in (difference.low, difference.high))
        return f"[{low}, {high}]"

    def mark(self, difference: Difference) -> str:
        """ "better" or "worse" for a significant difference."""
        return ("better" if self.sign * difference.value > 0 else "worse") if difference.significant else ""

    def verdict(self, difference: Difference) -> str:
        """The verdict on a difference if a margin is declared, else ""."""
        if difference.equivalence_p is None:
            return ""
        return "equivalent" if difference.equivalent else self.mark(difference) or "undecided"

    def margin_text(self, margin: float) -> str:
        if self.is_ratio:
            return f"{100 * margin:g} % of perplexity"
        return f"{margin:g} {self.points}"

    def mde_text(self, size: float) -> str:
        """A minimum detectable difference; "" if no score can change so much."""
        if self.is_ratio:
            return f"{self.change(-size)} or {self.change(size)} of perplexity"
        return f"{self.change(size).replace('+', '±')} {self.points}" if size <= self.largest else ""

    def largest_within(self, margin: float) -> float:
        """The largest difference that is within a margin, which of perplexity is a ratio less 1."""
        return math.log1p(margin) if self.is_ratio else margin

    def published_difference(self, score: float, baseline: float) -> float:
        """The difference of published scores on the scale of ours."""
        return math.log(score / baseline) if self.is_ratio else score - baseline


BLEU = Metric("bleu", "BLEU", "BLEU")
PERPLEXITY = Metric("perplexity", "PPL", "Perplexity", -1, decimals=1, is_ratio=True)
EXACT_MATCH = Metric("exact_match", "exact", "Exact match", decimals=1, points="points of exact match")
METRICS = (BLEU, PERPLEXITY, EXACT_MATCH)  # the last only where any translation is right, or examples have labels
# Compared only where it is the primary metric or has a margin, because it says nearly what BLEU says.
OPTIONAL = (
    Metric("chrf", "chrF", "chrF", points="chrF", by_sentence=False),
    Metric("paper_bleu", "BLEU paper", "BLEU as in the paper", by_sentence=False),
)


def metrics_of(sweep: SweepResult, split: str = "") -> list[Metric]:
    """The metrics of a sweep, its primary metric first, as they are displayed for a test set.

    A custom metric is better the higher it is, unless train.best_metric names it and its lowest value is best.
    """
    tested = [measured for run in sweep.runs for measured in run.measured.values()]
    names = {name for measured in tested for name in measured.scores}
    best, best_is = (sweep.options.get(f"train.{name}") for name in ("best_metric", "best_is"))
    metrics = [*METRICS, *(metric for metric in OPTIONAL if metric.key in {sweep.primary, *sweep.margin})]
    for name in sorted(names - {metric.key for metric in METRICS + OPTIONAL}):
        is_lowest = name == best and best_value(name, best_is) == "lowest"
        by_sentence = all(name in measured.sentence_scores for measured in tested if name in measured.scores)
        rows = [[run.scores[name] for run in v.measured(split) if name in run.scores] for v in sweep.variants]
        decimals = decimals_for(rows)
        sign = -1 if is_lowest else 1
        metrics.append(Metric(name, name, name, sign, decimals, decimals, name, math.inf, by_sentence))
    if (given := sweep.decimals) is not None:
        metrics = [metric._replace(decimals=given, score_decimals=given) for metric in metrics]
    return sorted(metrics, key=lambda metric: metric.key != sweep.primary)


def decimals_for(rows: Sequence[Sequence[float]]) -> int:
    """The decimals of a column, whose rows have a value for each seed: those that show two digits of the median
    standard deviation over seeds, and at most six digits of the largest value; four of it where there is none."""
    largest = max((abs(value) for row in rows for value in row), default=0.0)
    spreads = [spread for row in rows if (spread := deviation(row))]
    if not largest:
        return 0
    digits = math.floor(math.log10(largest)) + 1  # before the point
    decimals = min(1 - math.floor(math.log10(statistics.median(spreads))), 6 - digits) if spreads else 4 - digits
    return min(max(decimals, 0), MOST_DECIMALS)


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation over seeds; None for a single seed, or if it overflows."""
    if len(values) < 2:
        return None
    with np.errstate(over="ignore"):
        found = float(np.std(values, ddof=1))
    return found if math.isfinite(found) else None


def p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
