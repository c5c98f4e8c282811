"""The figures of a report, drawn by matplotlib: one column of a paper wide, the same in the page.

Forests have the differences from the baseline, curves the training, and a scatter the scores against the cost.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from transformer_jax.errors import visible
from transformer_jax.pictures.plots import COLOURS, INK, literal, plain_figure
from transformer_jax.report.findings import Compared, TestFindings
from transformer_jax.report.metrics import BLEU, METRICS, PERPLEXITY, Metric, percents_of
from transformer_jax.report.results import SweepResult, VariantResult, number
from transformer_jax.report.statistics import Difference
from transformer_jax.runs.metrics import count_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches: one column of a page with two, that of ACL conferences (7.7 cm), the narrowest of the usual ones.
WIDTH = 3.03
LINE_HEIGHT, BETWEEN_ROWS, AROUND = 0.11, 0.045, 0.75
NAME_WIDTH, NAME_LINES = 20, 2
SOFT, LINE = "#66737f", "#e4e7eb"
# Of curves, repeated with their colours: the lengths of lines and gaps.
DASHES: tuple[tuple[float, ...], ...] = ((), (3.5, 1.5), (3.5, 1.5, 1, 1.5), (1, 1.25))
BAND = "lowest to highest seed"
# What a significant difference and any other look like: colour and shape say the same.
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
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "pdf.fonttype": 42,  # TrueType: publishers refuse matplotlib's default, Type 3
    "svg.fonttype": "path",  # outlines look the same where the font is missing
    "svg.hashsalt": "transformer_jax",  # the same figure gives the same file
}
TITLES = {"valid_perplexity": "validation perplexity", "bleu": "validation BLEU", "loss": "training loss"}
# More points, or more curves in one figure, cannot be distinguished.
MOST_POINTS = 60
MOST_CURVES = len(COLOURS)
# Of the ends of a logarithmic axis: what is beyond overflows where matplotlib places ticks.
LARGEST_EXPONENT = 300.0
# Costs within this factor are the same cost: there is nothing to plot against.
SAME_COST = 1.05


class Forest(NamedTuple):
    """Differences from the baseline with their intervals; the axis of perplexities is in percent."""

    title: str
    metric: Metric
    differences: Mapping[str, Difference]
    x: str
    published: Mapping[str, float] = {}


class Curve(NamedTuple):
    """A curve, and the band around it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    is_baseline: bool = False

    @classmethod
    def over_seeds(cls, name: str, x: Sequence[float], values_RX: np.ndarray, is_baseline: bool = False) -> Curve:
        """The mean of the seeds, in a band from the lowest to the highest."""
        low, high = (values_RX.min(0).tolist(), values_RX.max(0).tolist()) if len(values_RX) > 1 else ((), ())
        return cls(name, x, values_RX.mean(0).tolist(), low, high, is_baseline)


class Curves(NamedTuple):
    """Curves over x, with a logarithmic y axis if `log`, and a dashed line at `limit` on the x axis."""

    title: str
    series: Sequence[Curve]
    x: str
    y: str
    log: bool = False
    limit: float | None = None


class Scatter(NamedTuple):
    """The scores of variants against their cost, on a logarithmic axis; a colour for each group."""

    title: str
    points: Mapping[str, Sequence[tuple[float, float]]]  # by group
    x: str
    y: str


Plot = Forest | Curves | Scatter


def drawn(plot: Plot, form: str, creator: str) -> bytes:
    """A figure as a file of this format, "svg" or "pdf"; `creator` is in its metadata."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure = figure_of(plot)
        metadata = {"Creator": creator, "Date" if form == "svg" else "CreationDate": None}
        file = io.BytesIO()
        figure.savefig(file, format=form, metadata=metadata)
    return file.getvalue()


def figure_of(plot: Plot) -> Figure:
    match plot:
        case Forest():
            return _draw_forest(plot)
        case Curves():
            return _draw_curves(plot)
        case Scatter():
            return _draw_scatter(plot)


# What is plotted


def forests(sweep: SweepResult, findings: TestFindings) -> dict[str, Forest]:
    """A plot for each metric by which anything is compared, by the metric's key."""
    return {
        metric.key: _forest(sweep, findings.by_metric[metric.key], findings.unit)
        for metric in METRICS
        if findings.differences(metric)
    }


def _forest(sweep: SweepResult, compared: Compared, unit: str) -> Forest:
    metric = compared.metric
    published = {
        name: difference
        for name in compared.differences
        if (difference := metric.literature_difference(sweep.published(name, metric.key))) is not None
    }
    x = "Δ BLEU (better →)" if metric is BLEU else f"Δ perplexity per {unit} in %, log scale (← better)"
    return Forest(f"{metric.name}: differences from the baseline", metric, compared.differences, x, published)


