"""The tables of a report. The main one has the form of the paper's Table 3: a variant per row, blank where it has the
base's value."""

import collections
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.report.findings import Compared, Family, TestFindings
from transformer_jax.report.metrics import EXACT_MATCH, deviation, metrics_of, p_text
from transformer_jax.report.results import IN_CURVES, LOGGED, SweepResult
from transformer_jax.report.statistics import Difference
from transformer_jax.runs.metrics import count_text, duration


class Cell(NamedTuple):
    text: str = ""
    value: float | str | None = None  # what rows are sorted by
    detail: str = ""  # an interval, for example
    mark: str = ""  # "better" or "worse": a significant difference


class Column(NamedTuple):
    title: str
    cells: Sequence[Cell]
    key: str = ""
    kind: str = ""  # options, scores, differences, verdict, published or cost: these are shown and hidden together
    in_latex: str = ""  # "always", or where its cells "vary"
    help: str = ""  # what it is, of options and costs


class Row(NamedTuple):
    name: str
    note: str = ""
    group: str = ""
    is_baseline: bool = False
    label: str = ""  # its name in LaTeX, if another


class Table(NamedTuple):
    rows: Sequence[Row]
    columns: Sequence[Column]  # without the column of the rows' names
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
    def has_unverified(self) -> bool:
        return any(cell.text.endswith(UNVERIFIED) for column in self.columns for cell in column.cells)

    def for_latex(self, patterns: Sequence[str] = ()) -> "Table":
        """The columns that a paper has room for, or those whose keys match, in the order of the patterns."""
        if patterns:
            chosen = [c.key for pattern in patterns for c in self.columns if fnmatch.fnmatch(c.key, pattern)]
            by_key = {column.key: column for column in self.columns}
            return self._replace(columns=[by_key[key] for key in dict.fromkeys(chosen)])
        varying = [column for column in self.columns if len({cell.text for cell in column.cells}) > 1]
        shown = [c for c in self.columns if c.in_latex == "always" or (c.in_latex and c in varying)]
        return self._replace(columns=shown)

    def without_empty_columns(self) -> "Table":
        return self._replace(columns=[column for column in self.columns if any(cell.text for cell in column.cells)])


STATE_NAMES = {"waiting": "never started", "not evaluated": "not evaluated on all test sets"}
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
# Larger means are shown with two digits, as perplexities of runs that diverged: without given decimals, and with them.
LONGEST, LONGEST_GIVEN = 1e5, 1e9
# After a published score that nobody has compared with its source.
UNVERIFIED = " ?"

Text = Callable[[float], str]
TRAINING_TIME = "training without compilation, start-up, validation and tests"
TOKENS_PER_SECOND = "target tokens per second, the median of log lines (compilation slows the first)"


class Quantity(NamedTuple):
    """A number of every run, `RunResult.number(key)`: its columns in the tables and in table.csv, means over seeds."""

    key: str
    title: str
    text: Text
    kind: str
    in_latex: str = ""
    help: str = ""


FLOPS = "floating-point operations of training, without padding"
QUANTITIES = (
    Quantity("steps", "updates", "{:,.0f}".format, "scores", "vary"),
    Quantity("parameters", "params", count_text, "scores", "always"),
    Quantity("training_flops", "FLOPs", count_text, "cost", help=FLOPS),
    Quantity("train_seconds", "time", duration, "cost", help=TRAINING_TIME),
    Quantity("tokens_per_second", "tokens/s", "{:,.0f}".format, "cost", help=TOKENS_PER_SECOND),
    Quantity("learning_rate", "rate", "{:.3g}".format, "cost", help="peak learning rate"),
)
PUBLISHED = (
    Quantity("perplexity", "PPL publ.", "{:g}".format, "published"),
    Quantity("bleu", "BLEU publ.", "{:g}".format, "published"),
    Quantity("parameters", "params publ.", count_text, "published"),
    Quantity("exact_match", "exact publ.", "{:g}".format, "published"),
)


def records(sweep: SweepResult, findings: TestFindings) -> list[dict[str, Any]]:
    """Every variant on one test set as the columns of table.csv, from which the other forms of the table are made."""
    options = option_columns(sweep)
    differences = {key: compared.to_json() for key, compared in findings.by_metric.items()}
    found = []
    for number, variant in enumerate(sweep.variants):
        record: dict[str, Any] = {"test": findings.split, "group": variant.group, "variant": variant.name}
        record["note"] = variant.note
        record |= {f"published_{quantity.key}": variant.published.get(quantity.key) for quantity in PUBLISHED}
        record |= {column.key: column.cells[number].text for column in options}
        record |= {quantity.key: variant.mean(quantity.key) for quantity in QUANTITIES}
        record["seeds"] = len(variant.measured(findings.split))
        for name, scores in findings.scores.items():
            values = scores.get(variant.name, ())
            record |= {f"{name}_mean": float(np.mean(values)) if values else None, f"{name}_sd": deviation(values)}
        for key, compared in findings.by_metric.items():
            prefix = "log_perplexity" if compared.metric.is_ratio else key
            numbers = differences[key].get(variant.name, {})
            record |= {f"{prefix}_difference_{name}": value for name, value in numbers.items() if name != "seeds"}
        found.append(record)
    return found


