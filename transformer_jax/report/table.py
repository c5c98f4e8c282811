"""The table of a report in the form of the paper's Table 3: a variant a row, blank where it has the base value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.report.findings import TestFindings, bleu_text, mean_and_spread, perplexity_text
from transformer_jax.report.results import SweepResult, VariantResult
from transformer_jax.report.size_view import cost_of
from transformer_jax.report.statistics import Difference
from transformer_jax.runs.metrics import duration

# What the paper calls an option. Others go by the last part of their path.
SYMBOLS = {
    "model.num_encoder_layers": "N enc",
    "model.num_decoder_layers": "N dec",
    "model.num_heads": "h",
    "model.dropout": "P_drop",
    "train.label_smoothing": "ε_ls",
}
LAYERS = ("model.num_encoder_layers", "model.num_decoder_layers")
# The order of the paper's columns; what it does not have stands behind.
PAPER_ORDER = ("model.layers", *LAYERS, "model.d_model", "model.d_ff", "model.num_heads", "model.d_k", "model.d_v")
# The figures that have a column of their own.
OWN_COLUMN = {"train.steps"}
WIDEST_CELL = 40


class Cell(NamedTuple):
    """What is read, and what is sorted by."""

    text: str = ""
    value: float | str | None = None
    mark: str = ""  # "better", "worse": a resolved difference


class Column(NamedTuple):
    key: str
    title: str
    kind: str  # options, scores, differences, published, cost: what can be shown and hidden together
    help: str = ""


class Row(NamedTuple):
    variant: VariantResult
    cells: Mapping[str, Cell]


class Table(NamedTuple):
    columns: Sequence[Column]
    rows: Sequence[Row]


def table(sweep: SweepResult, findings: TestFindings) -> Table:
    """All there is to say of every variant on one test set."""
    options = option_columns(sweep)
    seeds: list[Filled] = [(Column("seeds", "seeds", "scores", "finished runs"), _seeds)]
    parts = [options, scores(findings), differences(findings), seeds, published(sweep), costs()]
    columns = [column for part in parts for column, _ in part]
    rows = [
        Row(variant, {column.key: cell(variant) for part in parts for column, cell in part})
        for variant in sweep.variants
    ]
    return Table(columns, rows)


# A column, and what stands in it for a variant.
Filled = tuple[Column, Callable[[VariantResult], Cell]]


def option_columns(sweep: SweepResult) -> list[Filled]:
    """One for each option that differs anywhere, d_k and d_v among them where they follow from others."""
    settled = {variant.name: _settled(sweep.base, variant.changes) for variant in sweep.variants}
    base = _settled(sweep.base, {})
    varied = {path for values in settled.values() for path, value in values.items() if value != base.get(path)}
    order = sorted(varied - OWN_COLUMN, key=lambda path: (*_place(path), path))

    def filled(path: str) -> Filled:
        def cell(variant: VariantResult) -> Cell:
            value = settled[variant.name].get(path)
            shown = variant.name == sweep.baseline or value != base.get(path)
            kept = value if isinstance(value, (int, float)) and not isinstance(value, bool) else _shown(value)
            return Cell(_shown(value) if shown else "", kept)

        return Column(path, _symbol(path), "options", path), cell

    return [filled(path) for path in order]


def _settled(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A variant's options, with what follows from them: d_k = d_v = d_model / h, and one N where both stacks agree."""
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


def _place(path: str) -> tuple[int]:
    return (PAPER_ORDER.index(path) if path in PAPER_ORDER else len(PAPER_ORDER),)


def _symbol(path: str) -> str:
    return "N" if path == "model.layers" else SYMBOLS.get(path, path.rpartition(".")[2])


def _shown(value: Any) -> str:
    text = "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= WIDEST_CELL else text[: WIDEST_CELL - 1] + "…"


def scores(findings: TestFindings) -> list[Filled]:
    """Steps, perplexity, BLEU, parameters: the paper's own columns."""

    columns: list[Filled] = [
        (Column("steps", "steps", "scores", "updates made"), _mean("steps", _whole)),
        (Column("perplexity", "PPL", "scores", "perplexity per token"), _scored(findings.perplexity, _perplexity_form)),
    ]
    if findings.unit == "word":
        title = Column("word_perplexity", "PPL/word", "scores", "perplexity per word: vocabularies differ")
        columns.append((title, _scored(findings.word_perplexity, _perplexity_form)))
    return [
        *columns,
        (Column("bleu", "BLEU", "scores", findings.signature), _scored(findings.bleu, lambda _: ".2f")),
        (Column("parameters", "params", "scores", "parameters"), _cost("parameters")),
    ]


