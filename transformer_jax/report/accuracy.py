"""Exact match in a report: of every variant, by group of examples, and by the length of the target."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.report.curves import figures_of
from transformer_jax.report.document import Block, Cell, Column, Figure, Figures, Heading, Row, Table, Text, number_cell
from transformer_jax.report.figures import Curve, Curves, curves
from transformer_jax.report.findings import TestFindings, titled
from transformer_jax.report.metrics import EXACT_MATCH, mean_and_deviation, p_text, p_title
from transformer_jax.report.results import Exact, Measured, RunResult, SweepResult
from transformer_jax.report.statistics import Difference, compare, share_scores
from transformer_jax.report.summary import Compared
from transformer_jax.report.table import difference_cell

# More lengths are joined into ranges, at most this many on each side of the longest training target.
MOST_RANGES = 12
PUBLISHED = "exact_match"  # a variant's score on the first test set


class Accuracy(NamedTuple):
    """Exact match on one test set."""

    split: str
    name: str
    runs: Mapping[str, Sequence[Exact]]  # by variant, one for each seed
    differences: Mapping[str, Difference]  # from the baseline, in percentage points
    lengths_N: np.ndarray  # tokens of each target
    longest: int | None  # tokens of the longest training target of runs with these lengths, if known

    def rates(self, share: Callable[[Exact], float]) -> dict[str, list[float]]:
        """A share of the right examples of each seed, in percent, by variant."""
        return {name: [100 * share(exact) for exact in seeds] for name, seeds in self.runs.items()}

    @property
    def groups(self) -> dict[str, dict[str, set[int]]]:
        """The numbers of examples of every group, by label: several where it depends on what a run was trained on."""
        found: dict[str, dict[str, set[int]]] = {}
        for exact in (exact for seeds in self.runs.values() for exact in seeds):
            for label, by_value in exact.groups.items():
                for value, (_, total) in by_value.items():
                    found.setdefault(label, {}).setdefault(value, set()).add(total)
        return found

    def ranges(self) -> list[np.ndarray]:
        """The lengths of the targets in ranges, which end where the training's lengths do."""
        lengths = np.unique(self.lengths_N)
        known = lengths.searchsorted(self.longest, side="right") if self.longest is not None else len(lengths)
        return [
            part
            for side in (lengths[:known], lengths[known:])
            for part in np.array_split(side, min(MOST_RANGES, len(side)) or 1)
            if len(part)
        ]


def accuracies(sweep: SweepResult, tests: Sequence[TestFindings]) -> list[Accuracy]:
    """Of the test sets with groups, and of those on which any translation equals its reference."""
    found = [each for findings in tests if (each := _on(sweep, findings.split)) is not None]
    return [
        each
        for each in found
        if each.groups or any(exact.right_N.any() for seeds in each.runs.values() for exact in seeds)
    ]


def _on(sweep: SweepResult, split: str) -> Accuracy | None:
    every = {v.name: [run.measured[split] for run in v.finished if split in run.measured] for v in sweep.variants}
    measured = [each for same in every.values() for each in same if each.exact is not None]
    if not measured:
        return None
    first = next((each for each in every.get(sweep.baseline, ()) if each.exact is not None), measured[0])
    runs = {
        name: [each.exact for each in same if each.exact is not None and each.digest == first.digest]
        for name, same in every.items()
    }
    runs = {name: same for name, same in runs.items() if same}
    limits = [
        limit
        for run in sweep.runs
        if run.finished and (limit := run.number("longest_target")) is not None and _is_counted_alike(run, split, first)
    ]
    longest = int(max(limits)) - 1 if limits else None  # without <eos>
    return Accuracy(split, first.test_set, runs, _differences(sweep, runs), first.tokens_N.astype(int) - 1, longest)


def _is_counted_alike(run: RunResult, split: str, first: Measured) -> bool:
    """Whether a run was tested on the same examples as `first` and divides them into as many tokens."""
    measured = run.measured.get(split)
    return (
        measured is not None and measured.digest == first.digest and np.array_equal(measured.tokens_N, first.tokens_N)
    )


def _differences(sweep: SweepResult, runs: Mapping[str, Sequence[Exact]]) -> dict[str, Difference]:
    names = list(runs)
    pairs = [(v.name, v.baseline) for v in sweep.variants if v.name in runs and v.baseline in runs]
    every = [exact for same in runs.values() for exact in same]
    if len(np.unique(every[0].clusters_N)) < 2:
        return {}
    ends = np.cumsum([len(same) for same in runs.values()])
    members = [group.tolist() for group in np.split(np.arange(len(every)), ends[:-1])]
    scores = share_scores(np.stack([exact.right_N for exact in every]), every[0].clusters_N)
    found = compare(scores, members, [(names.index(name), names.index(baseline)) for name, baseline in pairs])
    return {name: difference for (name, _), difference in zip(pairs, found, strict=True)}


def compared(found: Sequence[Accuracy], split: str, baseline: str) -> list[Compared]:
    """The differences on a test set; empty if there are none."""
    here = [each for each in found if each.split == split and each.differences]
    rates = [each.rates(lambda exact: float(exact.right_N.mean())).get(baseline) for each in here]
    return [
        Compared(EXACT_MATCH, "Exact match (points)", each.differences, float(np.mean(rate)) if rate else None)
        for each, rate in zip(here, rates, strict=True)
    ]


