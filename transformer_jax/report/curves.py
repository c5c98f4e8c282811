"""Learning curves of a sweep: of each variant the mean over its seeds, and the band from the lowest to the highest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from transformer_jax.report.plots import COLOURS, Line, lines
from transformer_jax.report.results import SweepResult, VariantResult, number

MEASURES = {"valid_perplexity": "validation perplexity", "bleu": "validation BLEU", "loss": "training loss"}
# More points the eye cannot tell apart.
POINTS = 60
# More lines neither; the baseline is one of them.
LINES = len(COLOURS)


class Chart(NamedTuple):
    title: str
    svg: str


def charts(sweep: SweepResult) -> list[Chart]:
    """A chart for each measure and group, the baseline in all; training loss only where nothing was validated."""
    found: list[Chart] = []
    for measure, title in MEASURES.items():
        if measure == "loss" and found:
            break
        curves = {variant.name: line for variant in sweep.variants if (line := curve(variant, measure)) is not None}
        base = curves.get(sweep.baseline)
        for heading, names in _shares(sweep, curves):
            series = [] if base is None else [base._replace(strong=True)]
            series += [curves[name] for name in names]
            about = f"{title}: {heading}" if heading else title
            found.append(Chart(about, lines(series, "step", title, log=measure != "bleu")))
    return found


def curve(variant: VariantResult, measure: str) -> Line | None:
    """The finished runs' curve, or that of those under way while none is finished."""
    runs = []
    for run in variant.finished or variant.runs:
        values = {line["step"]: value for line in run.curve if (value := number(line.get(measure))) is not None}
        if values:
            runs.append(values)
    steps = sorted(set.intersection(*(set(values) for values in runs))) if runs else []
    if not steps:
        return None
    kept = sorted({steps[int(place)] for place in np.linspace(0, len(steps) - 1, POINTS).round()})
    values_RS = np.array([[values[step] for step in kept] for values in runs])
    band = (values_RS.min(0).tolist(), values_RS.max(0).tolist()) if len(runs) > 1 else ((), ())
    return Line(variant.name, kept, values_RS.mean(0).tolist(), *band)


def _shares(sweep: SweepResult, curves: dict[str, Line]) -> list[tuple[str, Sequence[str]]]:
    """Headings and the variants under them, as many as one chart can hold; all in one chart where they fit."""
    others = [variant for variant in sweep.variants if variant.name in curves and variant.name != sweep.baseline]
    if len(others) < LINES:
        return [("", [variant.name for variant in others])] if curves else []
    groups: dict[str, list[str]] = {}
    for variant in others:
        groups.setdefault(variant.group, []).append(variant.name)
    shares: list[tuple[str, Sequence[str]]] = []
    for group, names in groups.items():
        for start in range(0, len(names), LINES - 1):
            more = f" ({start // (LINES - 1) + 1})" if len(names) >= LINES else ""
            shares.append(((group or "others") + more, names[start : start + LINES - 1]))
    return shares
