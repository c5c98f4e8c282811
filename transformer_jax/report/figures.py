"""The figures of a report as SVG: they take their colours from the page and show values when pointed at."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self
from xml.etree import ElementTree

from markupsafe import Markup

from transformer_jax.pictures.plots import COLOURS
from transformer_jax.report.document import Figure, Key
from transformer_jax.report.metrics import LARGEST_EXPONENT, percents_of
from transformer_jax.runs.metrics import count_text

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 10, 42
# Of the forest plot: a row has its name above its interval. More letters do not fit on a narrow screen.
SIDE, ROW = 10, 36
LONGEST_NAME = 48
# Of curves, repeated with their colours: the lengths of lines and gaps.
DASHES: tuple[tuple[float, ...], ...] = ((), (7, 3), (7, 3, 2, 3), (2, 2.5))
BAND = "lowest to highest seed"
# Ratios on one axis beyond this factor have ticks by decades.
WIDE = 4.0
INK = "var(--ink)"
# Of the forest plot: what shapes and colours mean. The last one is a point without a mark.
LEGEND = {
    "better": ("▲ significantly better", "var(--better)"),
    "worse": ("▼ significantly worse", "var(--worse)"),
    "": ("○ not significant", "var(--soft)"),
    "published": ("◇ published", INK),
}


class Curve(NamedTuple):
    """A curve, and the band around it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    is_baseline: bool = False


class Interval(NamedTuple):
    """A row of a forest plot."""

    name: str
    value: float
    low: float
    high: float
    tip: str
    mark: str = ""  # "better", "worse"
    published: float | None = None


class Forest(NamedTuple):
    """Differences from the baseline with their intervals; those of logarithms have an axis in percent."""

    title: str
    rows: Sequence[Interval]
    x: str
    is_log: bool = False

    def ticks(self, axis: "Axis") -> dict[float, str]:
        """The places of the ticks, and their labels."""
        if not self.is_log:
            return {tick: tick_text(tick) for tick in axis.ticks()}
        low, high = (math.exp(min(max(end, -LARGEST_EXPONENT), LARGEST_EXPONENT)) for end in (axis.low, axis.high))
        # Ratios of the perplexities: evenly spaced while they are of one size, by decades beyond.
        is_wide = high / low > WIDE
        ratios = Axis(math.log10(low), math.log10(high), 0, 1, log=True) if is_wide else Axis(low, high, 0, 1)
        return {math.log(ratio): tick_text(percents_of(math.log(ratio))) for ratio in ratios.ticks(5 if is_wide else 8)}


class Curves(NamedTuple):
    """Curves over x, with a logarithmic y axis if `log`, and a dashed line at `limit` on the x axis."""

    title: str
    series: Sequence[Curve]
    x: str
    y: str
    log: bool = False
    limit: float | None = None


