"""A report as Markdown: all but the figures and the folded details."""

from __future__ import annotations

import re

from transformer_jax.report import document

# Characters with a meaning in Markdown; brackets only where they make a link or an image.
MARKS = re.compile(r"[\\|`*_$~]|\](?=[(:\[])")


def to_markdown(report: document.Document) -> str:
    parts = [f"# {_escaped(report.title)}", _escaped(report.question), *map(_block, report.state)]
    for part in report.parts:
        if blocks := list(filter(None, map(_block, part.blocks))):
            parts += [f"## {part.title}", *blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: document.Block) -> str:
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
            return _table(block)
        case document.Translations():
            return _translations(block)
        case document.Figures() | document.Folded() | document.Code():
            return ""


def _table(table: document.Table) -> str:
    """A table without empty columns, numbers to the right."""
    shown = [index for index in range(len(table.columns)) if any(row.cells[index].text for row in table.rows)]
    lines = [[table.names, *(table.columns[index].title for index in shown)]]
    lines = [[_escaped(title) for title in line] for line in lines]
    for row in table.rows:
        line = [_escaped(f"{row.name} ({row.note})" if row.note else row.name)]
        for index in shown:
            cell = row.cells[index]
            text = _escaped(f"{cell.text} {cell.detail}")
            line.append(f"**{text}**" if cell.mark else text)
        lines.append(line)
    head, *rows = [f"| {' | '.join(line)} |" for line in lines]
    title = [f"#### {_escaped(table.title)}", ""] if table.title else []
    return "\n".join([*title, head, f"|---{'|--:' * len(shown)}|", *rows])


def _translations(block: document.Translations) -> str:
    parts = []
    for sentence in block.sentences:
        lines = [
            f"{' '.join(word for word, _ in translation.words)} ({', '.join(translation.variants)})"
            for translation in sentence.translations
        ]
        lines += [f"and {sentence.more} more"] if sentence.more else []
        parts.append(
            f"{_escaped(sentence.source)}\n→ {_escaped(sentence.reference)}\n\n{_block(document.Bullets(lines))}"
        )
    return "\n\n".join(parts)


def _escaped(text: str) -> str:
    """On one line, without any markup: no tag, end of a cell, emphasis, formula, link or image."""
    text = MARKS.sub(r"\\\g<0>", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;")
