"""The main table, in the form of the paper's Table 3: a variant per row, blank where it has the base value."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.report.document import Cell, Column, Filled, Table, number_cell, rows_of
from transformer_jax.report.findings import TestFindings
from transformer_jax.report.metrics import BLEU, METRICS, Metric, mean_and_deviation, p_text, p_title
from transformer_jax.report.results import SweepResult, VariantResult
from transformer_jax.report.statistics import Difference
from transformer_jax.runs.metrics import count_text, duration

# The paper's names of options. Others go by the last part of their path.
SYMBOLS = {
    "model.layers": "N",
    "model.num_encoder_layers": "N enc",
    "model.num_decoder_layers": "N dec",
    "model.num_heads": "h",
    "model.dropout": "P_drop",
    "train.label_smoothing": "ε_ls",
}
LAYERS = ("model.num_encoder_layers", "model.num_decoder_layers")
# The order of the paper's columns; other options follow.
PAPER_ORDER = ("model.layers", *LAYERS, "model.d_model", "model.d_ff", "model.num_heads", "model.d_k", "model.d_v")
# The updates are shown as they were made, not as they were planned.
WITHOUT_COLUMN = {"train.steps"}
WIDEST_CELL = 40

TRAINING_TIME = "training with its compilation, without start-up, validation and tests"
TOKENS_PER_SECOND = "target tokens per second, the median of log lines (compilation slows the first)"
COSTS: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
    ("FLOPs", "training_flops", "floating-point operations for the tokens trained on, without padding", count_text),
    ("time", "train_seconds", TRAINING_TIME, duration),
    ("tokens/s", "tokens_per_second", TOKENS_PER_SECOND, "{:,.0f}".format),
    ("rate", "learning_rate", "peak learning rate", "{:.3g}".format),
)
SIZES: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
    ("params", "parameters", "parameters", count_text),
    ("updates", "steps", "updates made", "{:,.0f}".format),
)
PUBLISHED: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("PPL", "perplexity", "{:g}".format),
    ("BLEU", "bleu", "{:g}".format),
    ("params", "parameters", count_text),
)


def table(sweep: SweepResult, findings: TestFindings) -> Table:
    """All variants on one test set."""
    variants = sweep.variants
    counts = [(len(variant.finished), len(variant.runs)) for variant in variants]
    seeds = [Cell(f"{done}" if done == planned else f"{done} of {planned}", done) for done, planned in counts]
    columns = option_columns(sweep)
    for metric in METRICS:
        columns += _scores(variants, metric, findings)
        if found := findings.differences(metric):
            columns += _differences(variants, metric, found, findings.unit)
    columns += [_means(variants, "scores", *size) for size in SIZES]
    columns.append((Column("seeds", "seeds", "scores", "finished runs"), seeds))
    for title, key, text in PUBLISHED if findings.split == sweep.tests[0] else ():
        if any(key in variant.published for variant in variants):
            cells = [number_cell(variant.published.get(key), text) for variant in variants]
            columns.append((Column(f"{title} publ.", f"published_{key}", "published", "the published score"), cells))
    columns += [_means(variants, "cost", *cost) for cost in COSTS]
    rows = [
        row._replace(note=variant.note, group=variant.group, is_baseline=variant.name == sweep.baseline)
        for variant, row in zip(variants, rows_of([variant.name for variant in variants], columns), strict=True)
    ]
    return Table([column for column, _ in columns], rows, filtered=True)


def option_columns(sweep: SweepResult) -> list[Filled]:
    """A column for each option that differs anywhere, including d_k and d_v where they follow from others."""
    base = _resolved(sweep.base, {})
    resolved = [_resolved(sweep.base, variant.changes) for variant in sweep.variants]
    varied = {path for values in resolved for path, value in values.items() if value != base.get(path)}

    def cell(variant: VariantResult, value: Any, default: Any) -> Cell:
        text = _text(value)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        is_shown = variant.name == sweep.baseline or value != default
        return Cell(text if is_shown else "", value if is_number else text)

    paths = [path for path in PAPER_ORDER if path in varied]
    paths += sorted(varied - {*paths, *WITHOUT_COLUMN})
    return [
        (
            Column(SYMBOLS.get(path, path.rpartition(".")[2]), path, "options", path),
            [cell(v, values.get(path), base.get(path)) for v, values in zip(sweep.variants, resolved, strict=True)],
        )
        for path in paths
    ]


def _resolved(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A variant's options and what follows from them: d_k = d_v = d_model / h, and one N where both stacks agree."""
    values = {**base, **changes}
    width, heads = values.get("model.d_model"), values.get("model.num_heads")
    for key in ("model.d_k", "model.d_v"):
        if values.get(key) is None and isinstance(width, int) and isinstance(heads, int) and heads > 0:
            values[key] = width // heads
    if values.get(LAYERS[0]) == values.get(LAYERS[1]) and base.get(LAYERS[0]) == base.get(LAYERS[1]):
        values["model.layers"] = values.get(LAYERS[0])
        for path in LAYERS:
            values[path] = base.get(path)
    return values


