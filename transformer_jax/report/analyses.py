"""What a sweep's own analyses found in each run: tables, averaged over seeds, and the first seed's plots."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.report.plots import Line, lines
from transformer_jax.report.results import SweepResult, VariantResult, number

MOST_ROWS = 200
# Tables of so few rows are put together, so that variants can be compared.
FEW_ROWS = 8
POINTS = 200
# A page takes in pictures up to these sizes, each and all together.
PICTURE_BYTES, ALL_PICTURES_BYTES = 300_000, 1_200_000
MEDIA = {".png": "image/png", ".svg": "image/svg+xml"}


class AnalysisTable(NamedTuple):
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class Plot(NamedTuple):
    title: str
    svg: str


class Analysis(NamedTuple):
    """One analysis of one variant."""

    variant: str
    name: str
    title: str
    text: str
    seeds: int
    tables: Sequence[AnalysisTable]
    plots: Sequence[Plot]


class Overview(NamedTuple):
    """One analysis of all variants: its short tables with a column that names the variant."""

    name: str
    title: str
    text: str
    tables: Sequence[AnalysisTable]
    longer: Sequence[str]  # the titles of those that have too many rows for that


class Picture(NamedTuple):
    variant: str
    name: str
    address: str  # the whole picture, as a data: address


def analyses(sweep: SweepResult) -> list[Analysis]:
    """Every analysis of every variant that has one, by the name of the analysis."""
    found = []
    for name in dict.fromkeys(name for run in sweep.runs if run.finished for name in run.analyses):
        for variant in sweep.variants:
            contents = [run.analyses[name] for run in variant.finished if name in run.analyses]
            if contents:
                found.append(_analysis(variant, name, contents))
    return found


def overviews(found: Sequence[Analysis]) -> list[Overview]:
    """By the name of the analysis."""
    by_name: dict[str, list[Analysis]] = {}
    for analysis in found:
        by_name.setdefault(analysis.name, []).append(analysis)
    return [Overview(name, same[0].title, same[0].text, *_together(same)) for name, same in by_name.items()]


def _together(same: Sequence[Analysis]) -> tuple[list[AnalysisTable], list[str]]:
    tables, longer = [], []
    for place, first in enumerate(same[0].tables):
        kind = (first.title, list(first.columns))
        alike = [(a.variant, a.tables[place]) for a in same if place < len(a.tables)]
        alike = [(name, table) for name, table in alike if (table.title, list(table.columns)) == kind]
        if max(len(table.rows) for _, table in alike) <= FEW_ROWS:
            rows = [[name, *row] for name, table in alike for row in table.rows]
            tables.append(AnalysisTable(first.title, ["variant", *first.columns], rows))
        else:
            longer.append(first.title)
    return tables, longer


def _analysis(variant: VariantResult, name: str, contents: Sequence[Mapping[str, Any]]) -> Analysis:
    first = contents[0]
    tables = [
        _averaged([table for content in contents if (table := _item(content, "tables", number_)) is not None])
        for number_ in range(len(_items(first, "tables")))
    ]
    plots = [_plot(plot) for plot in _items(first, "plots")]
    title, text = str(first.get("title", name)), str(first.get("text", ""))
    return Analysis(variant.name, name, title, text, len(contents), tables, [plot for plot in plots if plot.svg])


def _items(content: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    items = content.get(key)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _item(content: Mapping[str, Any], key: str, place: int) -> Mapping[str, Any] | None:
    items = _items(content, key)
    return items[place] if place < len(items) else None


def _averaged(tables: Sequence[Mapping[str, Any]]) -> AnalysisTable:
    """Cells that are numbers in the tables of all seeds become their mean; others are the first seed's."""
    rows = [_rows(table) for table in tables]
    alike = [table for table in rows if [len(row) for row in table] == [len(row) for row in rows[0]]]
    averaged = []
    for i, row in enumerate(rows[0][:MOST_ROWS]):
        cells = []
        for j, cell in enumerate(row):
            values = [number(table[i][j]) for table in alike]
            numbers = [value for value in values if value is not None]
            whole = all(isinstance(table[i][j], int) for table in alike) and len(set(numbers)) == 1
            cells.append(str(cell) if len(numbers) < len(values) or whole else f"{np.mean(numbers):.4g}")
        averaged.append(cells)
    columns = tables[0].get("columns")
    title = str(tables[0].get("title", ""))
    return AnalysisTable(title, [str(column) for column in columns] if isinstance(columns, list) else [], averaged)


def _rows(table: Mapping[str, Any]) -> list[list[Any]]:
    rows = table.get("rows")
    return [row for row in rows if isinstance(row, list)] if isinstance(rows, list) else []


def _plot(plot: Mapping[str, Any]) -> Plot:
    series = plot.get("series")
    curves = []
    for name, points in series.items() if isinstance(series, dict) else ():
        pairs = [_pair(point) for point in points] if isinstance(points, list) else []
        kept = [pair for pair in pairs if pair is not None]
        kept = kept[:: max(1, -(-len(kept) // POINTS))]
        if kept:
            curves.append(Line(str(name), [x for x, _ in kept], [y for _, y in kept]))
    svg = lines(curves, str(plot.get("x", "")), str(plot.get("y", ""))) if curves else ""
    return Plot(str(plot.get("title", "")), svg)


def _pair(point: Any) -> tuple[float, float] | None:
    if not isinstance(point, list) or len(point) != 2:
        return None
    x, y = number(point[0]), number(point[1])
    return None if x is None or y is None else (x, y)


def pictures(sweep: SweepResult) -> tuple[list[Picture], int]:
    """The pictures of each variant's first finished seed, and how many were too big for a page."""
    found, left_out, room = [], 0, ALL_PICTURES_BYTES
    for variant in sweep.variants:
        for file in variant.finished[0].pictures if variant.finished else ():
            size = file.stat().st_size
            if size > min(PICTURE_BYTES, room):
                left_out += 1
                continue
            room -= size
            content = base64.b64encode(file.read_bytes()).decode()
            found.append(Picture(variant.name, file.stem, f"data:{MEDIA[file.suffix]};base64,{content}"))
    return found, left_out
