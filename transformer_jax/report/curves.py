"""The learning curves of a sweep: the mean over the seeds of a variant, in a band from the lowest to the highest."""

from collections.abc import Mapping, Sequence

import numpy as np

from transformer_jax.pictures.plots import COLOURS
from transformer_jax.report.figures import Curve, Curves
from transformer_jax.report.results import SweepResult, VariantResult, number

TITLES = {"valid_perplexity": "validation perplexity", "bleu": "validation BLEU", "loss": "training loss"}
# More points, or more curves in one figure, cannot be distinguished.
MOST_POINTS = 60
MOST_CURVES = len(COLOURS)


def learning_curves(sweep: SweepResult) -> list[Curves]:
    """A figure for each metric and group, the baseline in all; training loss only if nothing was validated."""
    figures: list[Curves] = []
    for metric, title in TITLES.items():
        if metric == "loss" and figures:
            break
        found = {variant.name: found for variant in sweep.variants if (found := curve(variant, metric)) is not None}
        base = [found[sweep.baseline]._replace(is_baseline=True)] if sweep.baseline in found else []
        for heading, names in figures_of(sweep, found):
            series = [*base, *(found[name] for name in names)]
            figures.append(
                Curves(f"{title}: {heading}" if heading else title, series, "updates", title, log=metric != "bleu")
            )
    return figures


def curve(variant: VariantResult, metric: str) -> Curve | None:
    """The curve of the finished runs; of the others, while none is finished."""
    runs = []
    for run in variant.finished or variant.runs:
        values = {line["step"]: value for line in run.curve if (value := number(line.get(metric))) is not None}
        if values:
            runs.append(values)
    steps = sorted(set.intersection(*(set(values) for values in runs))) if runs else []
    if not steps:
        return None
    kept = sorted({steps[int(index)] for index in np.linspace(0, len(steps) - 1, MOST_POINTS).round()})
    values_RS = np.array([[values[step] for step in kept] for values in runs])
    band = (values_RS.min(0).tolist(), values_RS.max(0).tolist()) if len(runs) > 1 else ((), ())
    return Curve(variant.name, kept, values_RS.mean(0).tolist(), *band)


def figures_of(sweep: SweepResult, found: Mapping[str, Curve]) -> list[tuple[str, Sequence[str]]]:
    """The heading of each figure and its variants without the baseline: one figure if all fit, else one per group."""
    others = [variant for variant in sweep.variants if variant.name in found and variant.name != sweep.baseline]
    if len(others) < MOST_CURVES:
        return [("", [variant.name for variant in others])] if found else []
    groups: dict[str, list[str]] = {}
    for variant in others:
        groups.setdefault(variant.group or "others", []).append(variant.name)
    figures: list[tuple[str, Sequence[str]]] = []
    for group, names in groups.items():
        for number_, start in enumerate(range(0, len(names), MOST_CURVES - 1), start=1):
            heading = f"{group} ({number_})" if len(names) >= MOST_CURVES else group
            figures.append((heading, names[start : start + MOST_CURVES - 1]))
    return figures