def blocks(sweep: SweepResult, found: Sequence[Accuracy]) -> list[Block]:
    """The report's part about exact match, on the test sets of `found`."""
    result: list[Block] = []
    for accuracy in found:
        result += [Heading(f"On {titled(accuracy.split, accuracy.name)}"), _variants(sweep, accuracy)]
        result += [_by_group(accuracy, label) for label in accuracy.groups]
        if accuracy.longest is not None and accuracy.lengths_N.max() > accuracy.longest:
            about = f"The longest target in training has {accuracy.longest:,} tokens: the dashed line."
            result += [Text(about), _by_length(accuracy), Figures(_figures(sweep, accuracy))]
    return result


def _variants(sweep: SweepResult, accuracy: Accuracy) -> Table:
    """Every variant with its difference from the baseline."""
    rows, is_first = [], accuracy.split == sweep.tests[0]
    published = {v.name: v.published[PUBLISHED] for v in sweep.variants if is_first and PUBLISHED in v.published}
    every = accuracy.rates(lambda exact: float(exact.right_N.mean()))
    best = EXACT_MATCH.best(every, accuracy.differences)
    for name, rates in every.items():
        difference = accuracy.differences.get(name)
        mean = _cell(rates)._replace(mark="best" if name == best else "")
        cells = [mean, Cell(), Cell(), number_cell(published.get(name), "{:g}".format)]
        if difference is not None:
            cells[1] = difference_cell(EXACT_MATCH, difference)
            cells[2] = Cell(p_text(difference.corrected_p), difference.corrected_p)
        rows.append(Row(name, cells, is_baseline=name == sweep.baseline))
    clusters_N = next(iter(accuracy.runs.values()))[0].clusters_N
    unit = "examples" if len(np.unique(clusters_N)) == len(clusters_N) else "clusters of examples"
    titles = {
        "exact %": f"equal to the reference, of {len(accuracy.lengths_N):,}; mean and deviation over seeds",
        "Δ exact": f"difference from the baseline in percentage points; intervals account for seeds and {unit}",
        p_title(len(accuracy.differences)): "corrected for all comparisons of the column (Bonferroni)",
        "publ.": "the published score",
    }
    if not published:
        del titles["publ."]
        rows = [row._replace(cells=row.cells[:-1]) for row in rows]
    return Table([Column(title, help=about) for title, about in titles.items()], rows)


def _cell(rates: Sequence[float]) -> Cell:
    known = [rate for rate in rates if math.isfinite(rate)]
    return Cell(mean_and_deviation(known, ".1f"), float(np.mean(known))) if known else Cell()


def _share_of_group(exact: Exact, label: str, value: str) -> float:
    right, total = exact.groups.get(label, {}).get(value, (0, 0))
    return right / total if total else math.nan


def _share_inside(exact: Exact, inside_N: np.ndarray) -> float:
    return float(exact.right_N[inside_N].mean())


def _by_group(accuracy: Accuracy, label: str) -> Table:
    """Groups of one label by variants."""
    rows = []
    for value, totals in sorted(accuracy.groups[label].items()):
        rates = accuracy.rates(partial(_share_of_group, label=label, value=value))
        counts = " or ".join(f"{total:,}" for total in sorted(totals))
        rows.append(Row(value, [Cell(counts, max(totals)), *map(_cell, rates.values())]))
    return Table([Column("examples"), *map(Column, accuracy.runs)], rows, label, f"Exact match by {label}, %")


def _by_length(accuracy: Accuracy) -> Table:
    """Lengths of targets by variants."""
    rows = []
    for part in accuracy.ranges():
        inside_N = np.isin(accuracy.lengths_N, part)
        rates = accuracy.rates(partial(_share_inside, inside_N=inside_N))
        title = f"{part[0]:,}" if len(part) == 1 else f"{part[0]:,} to {part[-1]:,}"
        note = "longer than in training" if accuracy.longest is not None and part[0] > accuracy.longest else ""
        total = int(inside_N.sum())
        rows.append(Row(title, [Cell(f"{total:,}", total), *map(_cell, rates.values())], note))
    columns = [Column("examples"), *map(Column, accuracy.runs)]
    return Table(columns, rows, "tokens of the target", "Exact match by the length of the target, %")


def _figures(sweep: SweepResult, accuracy: Accuracy) -> list[Figure]:
    """Exact match over the length of the target, each length by itself."""
    lengths = np.unique(accuracy.lengths_N)
    found = {}
    for name, seeds in accuracy.runs.items():
        rates_RL = np.array([[100 * e.right_N[accuracy.lengths_N == n].mean() for n in lengths] for e in seeds])
        low, high = (rates_RL.min(0).tolist(), rates_RL.max(0).tolist()) if len(seeds) > 1 else ((), ())
        is_baseline = name == sweep.baseline
        found[name] = Curve(name, lengths.tolist(), rates_RL.mean(0).tolist(), low, high, is_baseline)
    base = [found[sweep.baseline]] if sweep.baseline in found else []
    figures = []
    for heading, names in figures_of(sweep, found):
        title = "exact match, %" + (f": {heading}" if heading else "")
        series = [*base, *(found[name] for name in names)]
        figures.append(curves(Curves(title, series, "tokens of the target", "exact match, %", limit=accuracy.longest)))
    return figures


def to_json(found: Sequence[Accuracy]) -> list[dict[str, Any]]:
    """The same for other programs: right and total of every seed."""
    return [
        {
            "split": each.split,
            "total": len(each.lengths_N),
            "longest_training_target": each.longest,
            "right": {name: [int(exact.right_N.sum()) for exact in seeds] for name, seeds in each.runs.items()},
            "groups": {name: [exact.groups for exact in seeds] for name, seeds in each.runs.items()},
            "differences": {name: difference._asdict() for name, difference in each.differences.items()},
        }
        for each in found
    ]
