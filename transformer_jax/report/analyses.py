"""The results of a sweep's analyses: tables, averaged over seeds, and the first seed's plots."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from transformer_jax.report.document import Block, Cell, Column, Figure, Figures, Folded, Heading, Row, Table, Text
from transformer_jax.report.figures import Curve, Curves, curves
from transformer_jax.report.results import MEDIA, SweepResult, VariantResult, json_object, listed, number

MOST_ROWS = 200
# Tables with at most this many rows are joined into one, so that variants can be compared.
FEW_ROWS = 8
MOST_POINTS = 200
# Pictures up to these sizes, each and all together, are included in the page.
PICTURE_BYTES, ALL_PICTURES_BYTES = 300_000, 1_200_000


class Analysis(NamedTuple):
    """One analysis of one variant."""

    variant: str
    name: str
    title: str
    text: str
    seeds: int
    tables: Sequence[Table]
    plots: Sequence[Figure]


def analyses(sweep: SweepResult) -> list[Analysis]:
    """Every analysis of every variant, ordered by the name of the analysis."""
    found = []
    for name in dict.fromkeys(name for run in sweep.runs if run.finished for name in run.analyses):
        for variant in sweep.variants:
            contents = [run.analyses[name] for run in variant.finished if name in run.analyses]
            if contents:
                found.append(_analysis(variant, name, contents))
    return found


def blocks(found: Sequence[Analysis]) -> list[Block]:
    """Of each analysis the tables that compare variants, and, folded, everything about each variant."""
    by_name: dict[str, list[Analysis]] = {}
    for analysis in found:
        by_name.setdefault(analysis.name, []).append(analysis)
    result: list[Block] = []
    for same in by_name.values():
        joined, longer = _joined(same)
        result += [Heading(same[0].title), Text(same[0].text), *joined]
        if longer:
            result.append(Text(f"Longer tables, one per variant, are in index.html: {', '.join(longer)}."))
        for analysis in same:
            about = f"Numbers in tables are means over {analysis.seeds} seeds; plots are of the first."
            note = [Text(about)] if analysis.seeds > 1 else []
            result.append(Folded(analysis.variant, [Figures(analysis.plots), *note, *analysis.tables]))
    return result


def _joined(same: Sequence[Analysis]) -> tuple[list[Table], list[str]]:
    """The short tables of all variants as one, and the titles of the longer ones."""
    tables, longer = [], []
    for index, first in enumerate(same[0].tables):
        alike = [(a.variant, a.tables[index]) for a in same if index < len(a.tables)]
        alike = [(name, t) for name, t in alike if (t.title, t.columns) == (first.title, first.columns)]
        if max(len(table.rows) for _, table in alike) <= FEW_ROWS:
            rows = [Row(name, [Cell(row.name), *row.cells]) for name, table in alike for row in table.rows]
            tables.append(Table([Column(first.names), *first.columns], rows, title=first.title))
        else:
            longer.append(first.title)
    return tables, longer


def _analysis(variant: VariantResult, name: str, contents: Sequence[Mapping[str, Any]]) -> Analysis:
    first = contents[0]
    by_seed = [_dicts(content.get("tables")) for content in contents]
    tables = [_averaged([tables[i] for tables in by_seed if i < len(tables)]) for i in range(len(by_seed[0]))]
    plots = [plot for item in _dicts(first.get("plots")) if (plot := _plot(item)) is not None]
    title, text = str(first.get("title", name)), str(first.get("text", ""))
    return Analysis(variant.name, name, title, text, len(contents), tables, plots)


def _dicts(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in listed(value) if isinstance(item, dict)]


def _averaged(tables: Sequence[Mapping[str, Any]]) -> Table:
    """Cells that are numbers in the tables of all seeds become their mean; others are the first seed's."""
    by_seed = [[row for row in listed(table.get("rows")) if isinstance(row, list)] for table in tables]
    alike = [rows for rows in by_seed if [*map(len, rows)] == [*map(len, by_seed[0])]]
    lines = [[str(column) for column in listed(tables[0].get("columns"))]]
    for same_rows in list(zip(*alike, strict=True))[:MOST_ROWS]:
        lines.append([_mean(cells) for cells in zip(*same_rows, strict=True)])
    width = max(1, *map(len, lines))  # rows may differ in length
    (names, *titles), *lines = [[*line, *[""] * (width - len(line))] for line in lines]
    rows = [Row(name, [Cell(text, text) for text in texts]) for name, *texts in lines]
    return Table([Column(title) for title in titles], rows, names, str(tables[0].get("title", "")))


def _mean(cells: Sequence[Any]) -> str:
    numbers = [value for cell in cells if (value := number(cell)) is not None]
    is_count = all(isinstance(cell, int) for cell in cells) and len(set(numbers)) == 1
    return str(cells[0]) if len(numbers) < len(cells) or is_count else f"{np.mean(numbers):.4g}"


def _plot(plot: Mapping[str, Any]) -> Figure | None:
    found = []
    for name, points in json_object(plot.get("series")).items():
        pairs = [tuple(map(number, point)) for point in listed(points) if isinstance(point, list) and len(point) == 2]
        kept = [(x, y) for x, y in pairs if x is not None and y is not None]
        if kept := kept[:: max(1, -(-len(kept) // MOST_POINTS))]:
            found.append(Curve(str(name), [x for x, _ in kept], [y for _, y in kept]))
    title, x, y = (str(plot.get(key, "")) for key in ("title", "x", "y"))
    return curves(Curves(title, found, x, y)) if found else None


def pictures(sweep: SweepResult) -> tuple[list[Figure], int]:
    """The pictures of each variant's first finished seed, and how many are too large for a page."""
    found, left_out, room = [], 0, ALL_PICTURES_BYTES
    for variant in sweep.variants:
        for file in variant.finished[0].pictures if variant.finished else ():
            size = file.stat().st_size
            if size > min(PICTURE_BYTES, room):
                left_out += 1
                continue
            room -= size
            address = f"data:{MEDIA[file.suffix]};base64,{base64.b64encode(file.read_bytes()).decode()}"
            image = Markup('<img src="{}" alt="{}" loading="lazy">').format(address, file.stem)
            found.append(Figure(f"{variant.name}: {file.stem}", image))
    return found, left_out
