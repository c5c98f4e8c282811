"""A report as text: Markdown, without figures and folded details; CSV; and the main table in a terminal."""

import csv
import io
import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from transformer_jax.errors import visible
from transformer_jax.report import document
from transformer_jax.report.content import Content
from transformer_jax.report.metrics import METRICS, deviation

# Characters with a meaning in Markdown; brackets only where they make a link or an image.
MARKS = re.compile(r"[\\|`*_$~]|\](?=[(:\[])")
ASTERISK = "*: a significant difference, for better or worse (p below 0.05, corrected where several are compared)."
# The columns of the CSV.
VARIANT = ("test", "group", "variant", "note", "published_perplexity", "published_bleu", "published_parameters")
COSTS = ("steps", "parameters", "training_flops", "train_seconds", "tokens_per_second", "learning_rate")
SCORES = ("perplexity", "word_perplexity", "bleu")
DIFFERENCES = ("bleu", "log_perplexity")
DIFFERENCE = ("value", "low", "high", "error", "freedom", "p_value", "corrected_p", "detectable", "seed_spread")
# The kinds of columns, the most important first.
KINDS = ("scores", "differences", "options", "published")


def to_markdown(report: document.Document) -> str:
    parts = [
        f"# {_escaped(report.title)}",
        _escaped(report.question),
        *map(_markdown, [*report.state, *report.findings]),
    ]
    for part in report.parts:
        if blocks := list(filter(None, map(_markdown, part.blocks))):
            parts += [f"## {part.title}", *blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown(block: document.Block) -> str:
    match block:
        case document.Text(text):
            return _escaped(text)
        case document.Heading(text):
            return f"### {_escaped(text)}"
        case document.Bullets(items):
            return "\n".join(f"- {_escaped(item)}" for item in items)
        case document.Facts(items):
            return "\n".join(f"- {_escaped(name)}: `{value.replace('`', ' ')}`" for name, value in items.items())
        case document.Table():
            return _markdown_table(block)
        case document.Translations():
            return _translations(block)
        case document.Figures() | document.Folded() | document.Code():
            return ""


def _markdown_table(table: document.Table) -> str:
    """A table without empty columns, numbers to the right."""
    shown = [index for index in range(len(table.columns)) if any(row.cells[index].text for row in table.rows)]
    lines = [[table.names, *(table.columns[index].title for index in shown)]]
    lines = [[_escaped(title) for title in line] for line in lines]
    for row in table.rows:
        line = [_escaped(f"{row.name} ({row.note})" if row.note else row.name)]
        for index in shown:
            cell = row.cells[index]
            text = _escaped(f"{cell.text} {cell.detail}")
            line.append(f"**{text}**" if cell.mark == "best" else text + r" \*" * bool(cell.mark))
        lines.append(line)
    head, *rows = [f"| {' | '.join(line)} |" for line in lines]
    title = [f"#### {_escaped(table.title)}", ""] if table.title else []
    about = (
        [ASTERISK] * bool(table.marks)
        + [document.BEST] * ("best" in table.marks)
        + [f"{table.costs}."] * bool(table.costs)
    )
    about = ["", _escaped(" ".join(about))] if about else []
    return "\n".join([*title, head, f"|---{'|--:' * len(shown)}|", *rows, *about])


def _translations(block: document.Translations) -> str:
    parts = []
    for sentence in block.sentences:
        lines = [
            f"{' '.join(word for word, _ in translation.words)} ({', '.join(translation.variants)})"
            for translation in sentence.translations
        ]
        lines += [f"and {sentence.more} more"] if sentence.more else []
        parts.append(
            f"{_escaped(sentence.source)}\n→ {_escaped(sentence.reference)}\n\n{_markdown(document.Bullets(lines))}"
        )
    return "\n\n".join(parts)


def _escaped(text: str) -> str:
    """On one line, without any markup: no tag, end of a cell, emphasis, formula, link or image."""
    text = MARKS.sub(r"\\\g<0>", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;")


def to_csv(content: Content) -> str:
    """A line for each test set and variant."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    options = [column.key for column in content.tables[0].columns if column.kind == "options"]
    scores = [f"{score}_{what}" for score in SCORES for what in ("mean", "sd")]
    differences = [f"{metric}_difference_{name}" for metric in DIFFERENCES for name in DIFFERENCE]
    writer.writerow([*VARIANT, *options, *COSTS, "seeds", *scores, *differences])
    for findings, table in zip(content.tests, content.tables, strict=True):
        for variant, row in zip(content.sweep.variants, table.rows, strict=True):
            cells = {column.key: cell for column, cell in zip(table.columns, row.cells, strict=True)}
            published = [variant.published.get(key) for key in ("perplexity", "bleu", "parameters")]
            line: list[object] = [findings.split, variant.group, variant.name, variant.note, *published]
            line += [cells[key].text for key in options] + [cells[key].value for key in COSTS]
            line.append(len(variant.finished))
            for by_name in (findings.perplexity, findings.word_perplexity, findings.bleu):
                values = by_name.get(variant.name, ())
                line += [float(np.mean(values)) if values else None, deviation(values)]
            for metric in METRICS:
                difference = findings.differences(metric).get(variant.name)
                line += [getattr(difference, name, None) for name in DIFFERENCE]
            writer.writerow(["" if value is None else value for value in line])
    return file.getvalue()


def terminal_table(table: document.Table, width: int) -> str:
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


def _columns(table: document.Table, kinds: set[str]) -> list[Sequence[str]]:
    """The texts of the columns of these kinds, titles first; empty columns are left out."""

    def texts(index: int, column: document.Column) -> list[str]:
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
