"""The results of a sweep's analyses: tables, averaged over seeds, and the first seed's plots."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.report.figures import Curve, Curves
from transformer_jax.report.results import SweepResult, noting, number, parsing
from transformer_jax.report.table import Cell, Column, Row, Table

MOST_ROWS = 200
MOST_POINTS = 200


class Analysis(NamedTuple):
    """One analysis of all variants."""

    title: str
    text: str
    tables: Sequence[Table]  # with the rows of all variants
    plots: Mapping[str, Sequence[Curves]]  # by variant


def analyses(sweep: SweepResult) -> tuple[list[Analysis], list[str]]:
    """Every analysis of every variant, and a line for each that cannot be understood."""
    found: list[Analysis] = []
    problems: list[str] = []
    for name in dict.fromkeys(name for run in sweep.runs if run.finished for name in run.analyses):
        title, text = name, ""
        lines: dict[tuple[str, ...], list[list[str]]] = {}  # by the title and columns of a table, the variant first
        plots: dict[str, list[Curves]] = {}
        for variant in sweep.variants:
            runs = [run for run in variant.finished if name in run.analyses]
            if not runs:
                continue
            first, by_seed = runs[0].analyses[name], [run.analyses[name].get("tables", ()) for run in runs]
            with noting(problems), parsing(runs[0].path / "analysis" / f"{name}.json"):
                averaged = [_averaged(same) for same in zip(*by_seed, strict=True)]
                plots[variant.name] = [_plot(plot) for plot in first.get("plots", ()) if plot["series"]]
                for heads, rows in averaged:
                    lines.setdefault(heads, []).extend([variant.name, *row] for row in rows)
                title, text = str(first.get("title", name)), str(first.get("text", ""))
        if plots:
            found.append(Analysis(title, text, [_table(heads, rows) for heads, rows in lines.items()], plots))
    return found, problems


def _averaged(tables: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], list[list[str]]]:
    """The title and columns, and rows in which numbers are means over seeds; other cells are the first seed's."""
    columns, count = [*map(str, tables[0]["columns"])], len(tables[0]["rows"])
    alike = [table["rows"] for table in tables if len(table["rows"]) == count]
    rows = [
        [_mean(cells) for _, cells in zip(columns, zip(*of_seeds, strict=True), strict=True)]
        for of_seeds in zip(*alike, strict=True)
    ]
    return (str(tables[0].get("title", "")), *columns), rows[:MOST_ROWS]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    title, *columns = heads
    cells = [Column(column, [Cell(row[at], row[at]) for row in rows]) for at, column in enumerate(columns, start=1)]
    return Table([Row(row[0]) for row in rows], cells, title=title)


def _mean(cells: Sequence[Any]) -> str:
    numbers = [value for cell in cells if (value := number(cell)) is not None]
    is_count = all(isinstance(cell, int) for cell in cells) and len(set(numbers)) == 1
    return str(cells[0]) if len(numbers) < len(cells) or is_count else f"{np.mean(numbers):.4g}"


def _plot(plot: Mapping[str, Any]) -> Curves:
    curves = []
    for name, points in plot["series"].items():
        pairs = [(number(x), number(y)) for x, y in points]
        known = [(x, y) for x, y in pairs if x is not None and y is not None]
        shown = known[:: max(1, -(-len(known) // MOST_POINTS))]
        curves.append(Curve(str(name), [x for x, _ in shown], [y for _, y in shown]))
    title, x, y = (str(plot.get(key, "")) for key in ("title", "x", "y"))
    return Curves(title, curves, x, y)
