"""The figures of a report for a paper: SVG or PDF, one column wide, their fonts embedded. Drawn by matplotlib."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.pictures.plots import COLOURS, INK, literal, plain_figure
from transformer_jax.report.figures import BAND, DASHES, Axis, Curves, Forest, reach

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches: one column of a page with two, that of ACL conferences (7.7 cm), the narrowest of the usual ones.
WIDTH = 3.03
LINE_HEIGHT, BETWEEN_ROWS, AROUND = 0.11, 0.045, 0.75
NAME_WIDTH, NAME_LINES = 20, 2
SOFT, LINE = "#66737f", "#e4e7eb"
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


def drawn(plot: Forest | Curves, form: str, creator: str) -> bytes:
    """A figure as a file of this format, "svg" or "pdf"; `creator` is in its metadata."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure = figure_of(plot)
        metadata = {"Creator": creator, "Date" if form == "svg" else "CreationDate": None}
        file = io.BytesIO()
        figure.savefig(file, format=form, metadata=metadata)
    return file.getvalue()


def figure_of(plot: Forest | Curves) -> Figure:
    return _forest(plot) if isinstance(plot, Forest) else _curves(plot)


def _forest(plot: Forest) -> Figure:
    """Differences with their intervals, one below the other; a hollow diamond is the published difference."""
    rows = plot.rows
    look: dict[str, Any]
    names = [_wrapped(row.name) for row in rows]
    figure = plain_figure(WIDTH, AROUND + (LINE_HEIGHT * _lines(names) + BETWEEN_ROWS) * len(rows))
    axes = figure.subplots()
    axes.axvline(0, color=SOFT, linewidth=0.8, linestyle=(0, (3, 3)))
    for mark, (colour, shape, label) in MARKS.items():
        if found := {y: row for y, row in enumerate(rows) if row.mark == mark}:
            x, low, high = zip(
                *((row.value, row.value - row.low, row.high - row.value) for row in found.values()), strict=True
            )
            look = {"color": colour, "markersize": 3.5, "linewidth": 1, "label": label}
            axes.errorbar(x, list(found), xerr=[low, high], fmt=shape, **look)
    if published := {y: row.published for y, row in enumerate(rows) if row.published is not None}:
        look = {"color": INK, "markerfacecolor": "white", "markersize": 3, "markeredgewidth": 0.7}
        axes.plot(list(published.values()), list(published), "D", label="published", **look)
    axis = Axis.around([0.0, *reach(rows)], 0, 1)
    for y, row in enumerate(rows):  # arrowheads where an interval goes on beyond the axes
        for is_beyond, edge, shape in ((row.low < axis.low, axis.low, "<"), (row.high > axis.high, axis.high, ">")):
            if is_beyond:
                axes.plot(edge, y, shape, color=MARKS[row.mark][0], markersize=3, clip_on=False)
    axes.set(xlim=(axis.low, axis.high), ylim=(len(rows) - 0.5, -0.5))
    ticks = plot.ticks(axis)
    axes.set_xticks([*ticks], [*ticks.values()])
    axes.set_yticks(range(len(rows)), names)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    _legend(figure, axes, literal(plot.x))  # the label of the x axis: as wide as the figure, which the axes are not
    return figure


def _curves(plot: Curves) -> Figure:
    """Curves with their bands; colours repeat with other dashes."""
    names = [_wrapped(curve.name) for curve in plot.series]
    has_bands = any(curve.low for curve in plot.series)
    figure = plain_figure(WIDTH, 2.1 + 0.13 * _lines(names) * -(-(len(names) + has_bands) // _columns(names)))
    axes = figure.subplots()
    for number, curve in enumerate(plot.series):
        colour = INK if curve.is_baseline else COLOURS[number % len(COLOURS)]
        dashes, width = ((), 1.4) if curve.is_baseline else (DASHES[number % len(DASHES)], 1)
        style = (0, tuple(length / 2 for length in dashes))
        axes.plot(curve.x, curve.y, color=colour, linestyle=style, linewidth=width, label=names[number])
        if curve.low:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.13, linewidth=0)
    if has_bands:
        axes.fill_between([], [], color=SOFT, alpha=0.26, linewidth=0, label=BAND)
    if plot.log:
        axes.set_yscale("log")
        ticks = Axis.around([*axes.dataLim.intervaly], 0, 1, log=True).ticks()
        axes.set_yticks(ticks, [f"{value:,.10g}" for value in ticks])
        axes.minorticks_off()
    if plot.limit is not None:
        axes.axvline(plot.limit, color=SOFT, linewidth=0.8, linestyle=(0, (5, 4)))
    axes.set(xlabel=literal(plot.x), ylabel=literal(plot.y))
    axes.grid(color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    _legend(figure, axes)
    return figure


def _legend(figure: Figure, axes: Axes, title: str = "") -> None:
    """Below the axes, where it covers nothing."""
    handles: Sequence[Any]
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        look: dict[str, Any] = {"frameon": False, "handletextpad": 0.5, "columnspacing": 1}
        look |= {"title": title, "title_fontsize": STYLE["axes.labelsize"]} if title else {}
        figure.legend(handles, labels, loc="outside lower center", ncols=_columns(labels), **look)


def _wrapped(name: str) -> str:
    """A name on as many lines as there is room for."""
    return literal(textwrap.fill(name, NAME_WIDTH, max_lines=NAME_LINES, placeholder="…"))


def _lines(names: Sequence[str]) -> int:
    return max((name.count("\n") + 1 for name in names), default=1)


def _columns(names: Sequence[str]) -> int:
    """Of a legend: wrapped names need the whole width."""
    return 2 if _lines(names) == 1 else 1
