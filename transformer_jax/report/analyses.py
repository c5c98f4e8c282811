"""The results of a sweep's analyses: tables, averaged over seeds, and the first seed's plots."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.report.figures import Curve, Curves
from transformer_jax.report.results import SweepResult, noting, number, parsing
from transformer_jax.report.table import Cell, Column, Row, Table

MOST_ROWS = 200
MOST_POINTS = 200


@dataclasses.dataclass(frozen=True)
class Analysis:
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
        tables: dict[str, list[Table]] = {}
        plots: dict[str, list[Curves]] = {}
        for variant in sweep.variants:
            runs = [run for run in variant.finished if name in run.analyses]
            if runs:
                first, by_seed = runs[0].analyses[name], [run.analyses[name].get("tables", ()) for run in runs]
                with noting(problems), parsing(runs[0].path / "analysis" / f"{name}.json"):
                    averaged = [_averaged(same) for same in zip(*by_seed, strict=True)]
                    plots[variant.name] = [_plot(plot) for plot in first.get("plots", ()) if plot["series"]]
                    tables[variant.name] = averaged
                    title, text = str(first.get("title", name)), str(first.get("text", ""))
        if tables:
            found.append(Analysis(title, text, _joined(tables), plots))
    return found, problems


def _joined(by_variant: Mapping[str, Sequence[Table]]) -> list[Table]:
    """Tables with the same title and columns as one, in which the variants are the rows."""
    joined: dict[tuple[str, ...], Table] = {}
    for name, tables in by_variant.items():
        for table in tables:
            rows = [Row(name) for _ in table.rows]
            columns = [Column(table.names, [Cell(row.name) for row in table.rows]), *table.columns]
            key = (table.title, *(column.title for column in columns))
            if above := joined.get(key):
                rows = [*above.rows, *rows]
                both = zip(above.columns, columns, strict=True)
                columns = [Column(one.title, [*one.cells, *other.cells]) for one, other in both]
            joined[key] = Table(rows, columns, title=table.title)
    return list(joined.values())


def _averaged(tables: Sequence[Mapping[str, Any]]) -> Table:
    """Cells that are numbers in the tables of all seeds become their mean; others are the first seed's."""
    shape = [len(row) for row in tables[0]["rows"]]
    alike = [table["rows"] for table in tables if [len(row) for row in table["rows"]] == shape]
    lines = [[_mean(cells) for cells in zip(*rows, strict=True)] for rows in zip(*alike, strict=True)][:MOST_ROWS]
    names, *titles = map(str, tables[0]["columns"])
    columns = [Column(title, [Cell(line[at], line[at]) for line in lines]) for at, title in enumerate(titles, start=1)]
    return Table([Row(line[0]) for line in lines], columns, names, str(tables[0].get("title", "")))


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
