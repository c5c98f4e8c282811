"""The figures of a report, drawn by matplotlib: one column of a paper wide, the same in the page.

Forests have the differences from the baseline, curves the training, and a scatter the scores against the cost.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from transformer_jax.errors import visible
from transformer_jax.pictures.plots import COLOURS, INK, encoded, literal, plain_figure
from transformer_jax.report.findings import DIFFERENCES, Compared, Family, TestFindings
from transformer_jax.report.metrics import Metric
from transformer_jax.report.results import SweepResult, VariantResult
from transformer_jax.report.statistics import Difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches: one column of a page with two, as in ACL conferences (7.7 cm), the narrowest of the usual ones.
WIDTH = 3.03
LINE_HEIGHT, BETWEEN_ROWS, AROUND = 0.11, 0.045, 0.75
NAME_WIDTH, NAME_LINES = 24, 6
SOFT, LINE = "#66737f", "#e4e7eb"
# The marks of significant and of other differences, by colour and by shape.
MARKS = {
    "better": ("#2e7d4f", "^", "significantly better"),
    "worse": ("#b3412f", "v", "significantly worse"),
    "": (SOFT, "o", "not significant"),
}
STYLE: Any = {
    "font.size": 7,
    "axes.labelsize": 7,
    "legend.fontsize": 6.5,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "pdf.fonttype": 42,  # TrueType: publishers refuse matplotlib's default, Type 3
    "svg.fonttype": "path",  # outlines look the same where the font is missing
}
TITLES = {"valid_perplexity": "validation perplexity", "bleu": "validation BLEU", "loss": "training loss"}
# More points, curves or rows in one figure cannot be distinguished.
MOST_POINTS = 60
MOST_CURVES = len(COLOURS)
MOST_OTHERS = 3 * MOST_CURVES  # of a group, beside the baseline
MOST_ROWS = 100  # of a figure of differences; tables and CSV have all
# Costs within this factor are the same cost: there is nothing to plot against.
SAME_COST = 1.05


class Forest(NamedTuple):
    """Differences from the baseline with their intervals, of perplexities in percent."""

    title: str
    metric: Metric
    differences: Mapping[str, Difference]
    x: str
    seeds: Mapping[str, Sequence[float]] = {}  # each seed's difference from the baseline's mean, or contrast
    margin: tuple[float, float] | None = None
    labels: Mapping[str, str] = {}  # the names of variants in figures


class Curve(NamedTuple):
    """A curve, in a band from the lowest to the highest seed, with a dot for each seed at its end."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    is_baseline: bool = False
    ends: Sequence[float] = ()


class Curves(NamedTuple):
    """Curves over x, or points only, such as scores over a cost on a logarithmic axis."""

    title: str
    series: Sequence[Curve]
    x: str
    y: str
    log: bool = False  # the y axis
    is_scatter: bool = False


Plot = Forest | Curves


