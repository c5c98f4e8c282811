"""Compares two runs: options, code and data that differ, and their metrics side by side. Only reads files.

  transformer-jax diff runs/demo runs/other
  transformer-jax diff runs/table3/runs/base/seed-0 runs/table3/runs/A-h=1/seed-0

Options that have no effect in either run are left out. Scores on test sets are those of `evaluate` and of sweeps.
"""

import argparse
import shutil
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.commands.arguments import path
from transformer_jax.errors import visible

if TYPE_CHECKING:
    from transformer_jax.runs.difference import Row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="A", type=path, help="a run's folder")
    parser.add_argument("second", metavar="B", type=path, help="another run's folder")


def run(arguments: argparse.Namespace) -> None:
    from transformer_jax.runs import difference

    first, second = (difference.RecordedRun(place) for place in (arguments.first, arguments.second))
    width = shutil.get_terminal_size((80, 24)).columns
    print(f"A  {visible(arguments.first)}\nB  {visible(arguments.second)}")
    for title, compare in (("options", difference.options), ("code", difference.code), ("data", difference.data)):
        differing = [row for row in compare(first, second) if row.first != row.second]
        print(f"\n{title}: {f'{len(differing)} different' if differing else 'the same'}")
        if differing:
            print(table(differing, width))
    print(f"\nmetrics\n{metrics_table(difference.metrics(first, second))}")
    for note in difference.notes(first, second):
        print("\n".join(textwrap.wrap(f"note: {visible(note)}", width, subsequent_indent="  ")))


def table(rows: Sequence["Row"], width: int) -> str:
    """Two columns of values; those that are too long for the width are on lines of their own."""
    longest = max(len(row.name) for row in rows)
    room = (width - longest - 6) // 2
    fits = {row: len(shown(row.first)) <= room and len(shown(row.second)) <= room for row in rows}
    column = max([len(shown(row.first)) for row in rows if fits[row]], default=1)
    lines = [f"  {'':<{longest}}  {'A':<{column}}  B"] if any(fits.values()) else []
    for row in rows:
        if fits[row]:
            lines.append(f"  {row.name:<{longest}}  {shown(row.first):<{column}}  {shown(row.second)}")
        else:
            lines.append(f"  {row.name}")
            for label, value in (("A", row.first), ("B", row.second)):
                lines += textwrap.wrap(
                    shown(value), width, initial_indent=f"    {label}  ", subsequent_indent="       "
                )
    return "\n".join(lines)


def shown(value: Any) -> str:
    """A value as text in a table."""
    if value in (None, (), "", {}):
        return "none"
    if isinstance(value, tuple):
        return visible(", ".join(map(str, value)))
    return str(value).lower() if isinstance(value, bool) else visible(str(value))


def metrics_table(rows: Sequence["Row"]) -> str:
    """The values of both runs, and their difference."""
    cells = [("", "A", "B", "B - A")]
    for row in rows:
        change = "" if None in (row.first, row.second) else number(row.second - row.first, sign="+")
        first, second = ("-" if each is None else number(each) for each in (row.first, row.second))
        cells.append((row.name, first, second, change))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    aligned = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in cells]
    return "\n".join(("  " + "  ".join(row)).rstrip() for row in aligned)


def number(value: float, sign: str = "") -> str:
    """A count, or four digits (or all before the point)."""
    if isinstance(value, int) or not value:
        return f"{value:{sign},}"
    return f"{value:{sign},.0f}" if abs(value) >= 1000 else f"{value:{sign}.4g}"