def learning_curves(sweep: SweepResult) -> list[Curves]:
    """A figure for each metric and group, the baseline in all; training loss only if nothing was validated."""
    figures: list[Curves] = []
    for metric, title in TITLES.items():
        if metric == "loss" and figures:
            break
        found = {v.name: curve for v in sweep.variants if (curve := learning_curve(v, metric, sweep.baseline))}
        figures += curves_by_group(sweep, found, title, x="updates", log=metric != "bleu")
    return figures


def learning_curve(variant: VariantResult, metric: str, baseline: str = "") -> Curve | None:
    """The curve of the finished runs; of the others, while none is finished."""
    runs = []
    for run in variant.finished or variant.runs:
        values = {line["step"]: value for line in run.curve if (value := number(line.get(metric))) is not None}
        if values:
            runs.append(values)
    steps = sorted(set.intersection(*(set(values) for values in runs))) if runs else []
    if not steps:
        return None
    shown = sorted({steps[int(index)] for index in np.linspace(0, len(steps) - 1, MOST_POINTS).round()})
    values_RX = np.array([[values[step] for step in shown] for values in runs])
    return Curve.over_seeds(variant.name, shown, values_RX, variant.name == baseline)


def curves_by_group(
    sweep: SweepResult, found: Mapping[str, Curve], title: str, x: str, log: bool = False, limit: float | None = None
) -> list[Curves]:
    """One figure if all curves fit, else one for each group of variants; the baseline is in all."""
    others = [variant for variant in sweep.variants if variant.name in found and variant.name != sweep.baseline]
    base = [found[sweep.baseline]] if sweep.baseline in found else []
    if len(others) < MOST_CURVES:
        series = [*base, *(found[variant.name] for variant in others)]
        return [Curves(title, series, x, title, log, limit)] if series else []
    groups: dict[str, list[Curve]] = {}
    for variant in others:
        groups.setdefault(variant.group or "others", []).append(found[variant.name])
    figures, most = [], MOST_CURVES - 1
    for group, curves in groups.items():
        for count, start in enumerate(range(0, len(curves), most), start=1):
            heading = f"{group} ({count})" if len(curves) > most else group
            series = [*base, *curves[start : start + most]]
            figures.append(Curves(f"{title}: {heading}", series, x, title, log, limit))
    return figures


def score_against_compute(sweep: SweepResult, findings: TestFindings) -> Scatter | None:
    """BLEU against training FLOPs; None unless the variants differ in these."""
    compared = findings.by_metric.get(BLEU.key)
    points: dict[str, list[tuple[float, float]]] = {}
    for variant in sweep.variants if compared else ():
        cost, score = variant.mean("training_flops"), compared.mean(variant.name) if compared else None
        if cost and score is not None:
            group = sweep.baseline if variant.name == sweep.baseline else variant.group or "others"
            points.setdefault(group, []).append((cost, score))
    costs = [cost for same in points.values() for cost, _ in same]
    if not costs or max(costs) <= SAME_COST * min(costs):
        return None
    return Scatter("BLEU against training FLOPs", points, "training FLOPs", "BLEU")


# How it is drawn


def _draw_forest(plot: Forest) -> Figure:
    """Differences with their intervals, one below the other; a hollow diamond is the published difference."""
    look: dict[str, Any]
    names, rows = [_wrapped(name) for name in plot.differences], [*plot.differences.values()]
    figure = plain_figure(WIDTH, AROUND + (LINE_HEIGHT * _lines(names) + BETWEEN_ROWS) * len(rows))
    axes = figure.subplots()
    axes.axvline(0, color=SOFT, linewidth=0.8, linestyle=(0, (3, 3)))
    left, right = reach(rows, plot.published.values())
    for y, row in enumerate(rows):
        colour, shape, label = MARKS[plot.metric.mark(row)]
        look = {"color": colour, "markersize": 3.5, "linewidth": 1, "label": label}
        axes.errorbar([row.value], [y], xerr=[[row.value - row.low], [row.high - row.value]], fmt=shape, **look)
        # Arrowheads where an interval goes on beyond the axes.
        for is_beyond, edge, arrow in ((row.low < left, left, "<"), (row.high > right, right, ">")):
            if is_beyond:
                axes.plot(edge, y, arrow, color=colour, markersize=3, clip_on=False)
    if plot.published:
        places = [[*plot.differences].index(name) for name in plot.published]
        look = {"color": INK, "markerfacecolor": "white", "markersize": 3, "markeredgewidth": 0.7}
        axes.plot([*plot.published.values()], places, "D", label="published", **look)
    axes.set(xlim=(left, right), ylim=(len(rows) - 0.5, -0.5))
    ticks = forest_ticks(left, right, plot.metric is PERPLEXITY)
    axes.set_xticks([*ticks], [*ticks.values()])
    axes.set_yticks(range(len(rows)), names)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    _legend(figure, axes, literal(plot.x))  # the label of the x axis: as wide as the figure, which the axes are not
    return figure


def reach(rows: Sequence[Difference], published: Iterable[float] = ()) -> tuple[float, float]:
    """The ends of the x axis: one wide interval must not squeeze all others."""
    ends = sorted(max(abs(row.low), abs(row.high)) for row in rows)
    most = max(2 * ends[len(ends) // 2], 1.1 * max(abs(row.value) for row in rows))
    values = [value for row in rows for value in (row.low, row.high)] + [*published]
    shown = [0.0, *(min(max(value, -most), most) for value in values)]
    margin = 0.05 * (max(shown) - min(shown)) or 0.5
    return min(shown) - margin, max(shown) + margin


def forest_ticks(left: float, right: float, is_log: bool) -> dict[float, str]:
    """The places of the ticks and their labels; logarithms of ratios have ticks at round ratios, in percent."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    if not is_log:
        ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(left, right)
        return {float(tick): tick_text(tick) for tick in ticks if left <= tick <= right}
    low, high = (math.exp(min(max(end, -LARGEST_EXPONENT), LARGEST_EXPONENT)) for end in (left, right))
    locator = LogLocator(numticks=6) if high / low > 4 else MaxNLocator(8, steps=[1, 2, 5, 10])
    ratios = [float(ratio) for ratio in locator.tick_values(low, high) if low <= ratio <= high]
    return {math.log(ratio): tick_text(percents_of(math.log(ratio))) for ratio in ratios}


def tick_text(value: float) -> str:
    return count_text(value, ".4g", space="").replace("-", "−") if abs(value) > 1e-9 else "0"


def _draw_curves(plot: Curves) -> Figure:
    """Curves with their bands; colours repeat with other dashes."""
    names = [_wrapped(curve.name) for curve in plot.series]
    has_bands = any(curve.low for curve in plot.series)
    figure, axes = _plane(plot.x, plot.y, [*names, *([BAND] if has_bands else [])])
    for number_, curve in enumerate(plot.series):
        colour = INK if curve.is_baseline else COLOURS[number_ % len(COLOURS)]
        dashes, width = ((), 1.4) if curve.is_baseline else (DASHES[number_ % len(DASHES)], 1)
        axes.plot(curve.x, curve.y, color=colour, linestyle=(0, dashes), linewidth=width, label=names[number_])
        if curve.low:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.13, linewidth=0)
    if has_bands:
        axes.fill_between([], [], color=SOFT, alpha=0.26, linewidth=0, label=BAND)
    if plot.log:
        _log_scale(axes)
    if plot.limit is not None:
        axes.axvline(plot.limit, color=SOFT, linewidth=0.8, linestyle=(0, (5, 4)))
    _legend(figure, axes)
    return figure


def _log_scale(axes: Axes) -> None:
    """A logarithmic y axis with readable ticks; a linear one where the values are nearly equal."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axes.dataLim.intervaly
    if low > 0 and high / low >= 1.5:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 50 else (1,)))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")


def _draw_scatter(plot: Scatter) -> Figure:
    names = [_wrapped(name) for name in plot.points]
    figure, axes = _plane(plot.x, plot.y, names)
    for number_, (name, points) in enumerate(zip(names, plot.points.values(), strict=True)):
        x, y = zip(*points, strict=True)
        axes.plot(x, y, "o", markersize=3.5, color=COLOURS[number_ % len(COLOURS)], label=name)
    axes.set_xscale("log")
    _legend(figure, axes)
    return figure


def _plane(x: str, y: str, names: Sequence[str]) -> tuple[Figure, Axes]:
    """Axes with room for a legend below them."""
    figure = plain_figure(WIDTH, 2.1 + 0.13 * _lines(names) * -(-len(names) // _columns(names)))
    axes = figure.subplots()
    axes.set(xlabel=literal(x), ylabel=literal(y))
    axes.grid(color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _legend(figure: Figure, axes: Axes, title: str = "") -> None:
    """Below the axes, where it covers nothing."""
    by_label = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # each once
    labels, handles = [*by_label], [*by_label.values()]
    if handles:
        look: dict[str, Any] = {"frameon": False, "handletextpad": 0.5, "columnspacing": 1}
        look |= {"title": title, "title_fontsize": STYLE["axes.labelsize"]} if title else {}
        figure.legend(handles, labels, loc="outside lower center", ncols=_columns(labels), **look)


def _wrapped(name: str) -> str:
    """A name on as many lines as there is room for."""
    return literal(textwrap.fill(visible(name), NAME_WIDTH, max_lines=NAME_LINES, placeholder="…"))


def _lines(names: Sequence[str]) -> int:
    return max((name.count("\n") + 1 for name in names), default=1)


def _columns(names: Sequence[str]) -> int:
    """Of a legend: wrapped names need the whole width."""
    return 2 if _lines(names) == 1 else 1