def _text(value: Any) -> str:
    text = "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= WIDEST_CELL else text[: WIDEST_CELL - 1] + "…"


def _scores(variants: Sequence[VariantResult], metric: Metric, findings: TestFindings) -> list[Filled]:
    """BLEU; or perplexity per token, and per word where that is compared."""

    best = findings.best(metric)

    def scores(title: str, key: str, about: str) -> Filled:
        is_compared, cells = getattr(findings, key) is findings.scores(metric), []
        for variant in variants:
            values = getattr(findings, key).get(variant.name)
            mean = float(np.mean(values)) if values else 0.0
            form = (
                ".2f" if key == "bleu" or 10 <= mean < 100 else ".3f" if mean < 10 else ",.1f" if mean < 1e5 else ".1e"
            )
            text, sign, spread = mean_and_deviation(values, form).partition(" ±") if values else ("", "", "")
            mark = "best" if is_compared and variant.name == best else ""
            cells.append(Cell(text, mean, f"{sign}{spread}".strip(), mark) if values else Cell())
        return Column(title, key, "scores", about), cells

    if metric is BLEU:
        return [scores("BLEU", "bleu", findings.signature)]
    by_word = [scores("PPL/word", "word_perplexity", "perplexity per word: vocabularies differ")]
    by_token = scores("PPL", "perplexity", "perplexity per token")
    return [by_token, *(by_word if findings.unit == "word" else [])]


def difference_cell(metric: Metric, found: Difference | None) -> Cell:
    """A difference from the baseline with its interval, marked if it is significant."""
    if found is None:
        return Cell()
    return Cell(metric.change(found.value), found.value, metric.interval(found), metric.mark(found))


def _differences(
    variants: Sequence[VariantResult], metric: Metric, differences: Mapping[str, Difference], unit: str
) -> list[Filled]:
    """The differences from the baseline with their intervals, and the corrected p-values."""
    about = f"log-perplexity per {unit}, as a change in percent; lower is better"
    about = "difference from the baseline" if metric is BLEU else about
    p_about = f"{metric.title}: corrected for all comparisons of the column (Bonferroni)"
    found = [differences.get(variant.name) for variant in variants]
    return [
        (
            Column(f"Δ {metric.title}", f"{metric.key}_difference", "differences", about),
            [difference_cell(metric, d) for d in found],
        ),
        (
            Column(p_title(len(differences)), f"{metric.key}_p", "differences", p_about),
            [Cell(p_text(d.corrected_p), d.corrected_p) if d else Cell() for d in found],
        ),
    ]


def _means(
    variants: Sequence[VariantResult], kind: str, title: str, key: str, about: str, text: Callable[[float], str]
) -> Filled:
    """The means over seeds of a number of result.json."""
    return Column(title, key, kind, about), [number_cell(variant.mean(key), text) for variant in variants]
