"""A report's tables as one sheet of bare numbers, for a spreadsheet or for pandas."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import numpy as np

from transformer_jax.report.findings import TestFindings, deviation
from transformer_jax.report.statistics import Difference
from transformer_jax.report.table import Row, Table

TOLD = ("test", "group", "variant", "note", "published_perplexity", "published_bleu", "published_parameters")
FIGURES = ("steps", "parameters", "training_flops", "train_seconds", "tokens_per_second", "learning_rate")
SCORES = ("perplexity", "word_perplexity", "bleu")
DIFFERENCES = ("bleu", "log_perplexity")
FOUND = ("value", "low", "high", "error", "freedom", "p_value", "corrected_p", "detectable", "seed_spread")


def as_csv(parts: Sequence[tuple[TestFindings, Table]]) -> str:
    """A line for each test set and variant."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    options = [column.key for column in parts[0][1].columns if column.kind == "options"]
    scores = [f"{score}_{what}" for score in SCORES for what in ("mean", "sd")]
    differences = [f"{measure}_difference_{name}" for measure in DIFFERENCES for name in FOUND]
    writer.writerow([*TOLD, *options, *FIGURES, "seeds", *scores, *differences])
    for findings, table in parts:
        for row in table.rows:
            writer.writerow(["" if value is None else value for value in _line(findings, row, options)])
    return file.getvalue()


def _line(findings: TestFindings, row: Row, options: Sequence[str]) -> list[object]:
    variant = row.variant
    published = [variant.published.get(key) for key in ("perplexity", "bleu", "parameters")]
    line: list[object] = [findings.split, variant.group, variant.name, variant.note, *published]
    line += [row.cells[key].text for key in options]
    line += [row.cells[key].value for key in FIGURES]
    line.append(len(variant.finished))
    for scores in (findings.perplexity, findings.word_perplexity, findings.bleu):
        values = scores.get(variant.name, ())
        line.append(float(np.mean(values)) if values else None)
        line.append(deviation(values))
    for differences in (findings.bleu_differences, findings.perplexity_differences):
        line += _figures(differences.get(variant.name))
    return line


def _figures(difference: Difference | None) -> list[object]:
    return [None] * len(FOUND) if difference is None else [getattr(difference, name) for name in FOUND]
