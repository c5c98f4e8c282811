"""Text in the formats of a report: escaped for Markdown and LaTeX, CSV, and the main table in a terminal."""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np

from transformer_jax.errors import visible
from transformer_jax.report.metrics import EXACT_MATCH, METRICS, deviation
from transformer_jax.report.report import Report
from transformer_jax.report.table import Table

# Characters with a meaning in Markdown; brackets only where they make a link or an image.
MARKS = re.compile(r"[\\|`*_$~]|\](?=[(:\[])")
# Letters that pdflatex knows as symbols.
SYMBOLS = (
    r"α\alpha β\beta γ\gamma δ\delta ε\varepsilon ζ\zeta η\eta θ\theta ι\iota κ\kappa λ\lambda μ\mu ν\nu ξ\xi π\pi "
    r"ρ\rho σ\sigma τ\tau υ\upsilon φ\varphi χ\chi ψ\psi ω\omega Γ\Gamma Δ\Delta Θ\Theta Λ\Lambda Π\Pi Σ\Sigma Φ\Phi "
    r"Ψ\Psi Ω\Omega ±\pm ×\times ·\cdot ≤\leq ≥\geq ≠\neq ≈\approx ∞\infty →\rightarrow ←\leftarrow …\ldots"
)
ESCAPES = {letter: f"${macro}$" for letter, macro in re.findall(r"(\S)(\\\w+)", SYMBOLS)}
ESCAPES |= {letter: rf"\{letter}" for letter in "{}$&#%_"} | {letter: f"${letter}$" for letter in "<>|"}
# Quotes are active with some languages of babel, and a bracket at the start of a row would belong to the row before it.
ESCAPES |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$"}
ESCAPES |= {'"': r"{\char34}", "`": r"\`{}", "[": "{[}", "]": "{]}"}
# Other letters that pdflatex knows in all of its font encodings.
KNOWN = {*map(chr, range(32, 127)), *"ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜÝßàáâãäåæçèéêëìíîïñòóôõöøùúûüýÿ–—‘’“”\n"}
# The columns of table.csv.
VARIANT = ("test", "group", "variant", "note", "published_perplexity", "published_bleu", "published_parameters")
COSTS = ("steps", "parameters", "training_flops", "train_seconds", "tokens_per_second", "learning_rate")
DIFFERENCES = ("bleu", "log_perplexity")
DIFFERENCE = ("value", "low", "high", "error", "freedom", "p_value", "corrected_p", "detectable", "seed_spread")
# The kinds of columns in a terminal, the most important first.
KINDS = ("scores", "differences", "options", "published")


def markdown(text: str) -> str:
    """The text on one line, without any markup: no tag, end of a cell, emphasis, formula, link or image."""
    text = MARKS.sub(r"\\\g<0>", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;")


def latex(text: str) -> str:
    """The text on one line, without anything that LaTeX interprets."""
    text = "".join(ESCAPES.get(letter, letter) for letter in visible(" ".join(text.split())))
    return re.sub(r"(?<=([-',]))(?=\1)", "{}", text.replace(r" \%", r"\,\%"))  # -- would be a dash


def table_csv(report: Report) -> str:
    """A line for each test set and variant."""
    options = [column.key for column in report.tests[0].table.columns if column.kind == "options"]
    scores = [f"{score}_{what}" for score in ("perplexity", "word_perplexity", "bleu") for what in ("mean", "sd")]
    differences = [f"{metric}_difference_{name}" for metric in DIFFERENCES for name in DIFFERENCE]
    lines: list[list[object]] = [[*VARIANT, *options, *COSTS, "seeds", *scores, *differences]]
    for test in report.tests:
        findings, columns = test.findings, {column.key: column.cells for column in test.table.columns}
        bleu = findings.by_metric["bleu"].scores if findings.by_metric else {}
        for number, variant in enumerate(report.sweep.variants):
            published = [variant.published.get(key) for key in ("perplexity", "bleu", "parameters")]
            line: list[object] = [findings.split, variant.group, variant.name, variant.note, *published]
            line += [columns[key][number].text for key in options] + [columns[key][number].value for key in COSTS]
            line.append(len(variant.measured(findings.split)))
            for by_name in (findings.token_perplexity, findings.word_perplexity, bleu):
                values = by_name.get(variant.name, ())
                line += [float(np.mean(values)) if values else None, deviation(values)]
            for metric in METRICS:
                difference = findings.differences(metric).get(variant.name)
                line += [difference.to_json()[name] if difference else None for name in DIFFERENCE]
            lines.append(line)
    return _csv(lines)


def runs_csv(report: Report) -> str:
    """A line for each score of each run, from which rliable's matrices are made."""
    lines: list[list[object]] = [["variant", "seed", "test", "metric", "score"]]
    for run in report.sweep.runs:
        for split, measured in run.measured.items():
            scores = {"bleu": measured.bleu, "perplexity": measured.perplexity}
            if measured.exact is not None:
                scores[EXACT_MATCH.key] = 100 * float(measured.exact.right_N.mean())
            lines += [[run.variant, run.seed, split, metric, score] for metric, score in scores.items()]
    return _csv(lines)


def _csv(lines: Iterable[Sequence[object]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(lines)
    return file.getvalue()


def terminal_table(table: Table, width: int) -> str:
    """The table with as many kinds of columns as the width has room for."""
    chosen: set[str] = set()
    for kind in KINDS:
        if not chosen or sum(max(map(_width, column)) + 2 for column in _columns(table, {*chosen, kind})) <= width:
            chosen.add(kind)
    padded = []
    for number, column in enumerate(_columns(table, chosen)):
        widest = max(map(_width, column))
        spaces = [" " * (widest - _width(text)) for text in column]
        pairs = zip(column, spaces, strict=True)
        padded.append([text + space if number == 0 else space + text for text, space in pairs])
    head, *rows = ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]
    lines, group = [head], ""
    for row, line in zip(table.rows, rows, strict=True):
        if row.group != group:
            group = row.group
            lines.append(visible(group))
        lines.append(line)
    return "\n".join(lines)


def _columns(table: Table, kinds: set[str]) -> list[list[str]]:
    """The texts of the columns of these kinds, titles first; empty columns are left out."""
    shown = [[table.names, *(row.name for row in table.rows)]]
    for column in table.without_empty_columns().columns:
        if column.kind in kinds:
            shown.append([column.title, *(f"{cell.text} {cell.detail}".strip() for cell in column.cells)])
    return [[visible(text) for text in column] for column in shown]


def _width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )
