"""A sweep's report as Markdown, and its table for a terminal."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from transformer_jax.report import analyses
from transformer_jax.report.content import METHOD, Content
from transformer_jax.report.size_view import COSTS, RULE
from transformer_jax.report.table import Column, Row, Table

# What Markdown would take for something else: a bracket only where it makes a link or a picture.
MARKS = re.compile(r"[\\|`*_$~]|\](?=[(:\[])")
# In this order columns find room in a terminal.
ROOM = ("scores", "differences", "options", "published")


def markdown(content: Content) -> str:
    """The report without its pictures."""
    sweep = content.sweep
    parts = [f"# {_safe(sweep.name)}", _safe(sweep.question), content.state]
    parts += [_listed(content.mixtures)] if content.mixtures else []
    parts += [_listed([f"{name}: {what}" for name, what in content.unfinished])] if content.unfinished else []
    parts += [_listed([f"damaged: {problem}" for problem in sweep.problems])] if sweep.problems else []
    for findings, table, words in zip(content.tests, content.tables, content.words, strict=True):
        parts += [f"## On {_safe(findings.split)}", _listed(words), _markdown_table(table)]
    parts += ["## What to bear in mind", _listed(content.remarks)]
    parts += _markdown_sizes(content)
    for overview in analyses.overviews(content.analyses):
        parts += [f"## {_safe(overview.title)}", _safe(overview.text)]
        parts += [f"### {_safe(table.title)}\n\n{_rows(table.columns, table.rows)}" for table in overview.tables]
        if overview.longer:
            parts.append(
                f"On the page alone (index.html), a table for each variant: {_safe(', '.join(overview.longer))}."
            )
    for sample in content.samples:
        title = "## Translations\n\n" if sample is content.samples[0] else ""
        versions = [
            f"{' '.join(word for word, _ in version.words)} ({', '.join(version.variants)})"
            for version in sample.versions
        ]
        versions += [f"and {sample.more} more"] if sample.more else []
        parts.append(f"{title}{_safe(sample.source)}\n→ {_safe(sample.reference)}\n\n{_listed(versions)}")
    parts += ["## How it was done", _listed(METHOD)]
    parts.append(
        _listed([f"{name}: `{value.replace('`', ' ')}`" for name, value in content.facts.items()], escaped=True)
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_table(table: Table) -> str:
    columns = [column for column in table.columns if any(row.cells[column.key].text for row in table.rows)]
    rows = []
    for row in table.rows:
        name = row.variant.name + (f" ({row.variant.note})" if row.variant.note else "")
        rows.append([_safe(name), *(_told(row, column) for column in columns)])
    return _rows(["variant", *(column.title for column in columns)], rows, escaped=True)


def _rows(columns: Sequence[str], rows: Sequence[Sequence[str]], escaped: bool = False) -> str:
    """A table, numbers to the right."""
    shown = rows if escaped else [[_safe(cell) for cell in row] for row in rows]
    head = f"| {' | '.join(map(_safe, columns))} |\n|---{'|--:' * (len(columns) - 1)}|"
    return "\n".join([head, *(f"| {' | '.join(row)} |" for row in shown)])


def _told(row: Row, column: Column) -> str:
    cell = row.cells[column.key]
    text = _safe(cell.text)
    return f"**{text}**" if cell.mark else text


def _markdown_sizes(content: Content) -> list[str]:
    lines = []
    for view in content.sizes:
        front, shown = (sorted(names, key=lambda name: view.points[name]) for names in (view.front, view.shown))
        if front:
            measure = "BLEU" if view.measure == "bleu" else "perplexity"
            best = f"shown for {', '.join(shown)}" if shown else "shown for none"
            lines.append(f"Best {measure} for its {COSTS[view.cost]}: {best}. By the means: {', '.join(front)}.")
    return ["## Size and compute", _safe(RULE), _listed(lines)] if lines else []


def _listed(texts: Sequence[str], escaped: bool = False) -> str:
    return "\n".join(f"- {text if escaped else _safe(text)}" for text in texts)


def _safe(text: str) -> str:
    """On one line, and shown as it is: no tag, no end of a cell, no emphasis, formula, link or picture."""
    text = MARKS.sub(r"\\\g<0>", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;")


def terminal_table(table: Table, width: int) -> str:
    """As many of the columns as there is room for."""
    chosen: list[Column] = []
    for kind in ROOM:
        more = [c for c in table.columns if c.kind == kind and any(row.cells[c.key].text for row in table.rows)]
        tried = [column for column in table.columns if column in chosen or column in more]
        if chosen and _width(_cells(table, tried)) > width:
            continue
        chosen = tried
    cells = _cells(table, chosen)
    widths = [max(map(_columns, column)) for column in zip(*cells, strict=True)]
    lines, group = [], ""
    for number, line in enumerate(cells):
        if number and table.rows[number - 1].variant.group != group:
            group = table.rows[number - 1].variant.group
            lines.append(printable(group))
        padded = [" " * (wide - _columns(cell)) + cell for cell, wide in zip(line[1:], widths[1:], strict=True)]
        lines.append("  ".join([line[0] + " " * (widths[0] - _columns(line[0])), *padded]).rstrip())
    return "\n".join(lines)


def _cells(table: Table, columns: Sequence[Column]) -> list[list[str]]:
    head = ["variant", *(printable(column.title) for column in columns)]
    return [
        head,
        *([printable(row.variant.name), *(printable(row.cells[c.key].text) for c in columns)] for row in table.rows),
    ]


def _width(cells: Sequence[Sequence[str]]) -> int:
    return sum(max(map(_columns, column)) + 2 for column in zip(*cells, strict=True))


def _columns(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def printable(text: str) -> str:
    """Without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