def _seeds(variant: VariantResult) -> Cell:
    done, planned = len(variant.finished), len(variant.runs)
    return Cell(f"{done}" if done == planned else f"{done} of {planned}", done)


def _scored(values: Mapping[str, Sequence[float]], form: Callable[[float], str]) -> Callable[[VariantResult], Cell]:
    def cell(variant: VariantResult) -> Cell:
        found = values.get(variant.name)
        if not found:
            return Cell()
        mean = float(np.mean(found))
        return Cell(mean_and_spread(found, form(mean)), mean)

    return cell


def _perplexity_form(value: float) -> str:
    return ".3f" if value < 10 else ".2f" if value < 100 else ",.1f" if value < 1e5 else ".1e"


def differences(findings: TestFindings) -> list[Filled]:
    """What differs from the baseline, with its interval and corrected p-value."""
    unit = f"log-perplexity per {findings.unit}, as a change in percent; less is better"
    parts = [
        ("bleu", "BLEU", "difference from the baseline", findings.bleu_differences, bleu_text, 1),
        ("perplexity", "PPL", unit, findings.perplexity_differences, perplexity_text, -1),
    ]
    columns: list[Filled] = []
    for key, title, about, found, told, sign in parts:
        if found:
            p_about = f"{title}: corrected for all comparisons of the column (Bonferroni)"
            columns.append(
                (Column(f"{key}_difference", f"Δ {title}", "differences", about), _differing(found, told, sign))
            )
            columns.append((Column(f"{key}_p", f"p Δ {title}", "differences", p_about), _p_value(found)))
    return columns


def _differing(
    found: Mapping[str, Difference], told: Callable[[Difference], str], sign: int
) -> Callable[[VariantResult], Cell]:
    def cell(variant: VariantResult) -> Cell:
        difference = found.get(variant.name)
        if difference is None:
            return Cell()
        mark = "better" if sign * difference.value > 0 else "worse"
        return Cell(told(difference), difference.value, mark if difference.resolved else "")

    return cell


def _p_value(found: Mapping[str, Difference]) -> Callable[[VariantResult], Cell]:
    def cell(variant: VariantResult) -> Cell:
        difference = found.get(variant.name)
        return Cell() if difference is None else Cell(p_text(difference.corrected_p), difference.corrected_p)

    return cell


def p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def published(sweep: SweepResult) -> list[Filled]:
    """The literature's figures, where it has any."""
    titles = {"perplexity": "PPL", "bleu": "BLEU", "parameters": "params"}
    about = "the published figure"
    return [
        (Column(f"published_{key}", f"{title} publ.", "published", about), _published(key))
        for key, title in titles.items()
        if any(key in variant.published for variant in sweep.variants)
    ]


def _published(key: str) -> Callable[[VariantResult], Cell]:
    def cell(variant: VariantResult) -> Cell:
        figure = variant.published.get(key)
        if figure is None:
            return Cell()
        return Cell(count_text(figure) if key == "parameters" else f"{figure:g}", figure)

    return cell


def costs() -> list[Filled]:
    """What a variant costs to train."""
    flops = "floating-point operations of a whole training"
    return [
        (Column("training_flops", "FLOPs", "cost", flops), _cost("training_flops")),
        (Column("train_seconds", "time", "cost", "training time of a run"), _mean("train_seconds", duration)),
        (Column("tokens_per_second", "tokens/s", "cost", "target tokens a second"), _mean("tokens_per_second", _whole)),
        (Column("learning_rate", "rate", "cost", "peak learning rate"), _mean("learning_rate", "{:.3g}".format)),
    ]


def _mean(key: str, told: Callable[[float], str]) -> Callable[[VariantResult], Cell]:
    """The mean over seeds of a figure of result.json."""

    def cell(variant: VariantResult) -> Cell:
        values = variant.values(key)
        return Cell(told(float(np.mean(values))), float(np.mean(values))) if values else Cell()

    return cell


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _cost(key: str) -> Callable[[VariantResult], Cell]:
    def cell(variant: VariantResult) -> Cell:
        cost = cost_of(variant, key)
        return Cell() if cost is None else Cell(count_text(cost), cost)

    return cell


def count_text(count: float) -> str:
    """A count as one says it: 63.1 M, 3.3e18."""
    if count >= 1e15:
        return f"{count:.2g}".replace("e+", "e")
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter}"
    return f"{count:g}"