def contrast_records(findings: TestFindings) -> list[dict[str, Any]]:
    """The rows of contrasts.csv: what is asked besides the differences from the baseline."""
    return [
        {"test": findings.split, "family": family.key, "contrast": name, "metric": metric, "role": compared.role}
        | {key: value for key, value in numbers.items() if key != "seeds"}
        for family in findings.families[1:]
        for metric, compared in findings.by_metric.items()
        for name, numbers in compared.to_json(family.key).items()
    ]


def score_records(sweep: SweepResult) -> list[dict[str, Any]]:
    """The rows of runs.csv: each score of each run, for pandas, R and rliable."""
    factors = sorted({name for variant in sweep.variants for name in variant.levels})
    return [
        {"variant": run.variant, "seed": run.seed, "test": split, "metric": metric, "score": score}
        | {"updates": run.step}
        | {f"level_{factor}": variant.levels.get(factor, "") for factor in factors}
        for variant in sweep.variants
        for run in variant.runs
        for split, measured in run.measured.items()
        for metric, score in measured.scores.items()
    ]


def curve_records(sweep: SweepResult) -> list[dict[str, Any]]:
    """The rows of curves.csv: what each run logged, and found on validation data, while it was trained."""
    return [
        {"variant": run.variant, "seed": run.seed, "updates": line["step"]}
        | {name: value for name, value in line.items() if name in IN_CURVES or name not in LOGGED}
        for run in sweep.runs
        for line in run.lines
    ]


def family_table(findings: TestFindings, family: Family) -> Table:
    """Contrasts by every metric."""
    columns = []
    for compared in findings.by_metric.values():
        if found := compared.families.get(family.key):
            columns += _difference_columns(compared, [found.get(name) for name in family.contrasts])
    return Table([Row(name) for name in family.contrasts], columns, "contrast", family.title)


def main_table(sweep: SweepResult, findings: TestFindings, rows: Sequence[Mapping[str, Any]]) -> Table:
    """All variants on one test set; `rows` are their records."""
    columns = option_columns(sweep)
    for compared in findings.by_metric.values():
        columns += _columns_of(compared, findings, rows)
    columns += quantity_columns(rows, "scores")
    counts = [(row["seeds"], len(variant.runs)) for row, variant in zip(rows, sweep.variants, strict=True)]
    seeds = [Cell(f"{done}" if done == planned else f"{done} of {planned}", done) for done, planned in counts]
    columns.append(Column("seeds", seeds, "seeds", "scores", "vary"))
    for key, title, text, kind, *_ in PUBLISHED if findings.split == sweep.tests[0] else ():
        marks = [UNVERIFIED * (key in variant.unverified) for variant in sweep.variants]
        cells = [number_cell(v.published.get(key), text, mark) for v, mark in zip(sweep.variants, marks, strict=True)]
        columns.append(Column(title, cells, f"published_{key}", kind))
    columns += quantity_columns(rows, "cost")
    names = [Row(v.name, v.note, v.group, v.name == sweep.baseline, v.label) for v in sweep.variants]
    return Table(names, columns, filtered=True)


def runs_table(sweep: SweepResult) -> Table:
    """Every run, in whatever state."""
    runs = sweep.runs
    numbers = [{quantity.key: run.number(quantity.key) for quantity in QUANTITIES} for run in runs]
    columns = [Column("state", [Cell(STATE_NAMES.get(run.state, run.state), run.state) for run in runs], kind="left")]
    columns += quantity_columns(numbers, "scores", "cost")
    for split, metric in ((test, metric) for test in sweep.tests for metric in metrics_of(sweep, test)):
        found = [run.measured[split].scores if split in run.measured else {} for run in runs]
        scores = [[each[metric.key]] if metric.key in each else [] for each in found]
        cells = score_cells(scores, metric.score_decimals)
        columns.append(Column(f"{metric.title} {split}", cells))
    return Table([Row(run.name) for run in runs], columns, "run")


def quantity_columns(rows: Sequence[Mapping[str, Any]], *kinds: str) -> list[Column]:
    return [
        Column(title, [number_cell(row[key], text) for row in rows], key, kind, in_latex, about)
        for key, title, text, kind, in_latex, about in QUANTITIES
        if kind in kinds
    ]


