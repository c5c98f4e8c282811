"""The tables of a report. The main one has the form of the paper's Table 3: a variant per row, blank where it has the
base's value."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.report.findings import Compared, TestFindings
from transformer_jax.report.metrics import (
    BLEU,
    METRICS,
    PERPLEXITY,
    Metric,
    mean_and_deviation,
    p_text,
    p_title,
)
from transformer_jax.report.results import SweepResult, VariantResult
from transformer_jax.report.statistics import Difference
from transformer_jax.runs.metrics import count_text, duration


class Cell(NamedTuple):
    text: str = ""
    value: float | str | None = None  # what rows are sorted by
    detail: str = ""  # an interval, for example
    mark: str = ""  # "better" or "worse": a significant difference; "best": a mean to point out


class Column(NamedTuple):
    title: str
    cells: Sequence[Cell]
    key: str = ""
    kind: str = ""  # options, scores, differences, published or cost: these are shown and hidden together
    help: str = ""


class Row(NamedTuple):
    name: str
    note: str = ""
    group: str = ""
    is_baseline: bool = False


class Table(NamedTuple):
    rows: Sequence[Row]
    columns: Sequence[Column]  # without that of the rows' names
    names: str = "variant"  # the title of the first column
    title: str = ""
    filtered: bool = False  # whether the page has controls for its rows and columns

    @property
    def lines(self) -> list[tuple[Row, list[tuple[Column, Cell]]]]:
        """Each row with its cells."""
        return [
            (row, [(column, column.cells[number]) for column in self.columns]) for number, row in enumerate(self.rows)
        ]

    @property
    def marks(self) -> set[str]:
        return {cell.mark for column in self.columns for cell in column.cells if cell.mark}

    @property
    def costs(self) -> str:
        """What the columns of costs measure."""
        return "; ".join(f"{column.title}: {column.help}" for column in self.columns if column.kind == "cost")

    @property
    def is_unverified(self) -> bool:
        return any(cell.text.endswith(UNVERIFIED) for column in self.columns for cell in column.cells)

    def without_empty_columns(self) -> "Table":
        return self._replace(columns=[column for column in self.columns if any(cell.text for cell in column.cells)])


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
# After a published score that nobody has compared with its source.
UNVERIFIED = " ?"

Text = Callable[[float], str]
TRAINING_TIME = "training with its compilation, without start-up, validation and tests"
TOKENS_PER_SECOND = "target tokens per second, the median of log lines (compilation slows the first)"
COSTS: tuple[tuple[str, str, str, Text], ...] = (
    ("FLOPs", "training_flops", "floating-point operations for the tokens trained on, without padding", count_text),
    ("time", "train_seconds", TRAINING_TIME, duration),
    ("tokens/s", "tokens_per_second", TOKENS_PER_SECOND, "{:,.0f}".format),
    ("rate", "learning_rate", "peak learning rate", "{:.3g}".format),
)
SIZES: tuple[tuple[str, str, str, Text], ...] = (
    ("params", "parameters", "parameters", count_text),
    ("updates", "steps", "updates made", "{:,.0f}".format),
)
PUBLISHED: tuple[tuple[str, str, Text], ...] = (
    ("PPL", "perplexity", "{:g}".format),
    ("BLEU", "bleu", "{:g}".format),
    ("params", "parameters", count_text),
)


def main_table(sweep: SweepResult, findings: TestFindings) -> Table:
    """All variants on one test set."""
    variants, split = sweep.variants, findings.split
    counts = [(len(variant.measured(split)), len(variant.runs)) for variant in variants]
    columns = option_columns(sweep)
    for metric in METRICS:
        if (compared := findings.by_metric.get(metric.key)) is not None:
            columns += _score_columns(variants, compared, findings)
            columns += difference_columns(metric, compared.differences, [v.name for v in variants], findings.unit)
    columns += [_means(variants, "scores", *size) for size in SIZES]
    seeds = [Cell(f"{done}" if done == planned else f"{done} of {planned}", done) for done, planned in counts]
    columns.append(Column("seeds", seeds, "seeds", "scores", "runs with scores on this test set"))
    for title, key, text in PUBLISHED if split == sweep.tests[0] else ():
        if any(key in variant.published for variant in variants):
            cells = [published_cell(variant, key, text) for variant in variants]
            columns.append(Column(f"{title} publ.", cells, f"published_{key}", "published", "the published score"))
    columns += [_means(variants, "cost", *cost) for cost in COSTS]
    rows = [Row(v.name, v.note, v.group, v.name == sweep.baseline) for v in variants]
    return Table(rows, columns, filtered=True)


def number_cell(value: float | None, text: Text) -> Cell:
    return Cell() if value is None else Cell(text(value), value)


def published_cell(variant: VariantResult, key: str, text: Text) -> Cell:
    """A published score, marked if it is not verified."""
    cell = number_cell(variant.published.get(key), text)
    return cell._replace(text=cell.text + UNVERIFIED) if cell.text and key in variant.unverified else cell


def difference_cell(metric: Metric, found: Difference | None) -> Cell:
    """A difference from the baseline with its interval, marked if it is significant."""
    if found is None:
        return Cell()
    return Cell(metric.change(found.value), found.value, metric.interval(found), metric.mark(found))


def difference_columns(
    metric: Metric, differences: Mapping[str, Difference], names: Sequence[str], unit: str = ""
) -> list[Column]:
    """The differences of the named variants from the baseline with their intervals, and the corrected p-values."""
    if not differences:
        return []
    about = {
        BLEU: "difference from the baseline",
        PERPLEXITY: f"log-perplexity per {unit}, as a change in percent; lower is better",
    }.get(metric, "difference from the baseline in percentage points")
    p_about = f"{metric.title}: corrected for all comparisons of the column (Bonferroni)"
    found = [differences.get(name) for name in names]
    cells = [difference_cell(metric, d) for d in found]
    p_cells = [Cell(p_text(d.corrected_p), d.corrected_p) if d else Cell() for d in found]
    return [
        Column(f"Δ {metric.title}", cells, f"{metric.key}_difference", "differences", about),
        Column(p_title(len(differences)), p_cells, f"{metric.key}_p", "differences", p_about),
    ]


def option_columns(sweep: SweepResult) -> list[Column]:
    """A column for each option that differs anywhere, including d_k and d_v where they follow from others."""
    base = _resolved(sweep.base, {})
    resolved = [_resolved(sweep.base, variant.changes) for variant in sweep.variants]
    varied = {path for values in resolved for path, value in values.items() if value != base.get(path)}

    def cell(variant: VariantResult, value: Any, default: Any) -> Cell:
        text = _text(value)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        is_shown = variant.name == sweep.baseline or value != default
        return Cell(text if is_shown else "", value if is_number else text)

    columns = []
    for path in [*(path for path in PAPER_ORDER if path in varied), *sorted(varied - {*PAPER_ORDER, *WITHOUT_COLUMN})]:
        cells = [cell(v, values.get(path), base.get(path)) for v, values in zip(sweep.variants, resolved, strict=True)]
        columns.append(Column(SYMBOLS.get(path, path.rpartition(".")[2]), cells, path, "options", path))
    return columns


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


def _score_columns(variants: Sequence[VariantResult], compared: Compared, findings: TestFindings) -> list[Column]:
    """BLEU; or perplexity per token, and per word where that is compared."""

    def column(title: str, key: str, scores: Mapping[str, Sequence[float]], about: str) -> Column:
        leading = compared.leading if scores is compared.scores else frozenset()
        cells = [score_cell(scores.get(variant.name, ()), key, variant.name in leading) for variant in variants]
        return Column(title, cells, key, "scores", about)

    if compared.metric is BLEU:
        return [column("BLEU", "bleu", compared.scores, findings.signature)]
    columns = [column("PPL", "perplexity", findings.token_perplexity, "perplexity per token")]
    if findings.unit == "word":
        about = "perplexity per word: vocabularies differ"
        columns.append(column("PPL/word", "word_perplexity", findings.word_perplexity, about))
    return columns


def score_cell(seeds: Sequence[float], key: str, is_leading: bool) -> Cell:
    """The mean over seeds, with the standard deviation."""
    if not seeds:
        return Cell()
    mean = float(np.mean(seeds))
    text, sign, spread = mean_and_deviation(seeds, _form(key, mean)).partition(" ±")
    return Cell(text, mean, f"{sign}{spread}".strip(), "best" if is_leading else "")


def _form(key: str, mean: float) -> str:
    if key == "bleu" or 10 <= mean < 100:
        return ".2f"
    return ".3f" if mean < 10 else ",.1f" if mean < 1e5 else ".1e"


def _means(variants: Sequence[VariantResult], kind: str, title: str, key: str, about: str, text: Text) -> Column:
    """The means over seeds of a number of result.json."""
    return Column(title, [number_cell(variant.mean(key), text) for variant in variants], key, kind, about)