class Axis(NamedTuple):
    """A map from values, or their logarithms, to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float, log: bool = False) -> Self:
        """An axis with room for all values and a margin; linear where the values are nearly equal."""
        inside = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [1.0]
        low, high = min(inside), max(inside)
        if log := log and high / low >= 1.5:
            low, high = math.log10(low), math.log10(high)
        margin = 0.05 * (high - low) or 0.5 * abs(high) or 0.5
        return cls(low - margin, high + margin, start, end, log)

    def at(self, value: float) -> float:
        place = math.log10(max(value, 1e-300)) if self.log else value
        share = (place - self.low) / (self.high - self.low)
        return self.start + min(max(share, -1.0), 2.0) * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        if not self.log:
            rough = (self.high - self.low) / count
            size = 10 ** math.floor(math.log10(rough))
            step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
            return [step * number for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        decades = [10.0**decade for decade in range(math.floor(self.low), math.ceil(self.high) + 1)]
        ticks: list[float] = []
        for factors in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
            ticks = [f * d for d in decades for f in factors if self.low <= math.log10(f * d) <= self.high]
            if len(ticks) >= 3:
                break
        return ticks[:: max(1, math.ceil(len(ticks) / (2 * count)))]


class Drawing:
    """An SVG that is being drawn; ElementTree escapes all text."""

    def __init__(self, height: float, label: str):
        box = {"viewBox": f"0 0 {WIDTH} {height}", "role": "img", "aria-label": label}
        self.root = ElementTree.Element("svg", box)

    def add(self, tag: str, text: str = "", inside: ElementTree.Element | None = None, **attributes: object) -> None:
        """An element; class_ becomes class, text_anchor text-anchor, and a float is rounded to a tenth of a pixel."""
        shown = {
            name.rstrip("_").replace("_", "-"): f"{value:.1f}" if isinstance(value, float) else str(value)
            for name, value in attributes.items()
        }
        ElementTree.SubElement(self.root if inside is None else inside, tag, shown).text = text or None

    def markup(self) -> Markup:
        return Markup(ElementTree.tostring(self.root, encoding="unicode"))

    def x_axis(self, axis: Axis, ticks: Mapping[float, str], title: str, bottom: float) -> None:
        for tick, text in ticks.items():
            x = axis.at(tick)
            self.add("line", class_="grid", x1=x, x2=x, y1=TOP, y2=bottom)
            self.add("text", text, class_="tick", x=x, y=bottom + 15, text_anchor="middle")
        middle = (axis.start + axis.end) / 2
        self.add("text", title, class_="title", x=middle, y=bottom + 36, text_anchor="middle")

    def y_axis(self, axis: Axis, title: str) -> None:
        for tick in axis.ticks():
            y = axis.at(tick)
            self.add("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y)
            self.add("text", tick_text(tick), class_="tick", x=LEFT - 6, y=y + 4, text_anchor="end")
        turn = f"translate(12 {(axis.start + axis.end) / 2}) rotate(-90)"
        self.add("text", title, class_="title", transform=turn, text_anchor="middle")


def curves(plot: Curves) -> Figure:
    marked, series, log = [] if plot.limit is None else [plot.limit], plot.series, plot.log
    across = Axis.around([*marked, *(value for curve in series for value in curve.x)], LEFT, WIDTH - RIGHT)
    ys = [value for curve in series for values in (curve.y, curve.low, curve.high) for value in values]
    up = Axis.around(ys, HEIGHT - BOTTOM, TOP, log)
    drawing = _plane(across, up, plot.x, plot.y)
    for value in marked:
        drawing.add("line", class_="usual", x1=across.at(value), x2=across.at(value), y1=TOP, y2=HEIGHT - BOTTOM)
    legend = []
    for number, curve in enumerate(series):
        colour = INK if curve.is_baseline else COLOURS[number % len(COLOURS)]
        dashes = "" if curve.is_baseline else " ".join(map(str, DASHES[number % len(DASHES)]))
        legend.append(Key(curve.name, colour, dashes))
        if curve.low:
            edge = [*zip(curve.x, curve.high, strict=True), *reversed(list(zip(curve.x, curve.low, strict=True)))]
            drawing.add("polygon", class_="band", fill=colour, points=_path(edge, across, up))
        drawing.add(
            "polyline",
            class_="line strong" if curve.is_baseline else "line",
            stroke=colour,
            stroke_dasharray=dashes or "none",
            points=_path(list(zip(curve.x, curve.y, strict=True)), across, up),
            data_tip=f"{curve.name}: {curve.y[-1]:.4g} at {tick_text(curve.x[-1])}",
        )
    if any(curve.low for curve in series):
        legend.append(Key(BAND, "color-mix(in srgb, var(--soft) 35%, transparent)"))
    return Figure(plot.title, drawing.markup(), legend)


def forest(plot: Forest) -> Figure:
    """Differences with their intervals, one below the other; a hollow diamond is the published difference."""
    rows = plot.rows
    across = Axis.around([0.0, *reach(rows)], SIDE, WIDTH - RIGHT)
    bottom = TOP + ROW * len(rows)
    drawing = Drawing(bottom + BOTTOM, f"{plot.x}: {len(rows)} differences with their intervals")
    drawing.x_axis(across, plot.ticks(across), plot.x, bottom)
    drawing.add("line", class_="zero", x1=across.at(0), x2=across.at(0), y1=TOP, y2=bottom)
    for number, row in enumerate(rows):
        top = TOP + ROW * number
        y = top + 0.77 * ROW
        left, right = (min(max(across.at(value), SIDE), WIDTH - 2.0) for value in (row.low, row.high))
        group = ElementTree.SubElement(
            drawing.root, "g", {"class": f"row {row.mark}", "data-tip": f"{row.name}: {row.tip}"}
        )
        drawing.add("rect", inside=group, class_="hit", x=0, y=top, width=WIDTH, height=ROW)
        drawing.add("text", shortened(row.name), inside=group, class_="name", x=SIDE, y=top + 0.4 * ROW)
        drawing.add("line", inside=group, class_="interval", x1=left, x2=right, y1=y, y2=y)
        for is_beyond, edge, back in ((across.at(row.low) < left, left, 6), (across.at(row.high) > right, right, -6)):
            if is_beyond:  # an arrowhead, as the interval goes on
                drawing.add("path", inside=group, class_="value", d=f"M{edge:.1f} {y}l{back} -4v8z")
        if row.published is not None and SIDE <= (place := across.at(row.published)) <= WIDTH:
            drawing.add("path", inside=group, class_="published", d=f"M{place:.1f} {y - 5}l5 5l-5 5l-5 -5z")
        x = across.at(row.value)
        if row.mark:
            tip = -5 if row.mark == "better" else 5
            drawing.add("path", inside=group, class_="value", d=f"M{x:.1f} {y + tip}l5 {-1.8 * tip}h-10z")
        else:
            drawing.add("circle", inside=group, class_="value hollow", cx=x, cy=y, r=3.5)
    shown = {row.mark for row in rows} | {"published" for row in rows if row.published is not None}
    return Figure(plot.title, drawing.markup(), [Key(*entry) for mark, entry in LEGEND.items() if mark in shown])


def shortened(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def reach(rows: Sequence[Interval]) -> list[float]:
    """The values that the axis makes room for: one wide interval must not squeeze all others."""
    ends = sorted(max(abs(row.low), abs(row.high)) for row in rows)
    reach = max(2 * ends[len(ends) // 2], 1.1 * max(abs(row.value) for row in rows))
    values = [value for row in rows for value in (row.low, row.high, row.value, row.published or 0.0)]
    return [min(max(value, -reach), reach) for value in values]


def _plane(across: Axis, up: Axis, x: str, y: str) -> Drawing:
    drawing = Drawing(HEIGHT, f"{y} over {x}")
    drawing.x_axis(across, {tick: tick_text(tick) for tick in across.ticks()}, x, HEIGHT - BOTTOM)
    drawing.y_axis(up, y)
    return drawing


def _path(points: Sequence[tuple[float, float]], across: Axis, up: Axis) -> str:
    return " ".join(f"{across.at(a):.1f},{up.at(b):.1f}" for a, b in points if math.isfinite(a) and math.isfinite(b))


def tick_text(value: float) -> str:
    return count_text(value, ".4g", space="").replace("-", "−") if abs(value) > 1e-9 else "0"
