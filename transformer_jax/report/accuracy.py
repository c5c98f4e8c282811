"""Exact match in a report: of every variant, by group of examples, and by the length of the target."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.report.figures import Curve, Curves, curves_by_group
from transformer_jax.report.findings import Compared, TestFindings
from transformer_jax.report.metrics import EXACT_MATCH, mean_and_deviation
from transformer_jax.report.results import Measured, SweepResult
from transformer_jax.report.table import Cell, Column, Row, Table, difference_columns, published_cell

# More lengths are joined into ranges, at most this many on each side of the longest training target.
MOST_RANGES = 12


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """Exact match on one test set. `runs` are those that have it, by variant."""

    findings: TestFindings
    compared: Compared
    runs: Mapping[str, Sequence[Measured]]
    longest: int | None  # tokens of the longest training target of runs with these lengths, if known
    tables: Sequence[Table]
    curves: Sequence[Curves]

    @property
    def note(self) -> str:
        if not self.curves:
            return ""
        return f"The longest target in training has {self.longest:,} tokens: the dashed line."

    def to_json(self) -> dict[str, Any]:
        """Right and total of every seed."""
        exact = {name: [run.exact for run in same if run.exact] for name, same in self.runs.items()}
        return {
            "split": self.findings.split,
            "total": self.findings.sentences,
            "longest_training_target": self.longest,
            "right": {name: [int(seed.right_N.sum()) for seed in seeds] for name, seeds in exact.items()},
            "groups": {name: [seed.groups for seed in seeds] for name, seeds in exact.items()},
            "differences": {name: d.to_json() for name, d in self.compared.differences.items()},
        }


def accuracies(sweep: SweepResult, tests: Sequence[TestFindings]) -> list[Accuracy]:
    """One for each test set on which any translation is right, or whose examples have labels."""
    return [_on(sweep, findings) for findings in tests if EXACT_MATCH.key in findings.by_metric]


def _on(sweep: SweepResult, findings: TestFindings) -> Accuracy:
    compared = findings.by_metric[EXACT_MATCH.key]
    runs = {name: findings.runs[name] for name in compared.scores}
    first = next(iter(runs.values()))[0]
    lengths_N, longest = first.tokens_N.astype(int) - 1, _longest(sweep, findings.split, first)  # without <eos>
    labels = dict.fromkeys(label for same in runs.values() for run in same if run.exact for label in run.exact.groups)
    tables = [_variants(sweep, findings, compared), *(_by_group(runs, label) for label in labels)]
    curves: list[Curves] = []
    if longest is not None and lengths_N.max() > longest:
        tables.append(_by_length(runs, lengths_N, longest))
        curves = _curves(sweep, runs, lengths_N, longest)
    return Accuracy(findings, compared, runs, longest, tables, curves)


def _longest(sweep: SweepResult, split: str, first: Measured) -> int | None:
    """Of runs that were tested on the same examples and divide them into as many tokens."""
    limits = [
        limit
        for run in sweep.runs
        if (measured := run.measured.get(split)) is not None
        and measured.digest == first.digest
        and np.array_equal(measured.tokens_N, first.tokens_N)
        and (limit := run.number("longest_target")) is not None
    ]
    return int(max(limits)) - 1 if limits else None


def _variants(sweep: SweepResult, findings: TestFindings, compared: Compared) -> Table:
    """Every variant with its difference from the baseline."""
    variants = [variant for variant in sweep.variants if variant.name in compared.scores]
    names = [variant.name for variant in variants]
    cells = [_cell(compared.scores[name])._replace(mark="best" * (name in compared.leading)) for name in names]
    about = f"equal to the reference, of {findings.sentences:,}; mean and deviation over seeds"
    columns = [Column("exact %", cells, help=about)]
    columns += difference_columns(EXACT_MATCH, compared.differences, names)
    if findings.split == sweep.tests[0] and any(EXACT_MATCH.key in variant.published for variant in variants):
        published = [published_cell(variant, EXACT_MATCH.key, "{:g}".format) for variant in variants]
        columns.append(Column("publ.", published, help="the published score"))
    return Table([Row(name, is_baseline=name == sweep.baseline) for name in names], columns)


def _cell(rates: Sequence[float]) -> Cell:
    known = [rate for rate in rates if math.isfinite(rate)]
    return Cell(mean_and_deviation(known, ".1f"), float(np.mean(known))) if known else Cell()


def _columns(
    runs: Mapping[str, Sequence[Measured]], rates: Sequence[Callable[[Measured], float]], totals: Sequence[Cell]
) -> list[Column]:
    """A column of examples, and one for each variant; a row for each rate, in percent."""
    columns = [Column("examples", totals)]
    for name, same in runs.items():
        columns.append(Column(name, [_cell([100 * rate(run) for run in same]) for rate in rates]))
    return columns


def _by_group(runs: Mapping[str, Sequence[Measured]], label: str) -> Table:
    """Groups of one label by variants."""
    totals: dict[str, set[int]] = {}  # several where groups depend on what a run was trained on
    for exact in (run.exact for same in runs.values() for run in same if run.exact):
        for value, (_, total) in exact.groups.get(label, {}).items():
            totals.setdefault(value, set()).add(total)

    def rate(value: str) -> Callable[[Measured], float]:
        def share(run: Measured) -> float:
            right, total = run.exact.groups.get(label, {}).get(value, (0, 0)) if run.exact else (0, 0)
            return right / total if total else math.nan

        return share

    values = sorted(totals)
    counts = [Cell(" or ".join(f"{n:,}" for n in sorted(totals[value])), max(totals[value])) for value in values]
    columns = _columns(runs, [rate(value) for value in values], counts)
    return Table([Row(value) for value in values], columns, label, f"Exact match by {label}, %")


def _rate_inside(inside_N: np.ndarray) -> Callable[[Measured], float]:
    return lambda run: float(run.exact.right_N[inside_N].mean()) if run.exact else math.nan


def _by_length(runs: Mapping[str, Sequence[Measured]], lengths_N: np.ndarray, longest: int) -> Table:
    """Lengths of targets by variants, in ranges that end where the training's lengths do."""
    lengths = np.unique(lengths_N)
    known = lengths.searchsorted(longest, side="right")
    sides = [side for side in (lengths[:known], lengths[known:]) if len(side)]
    ranges = [part for side in sides for part in np.array_split(side, min(MOST_RANGES, len(side)))]
    inside = [np.isin(lengths_N, part) for part in ranges]
    rows = []
    for part in ranges:
        title = f"{part[0]:,}" if len(part) == 1 else f"{part[0]:,} to {part[-1]:,}"
        rows.append(Row(title, "longer than in training" * bool(part[0] > longest)))
    counts = [Cell(f"{inside_N.sum():,}", int(inside_N.sum())) for inside_N in inside]
    columns = _columns(runs, [_rate_inside(inside_N) for inside_N in inside], counts)
    return Table(rows, columns, "tokens of the target", "Exact match by the length of the target, %")


def _curves(
    sweep: SweepResult, runs: Mapping[str, Sequence[Measured]], lengths_N: np.ndarray, longest: int
) -> list[Curves]:
    """Exact match over the length of the target, each length by itself."""
    lengths = np.unique(lengths_N)
    found = {}
    for name, same in runs.items():
        rates_RL = np.array([[100 * _rate_inside(lengths_N == n)(run) for n in lengths] for run in same])
        found[name] = Curve.over_seeds(name, lengths.tolist(), rates_RL, name == sweep.baseline)
    return curves_by_group(sweep, found, "exact match, %", x="tokens of the target", limit=longest)
