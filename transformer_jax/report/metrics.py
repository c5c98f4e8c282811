"""The metrics that a report compares, and how numbers are displayed."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from transformer_jax.report.statistics import Difference

# exp() of more overflows.
LARGEST_EXPONENT = 700.0
# An interval of the perplexity from below 1 / WIDE to above WIDE times the baseline's says nothing.
WIDE = 1000.0
TOO_FEW_SEEDS, ALL_TIE = "too few seeds", "all runs tie"


class Metric(NamedTuple):
    """Which direction is better, and how scores and differences are displayed. Perplexity is compared by its log."""

    key: str
    title: str
    name: str
    sign: int  # 1 if higher is better, -1 if lower is
    form: str = "+.2f"  # of a difference in points

    def change(self, difference: float) -> str:
        """+1.20 points, or the change of the perplexity in percent."""
        if self is not PERPLEXITY:
            return f"{difference:{self.form}}".replace("-", "−")
        percents = percents_of(difference)
        return (f"{percents:+.1f} %" if percents < 1e5 else f"{percents:+.0e} %").replace("-", "−")

    def interval(self, difference: Difference) -> str:
        """The interval, or why there is none that says anything."""
        widest = math.log(WIDE) if self is PERPLEXITY else 100.0
        if difference.error == 0:
            return ALL_TIE
        if difference.low <= -widest and difference.high >= widest:
            return TOO_FEW_SEEDS
        low, high = (self.change(bound).removesuffix(" %") for bound in (difference.low, difference.high))
        return f"[{low}, {high}]"

    def mark(self, difference: Difference) -> str:
        """ "better" or "worse" for a significant difference."""
        return ("better" if self.sign * difference.value > 0 else "worse") if difference.significant else ""

    def room(self, score: float | None) -> tuple[float, float]:
        """How far a score as it is compared can fall and rise: BLEU and shares to 0 and 100, perplexity to 1."""
        if score is None:
            return math.inf, math.inf
        return score, math.inf if self is PERPLEXITY else 100 - score

    def literature_difference(self, scores: tuple[float, float] | None) -> float | None:
        """The difference between the published scores of a variant and its baseline."""
        if scores is None or min(scores) <= 0:
            return None
        return math.log(scores[0] / scores[1]) if self is PERPLEXITY else scores[0] - scores[1]


BLEU = Metric("bleu", "BLEU", "BLEU", 1)
PERPLEXITY = Metric("perplexity", "PPL", "Perplexity", -1)
METRICS = (BLEU, PERPLEXITY)  # of every report
EXACT_MATCH = Metric("exact_match", "exact", "Exact match", 1, "+.1f")  # of those where any translation is right


def percents_of(logarithm: float) -> float:
    """The change in percent of a quantity whose logarithm changes by this much."""
    return 100 * math.expm1(min(logarithm, LARGEST_EXPONENT))


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation over seeds; None for a single seed, or if it overflows."""
    if len(values) < 2:
        return None
    with np.errstate(over="ignore"):
        found = float(np.std(values, ddof=1))
    return found if math.isfinite(found) else None


def mean_and_deviation(values: Sequence[float], form: str) -> str:
    spread = deviation(values)
    return f"{np.mean(values):{form}}" + ("" if spread is None else f" ± {spread:{form}}")


def p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def p_title(comparisons: int) -> str:
    """The title of a column of corrected p-values; of a single comparison there is nothing to correct."""
    return "p (corrected)" if comparisons > 1 else "p"
