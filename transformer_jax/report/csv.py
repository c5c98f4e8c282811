"""The tables of a report as CSV, with bare numbers, for a spreadsheet or for pandas."""

from __future__ import annotations

import csv
import io

import numpy as np

from transformer_jax.report.content import Content
from transformer_jax.report.metrics import METRICS, deviation

VARIANT = ("test", "group", "variant", "note", "published_perplexity", "published_bleu", "published_parameters")
COSTS = ("steps", "parameters", "training_flops", "train_seconds", "tokens_per_second", "learning_rate")
SCORES = ("perplexity", "word_perplexity", "bleu")
DIFFERENCES = ("bleu", "log_perplexity")
DIFFERENCE = ("value", "low", "high", "error", "freedom", "p_value", "corrected_p", "detectable", "seed_spread")


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