def number_cell(value: float | None, text: Text, mark: str = "") -> Cell:
    return Cell() if value is None else Cell(text(value) + mark, value)


def score_cells(rows: Sequence[Sequence[float]], decimals: int | None = None) -> list[Cell]:
    """The means over seeds, with standard deviations; in a column all with the same number of decimals."""
    means = [float(np.mean(seeds)) if seeds else None for seeds in rows]
    longest = LONGEST if decimals is None else LONGEST_GIVEN
    if decimals is None:
        decimals = 3 if max((mean for mean in means if mean is not None), default=0.0) < 10 else 2
    return [_score_cell(seeds, mean, f".{decimals}f", longest) for seeds, mean in zip(rows, means, strict=True)]


def _score_cell(seeds: Sequence[float], mean: float | None, usual: str, longest: float) -> Cell:
    if mean is None:
        return Cell()
    spread, form = deviation(seeds), usual if abs(mean) < longest else ".1e"
    return Cell(f"{mean:{form}}".replace("-", "−", mean < 0), mean, "" if spread is None else f"± {spread:{form}}")


def _columns_of(compared: Compared, findings: TestFindings, rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """The scores by a metric, and the differences from the baseline.

    Of perplexity the scores per token, and per word where these are compared.
    """
    metric, names = compared.metric, [row["variant"] for row in rows]
    role = f" ({compared.role})" if compared.role else ""
    titles = {metric.key: "exact %" if metric.key == EXACT_MATCH.key else metric.title}
    if metric.is_ratio and findings.unit == "word":
        titles["word_perplexity"] = "PPL/word"
    columns = []
    for key, title in titles.items():
        cells = score_cells([findings.scores[key].get(name, ()) for name in names], metric.score_decimals)
        columns.append(Column(title + role, cells, key, "scores", "always" * (key == [*titles][-1])))
    if compared.differences:
        of_metric = _difference_columns(compared, [compared.differences.get(name) for name in names])
        # A paper has room for the differences that answer its question.
        has_primary = any(other.role == "primary" and other.differences for other in findings.by_metric.values())
        is_left_out = has_primary and compared.role != "primary"
        columns += [column._replace(in_latex="") for column in of_metric] if is_left_out else of_metric
    return columns


def _difference_columns(compared: Compared, found: Sequence[Difference | None]) -> list[Column]:
    """Differences with their intervals, the corrected p-values and, where a margin is declared, the verdicts."""
    metric = compared.metric
    p_title = "p (corrected)" if sum(difference is not None for difference in found) > 1 else "p"
    cells = [Cell(metric.change(d.value), d.value, metric.interval(d), metric.mark(d)) if d else Cell() for d in found]
    p_cells = [Cell(p_text(d.corrected_p), d.corrected_p) if d else Cell() for d in found]
    columns = [
        Column(f"Δ {metric.title}", cells, f"{metric.key}_difference", "differences", "always"),
        Column(p_title, p_cells, f"{metric.key}_p", "differences"),
    ]
    if compared.margin is not None:
        verdicts = [Cell(verdict, verdict) for verdict in (metric.verdict(d) if d else "" for d in found)]
        margin = f"within ±{metric.margin_text(compared.margin)}"
        columns.append(Column(margin, verdicts, f"{metric.key}_verdict", "verdict", "always"))
    return columns


def option_columns(sweep: SweepResult) -> list[Column]:
    """A column for each option that differs anywhere, including d_k and d_v where they follow from others."""
    base = _resolved(sweep.options, {})
    baseline = next((variant.changes for variant in sweep.variants if variant.name == sweep.baseline), {})
    compared = _resolved(sweep.options, baseline)
    resolved = [_resolved(sweep.options, variant.changes) for variant in sweep.variants]
    varied = {path for values in resolved for path, value in values.items() if value != base.get(path)}
    paths = [*(path for path in PAPER_ORDER if path in varied), *sorted(varied - {*PAPER_ORDER, *WITHOUT_COLUMN})]
    ends = collections.Counter(path.rpartition(".")[2] for path in paths)
    columns = []
    for path in paths:
        end = path.rpartition(".")[2]
        cells = []
        for variant, values in zip(sweep.variants, resolved, strict=True):
            value = values.get(path, "")  # where the stacks differ, there is no N
            text = "none" if value is None or value == {} else f"{value:g}" if isinstance(value, float) else str(value)
            text = text if len(text) <= WIDEST_CELL else text[: WIDEST_CELL - 1] + "…"
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            is_shown = value != compared.get(path) or variant.name == sweep.baseline
            cells.append(Cell(text if is_shown else "", value if is_number else text))
        columns.append(Column(SYMBOLS.get(path, end if ends[end] == 1 else path), cells, path, "options", help=path))
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
