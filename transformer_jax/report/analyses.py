"""The results of a sweep's analyses: tables, averaged over seeds, and the first seed's plots."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.report.figures import Curve, Curves
from transformer_jax.report.results import SweepResult, VariantResult, number
from transformer_jax.report.table import Cell, Column, Row, Table

MOST_ROWS = 200
# Tables with at most this many rows are joined into one, so that variants can be compared.
FEW_ROWS = 8
MOST_POINTS = 200


@dataclasses.dataclass(frozen=True)
class VariantAnalysis:
    """One analysis of one variant."""

    variant: str
    title: str
    text: str
    seeds: int
    tables: Sequence[Table]
    plots: Sequence[Curves]


@dataclasses.dataclass(frozen=True)
class Analysis:
    """One analysis of all variants."""

    variants: Sequence[VariantAnalysis]

    @property
    def title(self) -> str:
        return self.variants[0].title

    @property
    def text(self) -> str:
        return self.variants[0].text

    def joined(self) -> tuple[list[Table], list[str]]:
        """The short tables of all variants as one, and the titles of the longer ones."""
        tables, longer = [], []
        for index, first in enumerate(self.variants[0].tables):
            titles = [column.title for column in first.columns]
            same = [
                (analysis.variant, table)
                for analysis in self.variants
                for table in analysis.tables[index : index + 1]
                if (table.title, [column.title for column in table.columns]) == (first.title, titles)
            ]
            if max(len(table.rows) for _, table in same) > FEW_ROWS:
                longer.append(first.title)
                continue
            names = [Cell(row.name) for _, table in same for row in table.rows]
            columns = [Column(first.names, names)]
            for at, title in enumerate(titles):
                columns.append(Column(title, [cell for _, table in same for cell in table.columns[at].cells]))
            rows = [Row(name) for name, table in same for _ in table.rows]
            tables.append(Table(rows, columns, title=first.title))
        return tables, longer


def analyses(sweep: SweepResult) -> tuple[list[Analysis], list[str]]:
    """Every analysis of every variant, and a line for each that cannot be understood."""
    found, problems = [], []
    for name in dict.fromkeys(name for run in sweep.runs if run.finished for name in run.analyses):
        by_variant = []
        for variant in sweep.variants:
            contents = [run.analyses[name] for run in variant.finished if name in run.analyses]
            try:
                by_variant += [_analysis(variant, name, contents)] if contents else []
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                problems.append(f"analysis {name!r} of {variant.name}: {type(error).__name__}: {error}")
        found += [Analysis(by_variant)] if by_variant else []
    return found, problems


def _analysis(variant: VariantResult, name: str, contents: Sequence[Mapping[str, Any]]) -> VariantAnalysis:
    first = contents[0]
    by_seed = [content.get("tables", ()) for content in contents]
    tables = [_averaged([tables[i] for tables in by_seed if i < len(tables)]) for i in range(len(by_seed[0]))]
    plots = [_plot(plot) for plot in first.get("plots", ()) if plot["series"]]
    title, text = str(first.get("title", name)), str(first.get("text", ""))
    return VariantAnalysis(variant.name, title, text, len(contents), tables, plots)


def _averaged(tables: Sequence[Mapping[str, Any]]) -> Table:
    """Cells that are numbers in the tables of all seeds become their mean; others are the first seed's."""
    shape = [len(row) for row in tables[0]["rows"]]
    alike = [table["rows"] for table in tables if [len(row) for row in table["rows"]] == shape]
    lines = [[_mean(cells) for cells in zip(*rows, strict=True)] for rows in zip(*alike, strict=True)][:MOST_ROWS]
    names, *titles = map(str, tables[0]["columns"])
    columns = [
        Column(title, [Cell(line[at], line[at]) if at < len(line) else Cell() for line in lines])
        for at, title in enumerate(titles, start=1)
    ]
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