def drawn(plot: Plot, form: str, creator: str) -> bytes:
    """A figure as a file of this format, "svg" or "pdf"; `creator` is in its metadata."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        metadata = {"Creator": creator, "Date" if form == "svg" else "CreationDate": None}
        return encoded(figure_of(plot), form, metadata=metadata)


def figure_of(plot: Plot) -> Figure:
    return _draw_forest(plot) if isinstance(plot, Forest) else _draw_curves(plot)


# What is plotted


def forests(findings: TestFindings, sweep: SweepResult) -> dict[str, dict[str, Forest]]:
    """A plot for each metric by which anything is compared, by the key of the family and of the metric."""
    return {
        family.key: {
            key: _forest(compared, family, findings.unit, sweep)
            for key, compared in findings.by_metric.items()
            if compared.families.get(family.key)
        }
        for family in findings.families
    }


def _forest(compared: Compared, family: Family, unit: str, sweep: SweepResult) -> Forest:
    metric, differences, seeds, margin = compared.metric, {}, {}, None
    x, scores = metric.points, {name: np.array(values) for name, values in compared.scores.items()}
    if metric.is_ratio:
        x, scores = f"perplexity per {unit} in %", {name: np.log(values) for name, values in scores.items()}
    for name, found in compared.families[family.key].items():
        low, value, high = map(metric.shown, (found.low, found.value, found.high))
        differences[name] = found._replace(low=low, value=value, high=high)
        weights, dots = family.contrasts[name], np.zeros(0)
        if family.key == DIFFERENCES:
            dots = scores[name] - scores[name].mean() + found.value
        elif all(len(scores[variant]) == len(sweep.seeds) for variant in weights):
            dots = np.sum([weight * scores[variant] for variant, weight in weights.items()], axis=0)
        seeds[name] = [metric.shown(dot) for dot in dots]
    if compared.margin is not None:
        largest = metric.largest_within(compared.margin)
        margin = metric.shown(-largest), metric.shown(largest)
    x = f"Δ {x} (better →)" if metric.sign > 0 else f"Δ {x} (← better)"
    title, labels = f"{metric.name}: {family.title_in_sentence}", {v.name: v.shown_name for v in sweep.variants}
    if len(differences) > MOST_ROWS:
        title = f"{title}, the {MOST_ROWS} largest of {len(differences)}"
        shown = sorted(differences, key=lambda name: -abs(differences[name].value))[:MOST_ROWS]
        differences = {name: found for name, found in differences.items() if name in shown}
    return Forest(title, metric, differences, x, seeds, margin, labels)


def learning_curves(sweep: SweepResult) -> list[Curves]:
    """For each metric one figure if all curves fit, else one for each group of variants with the baseline in all.

    Training loss is shown only if nothing was validated.
    """
    figures: list[Curves] = []
    for metric, title in TITLES.items():
        if metric == "loss" and figures:
            break
        found = [(variant, learning_curve(variant, metric, sweep.baseline)) for variant in sweep.variants]
        curves = [(variant.group or "others", curve) for variant, curve in found if curve]
        base = [curve for _, curve in curves if curve.is_baseline]
        by_title: dict[str, list[Curve]] = {title: []} if len(curves) == len(base) == 1 else {}
        for group, curve in curves:
            if not curve.is_baseline:
                by_title.setdefault(title if len(curves) <= MOST_CURVES else f"{title}: {group}", []).append(curve)
        for heading, others in by_title.items():
            if len(others) > MOST_OTHERS:
                heading, others = f"{heading}, the first {MOST_OTHERS} of {len(others)}", others[:MOST_OTHERS]
            figures.append(Curves(heading, [*base, *others], "updates", title, log=metric != "bleu"))
    return figures


def learning_curve(variant: VariantResult, metric: str, baseline: str = "") -> Curve | None:
    """The mean of the finished runs; of the others, while none is finished."""
    runs = [points for run in variant.finished or variant.runs if (points := run.points(metric))]
    steps = sorted(set.intersection(*map(set, runs))) if runs else []
    if not steps:
        return None
    shown = sorted({steps[at] for at in np.linspace(0, len(steps) - 1, MOST_POINTS).round().astype(int)})
    values_RX = np.array([[points[step] for step in shown] for points in runs])
    low, high = (values_RX.min(0).tolist(), values_RX.max(0).tolist()) if len(runs) > 1 else ((), ())
    ends = values_RX[:, -1].tolist()
    return Curve(variant.shown_name, shown, values_RX.mean(0).tolist(), low, high, variant.name == baseline, ends)


def score_against_compute(sweep: SweepResult, findings: TestFindings) -> Curves | None:
    """Scores against training FLOPs, a dot per seed, a colour per group; None unless the variants differ in these."""
    compared = next(iter(findings.by_metric.values()), None)
    if compared is None:
        return None
    groups: dict[str, list[tuple[float, float]]] = {}
    for variant in sweep.variants:
        cost, scores = variant.mean("training_flops"), compared.scores.get(variant.name)
        if cost and scores:
            group = sweep.baseline if variant.name == sweep.baseline else variant.group or "others"
            groups.setdefault(group, []).extend((cost, score) for score in scores)
    series = [Curve(group, [x for x, _ in points], [y for _, y in points]) for group, points in groups.items()]
    costs = [cost for curve in series for cost in curve.x]
    if not costs or max(costs) <= SAME_COST * min(costs):
        return None
    title = "PPL/word" if compared.metric.is_ratio and findings.unit == "word" else compared.metric.title
    return Curves(f"{title} against training FLOPs", series, "training FLOPs", title, is_scatter=True)


# How it is drawn


def _draw_forest(plot: Forest) -> Figure:
    """Differences with their intervals, one below the other."""
    names, rows = [_wrapped(plot.labels.get(name, name)) for name in plot.differences], [*plot.differences.values()]
    marks = [plot.metric.mark(row) for row in rows]
    in_legend = len({*marks}) + (plot.margin is not None)
    around = AROUND + LINE_HEIGHT * (-(-in_legend // 2))
    figure = plain_figure(WIDTH, around + (LINE_HEIGHT * _lines(names) + BETWEEN_ROWS) * len(rows))
    axes = figure.subplots()
    axes.axvline(0, color=SOFT, linewidth=0.8, linestyle=(0, (3, 3)))
    if plot.margin is not None:
        axes.axvspan(*plot.margin, color=LINE, linewidth=0, label="the margin")
    left, right = reach(rows, plot.margin)
    for mark in dict.fromkeys(marks):
        colour, shape, label = MARKS[mark]
        look: Any = {"color": colour, "markersize": 3.5, "linewidth": 1, "label": label}
        alike = [(y, name, row) for y, (name, row) in enumerate(plot.differences.items()) if marks[y] == mark]
        dots_D2 = np.array([(dot, y + 0.28) for y, name, _ in alike for dot in plot.seeds.get(name, ())]).reshape(-1, 2)
        axes.plot(*dots_D2.T, ".", color=colour, markersize=3, markeredgewidth=0)
        ends = [(row.value - row.low, row.high - row.value) for _, _, row in alike]
        values, places = [row.value for _, _, row in alike], [y for y, _, _ in alike]
        axes.errorbar(values, places, xerr=[*zip(*ends, strict=True)], fmt=shape, **look)
        # What lies beyond the axes, an end of an interval or a seed, is marked at their edge.
        reached_E2 = [(end, y) for y, _, row in alike for end in (row.low, row.high)] + dots_D2.tolist()
        for edge, arrow, is_beyond in ((left, "<", np.less), (right, ">", np.greater)):
            beyond = [y for end, y in reached_E2 if is_beyond(end, edge)]
            for y in beyond:
                (marker,) = axes.plot(edge, y, arrow, color=colour, markersize=3.5, clip_on=False)
                marker.set_in_layout(False)
    axes.set(xlim=(left, right), ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), names)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    _legend(figure, axes, literal(plot.x))  # the label of the x axis: as wide as the figure, which the axes are not
    return figure


def reach(rows: Sequence[Difference], margin: tuple[float, float] | None = None) -> tuple[float, float]:
    """The ends of the x axis, with the margin in it: one wide interval must not squeeze all others."""
    ends = sorted(max(abs(row.low), abs(row.high)) for row in rows)
    most = max(2 * ends[len(ends) // 2], 1.1 * max(abs(row.value) for row in rows))
    shown = [0.0, *(min(max(value, -most), most) for row in rows for value in (row.low, row.high)), *(margin or ())]
    around = 0.05 * (max(shown) - min(shown)) or 0.5
    return min(shown) - around, max(shown) + around


def _draw_curves(plot: Curves) -> Figure:
    """Curves with their bands, the baseline in black; or points."""
    from matplotlib.ticker import LogLocator, NullLocator

    names = [_wrapped(curve.name) for curve in plot.series]
    figure = plain_figure(WIDTH, 2.1 + 0.13 * _lines(names) * -(-len(names) // _columns(names)))
    axes = figure.subplots()
    for number_, (name, curve) in enumerate(zip(names, plot.series, strict=True)):
        colour = INK if curve.is_baseline else COLOURS[number_ % len(COLOURS)]
        style = "o" if plot.is_scatter else "-"
        width = 1.4 if curve.is_baseline else 1
        axes.plot(curve.x, curve.y, style, color=colour, linewidth=width, markersize=3.5, label=name)
        if curve.low:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.13, linewidth=0)
        axes.plot([*curve.x[-1:]] * len(curve.ends), curve.ends, ".", color=colour, markersize=3, markeredgewidth=0)
    low, high = axes.dataLim.intervaly
    if plot.log and low > 0 and high / low >= 1.5:  # on a linear axis where the values are nearly equal
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 50 else (1,)))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.set(xlabel=literal(plot.x), ylabel=literal(plot.y), xscale="log" if plot.is_scatter else "linear")
    axes.grid(color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    _legend(figure, axes)
    return figure


def _legend(figure: Figure, axes: Axes, title: str = "") -> None:
    """Below the axes, where it covers nothing."""
    by_label = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # each once
    labels, handles = [*by_label], [*by_label.values()]
    look: Any = {"frameon": False, "handletextpad": 0.5, "columnspacing": 1, "title_fontsize": STYLE["axes.labelsize"]}
    figure.legend(handles, labels, loc="outside lower center", ncols=_columns(labels), title=title or None, **look)


def _wrapped(name: str) -> str:
    """A name, broken into the lines that there is room for."""
    return literal(textwrap.fill(visible(name), NAME_WIDTH, max_lines=NAME_LINES, placeholder="…"))


def _lines(names: Sequence[str]) -> int:
    return max((name.count("\n") + 1 for name in names), default=1)


def _columns(names: Sequence[str]) -> int:
    """The columns of a legend: wrapped names need the whole width."""
    return 2 if _lines(names) == 1 else 1
