"""Exact match by group of examples, and by the length of the target."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.report.findings import TestFindings
from transformer_jax.report.metrics import EXACT_MATCH
from transformer_jax.report.results import Exact, SweepResult
from transformer_jax.report.table import Cell, Column, Row, Table, score_cell

# More lengths are joined into ranges, at most this many on each side of the longest training target.
MOST_RANGES = 12
# The right examples and all of them, by group.
Counts = Mapping[str, tuple[int, int]]


class Accuracy(NamedTuple):
    """Exact match on one test set."""

    findings: TestFindings
    exact: Mapping[str, Sequence[Exact]]  # of the seeds of each variant
    longest: int | None  # tokens of the longest training target of runs with these lengths, if known
    tables: Sequence[Table]

    def to_json(self) -> dict[str, Any]:
        """Right and total of every seed."""
        return {
            "split": self.findings.split,
            "total": self.findings.sentences,
            "longest_training_target": self.longest,
            "right": {name: [int(seed.right_N.sum()) for seed in seeds] for name, seeds in self.exact.items()},
            "groups": {name: [seed.groups for seed in seeds] for name, seeds in self.exact.items()},
            "differences": self.findings.by_metric[EXACT_MATCH.key].to_json(),
        }


def accuracies(sweep: SweepResult, tests: Sequence[TestFindings]) -> list[Accuracy]:
    """One for each test set on which any translation is right, or whose examples have labels."""
    return [_on(sweep, findings) for findings in tests if EXACT_MATCH.key in findings.by_metric]


def _on(sweep: SweepResult, findings: TestFindings) -> Accuracy:
    names = findings.by_metric[EXACT_MATCH.key].scores
    exact = {name: [run.exact for run in findings.runs[name] if run.exact] for name in names}
    # The lengths in tokens are those of the first variant; others may divide the same targets into other tokens.
    variant = next(variant for variant in sweep.variants if variant.name in exact)
    lengths_N = findings.runs[variant.name][0].tokens_N.astype(int) - 1  # without <eos>
    limits = [limit for run in variant.finished if (limit := run.number("longest_target")) is not None]
    longest = int(max(limits)) - 1 if limits else None
    tables = []
    for label in dict.fromkeys(label for seeds in exact.values() for seed in seeds for label in seed.groups):
        tables.append(_by_group(label, {n: [seed.groups.get(label, {}) for seed in s] for n, s in exact.items()}))
    if longest is not None and lengths_N.max() > longest:
        ranges = _ranges(lengths_N, longest)

        def counts(seed: Exact) -> Counts:
            return {name: (int(seed.right_N[in_N].sum()), int(in_N.sum())) for name, in_N in ranges.items()}

        groups = {name: [counts(seed) for seed in seeds] for name, seeds in exact.items()}
        tables.append(_by_group("tokens of the target", groups, [*ranges]))
    return Accuracy(findings, exact, longest, tables)


def _by_group(label: str, groups: Mapping[str, Sequence[Counts]], order: Sequence[str] | None = None) -> Table:
    """Groups of one label by variants, in percent."""
    values = order or sorted({value for same in groups.values() for counts in same for value in counts})
    examples = []
    for value in values:  # several totals where groups depend on what a run was trained on
        totals = sorted({counts[value][1] for same in groups.values() for counts in same if value in counts})
        examples.append(Cell(" or ".join(f"{total:,}" for total in totals), totals[-1]))
    columns = [Column("examples", examples)]
    for name, same in groups.items():
        rates = [[100 * c[value][0] / max(c[value][1], 1) for c in same if value in c] for value in values]
        columns.append(Column(name, [score_cell(seeds) for seeds in rates]))
    return Table([Row(value) for value in values], columns, label, f"Exact match by {label}, %")


def _ranges(lengths_N: np.ndarray, longest: int) -> dict[str, np.ndarray]:
    """The examples of each range of lengths, by its name; ranges end where the training's lengths do."""
    lengths = np.unique(lengths_N)
    known = lengths.searchsorted(longest, side="right")
    ranges = {}
    for side, note in ((lengths[:known], ""), (lengths[known:], " (longer than in training)")):
        for part in np.array_split(side, min(MOST_RANGES, len(side))) if len(side) else ():
            name = f"{part[0]:,}" if len(part) == 1 else f"{part[0]:,} to {part[-1]:,}"
            ranges[name + note] = np.isin(lengths_N, part)
    return ranges
