"""The main table of a report for a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from transformer_jax.errors import visible
from transformer_jax.report.document import Column, Table

# The kinds of columns, the most important first.
KINDS = ("scores", "differences", "options", "published")


def terminal_table(table: Table, width: int) -> str:
    """The table with as many kinds of columns as the width has room for."""
    chosen: set[str] = set()
    for kind in KINDS:
        if not chosen or sum(max(map(_width, column)) + 2 for column in _columns(table, {*chosen, kind})) <= width:
            chosen.add(kind)
    columns = _columns(table, chosen)
    padded = []
    for number, column in enumerate(columns):
        widest = max(map(_width, column))
        spaces = [" " * (widest - _width(text)) for text in column]
        padded.append(
            [text + space if number == 0 else space + text for text, space in zip(column, spaces, strict=True)]
        )
    head, *rows = ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]
    lines, group = [head], ""
    for row, line in zip(table.rows, rows, strict=True):
        if row.group != group:
            group = row.group
            lines.append(visible(group))
        lines.append(line)
    return "\n".join(lines)


def _columns(table: Table, kinds: set[str]) -> list[Sequence[str]]:
    """The texts of the columns of these kinds, titles first; empty columns are left out."""

    def texts(index: int, column: Column) -> list[str]:
        cells = [row.cells[index] for row in table.rows]
        return [column.title, *(f"{cell.text} {cell.detail}".strip() for cell in cells)]

    columns = [texts(index, column) for index, column in enumerate(table.columns) if column.kind in kinds]
    shown = [[table.names, *(row.name for row in table.rows)], *(column for column in columns if any(column[1:]))]
    return [[visible(text) for text in column] for column in shown]


def _width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )
