"""A report's pictures, as SVG that takes its colours from the page and tells its values when pointed at."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

from transformer_jax.pictures.plots import COLOURS

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 40
# Of the forest plot.
NAMES, ROW = 150, 22
LONGEST_NAME = 24


class Line(NamedTuple):
    """A curve and the band around it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    strong: bool = False  # what the others are compared with


class Point(NamedTuple):
    x: float
    y: float
    told: str
    colour: str
    ringed: bool = False


class Interval(NamedTuple):
    """A row of a forest plot."""

    name: str
    value: float
    low: float
    high: float
    told: str
    mark: str = ""  # "better", "worse"
    published: float | None = None


class Axis(NamedTuple):
    """Values to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float, log: bool = False) -> Axis:
        """Room for all the values and a little more."""
        inside = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [1.0]
        low, high = min(inside), max(inside)
        if log and high / low < 1.5:
            log = False
        if log:
            margin = (high / low) ** 0.05
            return cls(low / margin, high * margin, start, end, True)
        margin = 0.05 * (high - low) or 0.5 * abs(high) or 0.5
        return cls(low - margin, high + margin, start, end)

    def at(self, value: float) -> float:
        if self.log:
            share = math.log(max(value, 1e-300) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + min(max(share, -1.0), 2.0) * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        return self._log_ticks(count) if self.log else self._even_ticks(count)

    def _even_ticks(self, count: int) -> list[float]:
        rough = (self.high - self.low) / count
        size = 10 ** math.floor(math.log10(rough))
        step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
        first = math.ceil(self.low / step)
        return [step * number for number in range(first, math.floor(self.high / step) + 1)]

    def _log_ticks(self, count: int) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        choices: Sequence[Sequence[float]] = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8))
        ticks: list[float] = []
        for factors in choices:
            ticks = [f * 10.0**d for d in decades for f in factors if self.low <= f * 10.0**d <= self.high]
            if len(ticks) >= 3:
                break
        keep = max(1, math.ceil(len(ticks) / (2 * count)))
        return ticks[::keep]


def tick_text(value: float) -> str:
    """Short: 0.5, 1.2k, 30M, 1e18."""
    size = abs(value)
    if size >= 1e15:
        return f"{value:.2g}".replace("e+", "e")
    for unit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= unit:
            return f"{value / unit:.4g}{letter}"
    return f"{value:.4g}" if size > 1e-9 else "0"


def lines(series: Sequence[Line], x: str, y: str, log: bool = False) -> str:
    """Curves over steps, the strong one black."""
    xs = [value for line in series for value in line.x]
    ys = [value for line in series for values in (line.y, line.low, line.high) for value in values]
    across, up = _axes(xs, ys, log_y=log)
    parts = [_frame(across, up, x, y)]
    for number, line in enumerate(series):
        colour = "var(--ink)" if line.strong else COLOURS[number % len(COLOURS)]
        if line.low:
            edge = [(a, b) for a, b in zip(line.x, line.high, strict=True)]
            edge += [(a, b) for a, b in zip(reversed(line.x), reversed(line.low), strict=True)]
            parts.append(f'<polygon class="band" fill="{colour}" points="{_path(edge, across, up)}"/>')
        points = _path(list(zip(line.x, line.y, strict=True)), across, up)
        told = f"{line.name}: {line.y[-1]:.4g} at {tick_text(line.x[-1])}"
        look = "line strong" if line.strong else "line"
        parts.append(f'<polyline class="{look}" stroke="{colour}" points="{points}"{_tip(told)}/>')
    names = [(line.name, "var(--ink)" if line.strong else COLOURS[i % len(COLOURS)]) for i, line in enumerate(series)]
    return _svg("".join(parts), WIDTH, HEIGHT, f"{y} over {x}") + _legend(names)


def scatter(
    points: Sequence[Point],
    x: str,
    y: str,
    line: Sequence[tuple[float, float]] = (),
    names: Sequence[tuple[str, str]] = (),
) -> str:
    """A point a variant over the log of x; `line` runs through usual models; `names` are the legend, with colours."""
    across, up = _axes([p.x for p in points], [*(p.y for p in points), *(b for _, b in line)], log_x=True)
    parts = [_frame(across, up, x, y)]
    if line:
        parts.append(f'<polyline class="usual" points="{_path(line, across, up)}"/>')
    for point in points:
        place = f'cx="{across.at(point.x):.1f}" cy="{up.at(point.y):.1f}"'
        if point.ringed:
            parts.append(f'<circle class="front" {place} r="8"/>')
        parts.append(f'<circle class="dot" {place} r="5" fill="{point.colour}"{_tip(point.told)}/>')
    return _svg("".join(parts), WIDTH, HEIGHT, f"{y} over {x}") + _legend(names)


def forest(rows: Sequence[Interval], x: str) -> str:
    """Differences with their intervals, one below the other; a hollow diamond is the published figure."""
    across = Axis.around([0.0, *_shown(rows)], NAMES, WIDTH - RIGHT)
    height = TOP + ROW * len(rows) + BOTTOM
    parts = [_vertical(across, height - BOTTOM), f'<line class="zero" {_span(across.at(0), TOP, height - BOTTOM)}/>']
    for number, row in enumerate(rows):
        y = TOP + ROW * (number + 0.5)
        left, right = (min(max(across.at(value), NAMES), WIDTH - 2.0) for value in (row.low, row.high))
        tip = _tip(f"{row.name}: {row.told}")
        parts.append(f'<g class="row {row.mark}"{tip}>')
        parts.append(f'<rect class="hit" x="0" y="{y - ROW / 2}" width="{WIDTH}" height="{ROW}"/>')
        parts.append(f'<text x="{NAMES - 8}" y="{y + 4}" text-anchor="end">{html.escape(_short(row.name))}</text>')
        parts.append(f'<line class="interval" x1="{left:.1f}" x2="{right:.1f}" y1="{y}" y2="{y}"/>')
        if row.published is not None:
            place = across.at(row.published)
            if NAMES <= place <= WIDTH:
                diamond = f"M{place:.1f} {y - 5}l5 5l-5 5l-5 -5z"
                parts.append(f'<path class="published" d="{diamond}"/>')
        parts.append(f'<circle class="value" cx="{across.at(row.value):.1f}" cy="{y}" r="4"/></g>')
    parts.append(_caption(x, (NAMES + WIDTH - RIGHT) / 2, height - 6))
    return _svg("".join(parts), WIDTH, height, f"{x}: {len(rows)} differences with their intervals")


def _shown(rows: Sequence[Interval]) -> list[float]:
    """The values that want room: no interval, however wide, may make all others unreadable."""
    ends = sorted(max(abs(row.low), abs(row.high)) for row in rows)
    reach = max(2 * ends[len(ends) // 2], 1.1 * max(abs(row.value) for row in rows))
    values = [value for row in rows for value in (row.low, row.high, row.value, row.published or 0.0)]
    return [min(max(value, -reach), reach) for value in values]


def _axes(xs: Sequence[float], ys: Sequence[float], log_x: bool = False, log_y: bool = False) -> tuple[Axis, Axis]:
    return (
        Axis.around(xs, LEFT, WIDTH - RIGHT, log_x),
        Axis.around(ys, HEIGHT - BOTTOM, TOP, log_y),
    )


def _frame(across: Axis, up: Axis, x: str, y: str) -> str:
    """Grid, ticks and titles."""
    parts = [_vertical(across, HEIGHT - BOTTOM)]
    for tick in up.ticks():
        place = up.at(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{place + 4:.1f}" text-anchor="end">{tick_text(tick)}</text>'
        )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'<text class="title" transform="rotate(-90 12 {middle})" x="12" y="{middle}" text-anchor="middle">'
    parts.append(f"{turned}{html.escape(y)}</text>")
    parts.append(_caption(x, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4))
    return "".join(parts)


def _vertical(across: Axis, bottom: float) -> str:
    parts = []
    for tick in across.ticks():
        parts.append(f'<line class="grid" {_span(across.at(tick), TOP, bottom)}/>')
        text = tick_text(tick)
        parts.append(
            f'<text class="tick" x="{across.at(tick):.1f}" y="{bottom + 15}" text-anchor="middle">{text}</text>'
        )
    return "".join(parts)


def _span(x: float, top: float, bottom: float) -> str:
    return f'x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"'


def _caption(text: str, x: float, y: float) -> str:
    return f'<text class="title" x="{x}" y="{y}" text-anchor="middle">{html.escape(text)}</text>'


def _path(points: Sequence[tuple[float, float]], across: Axis, up: Axis) -> str:
    return " ".join(f"{across.at(a):.1f},{up.at(b):.1f}" for a, b in points if math.isfinite(a) and math.isfinite(b))


def _tip(text: str) -> str:
    """What the page shows when this is pointed at."""
    return f' data-tip="{html.escape(text)}"'


def _svg(inside: str, width: float, height: float, label: str) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(label)}">{inside}</svg>'


def _legend(names: Sequence[tuple[str, str]]) -> str:
    chips = "".join(f'<span><i style="background:{colour}"></i>{html.escape(name)}</span>' for name, colour in names)
    return f'<div class="legend">{chips}</div>'


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
