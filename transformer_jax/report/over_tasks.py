"""Several test sets of a report, or of several sweeps, in one score for each variant; each keeps its own row."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.pictures.plots import COLOURS
from transformer_jax.report.accuracy import PUBLISHED
from transformer_jax.report.aggregates import (
    Blocks,
    interquartile_mean,
    interval,
    performance_profile,
    probability_of_improvement,
)
from transformer_jax.report.document import Block, Cell, Column, Figure, Figures, Row, Table, Text
from transformer_jax.report.figures import Curve, Curves, curves
from transformer_jax.report.metrics import mean_and_deviation
from transformer_jax.report.results import Measured, SweepResult

THRESHOLDS = 60


class Tasks(NamedTuple):
    """The scores of every variant on the same tasks, in percent."""

    score: str  # "exact match" or "BLEU"
    names: Sequence[str]
    baseline: str
    scores: Mapping[str, Blocks]  # by variant, a block of runs and test sets for each sweep
    baselines: Mapping[str, str]  # what each variant is compared with, "" if with nothing

    def interquartile_mean(self, variant: str) -> Cell:
        """Empty if the sweeps have different numbers of runs, of which the larger would count more."""
        blocks = self.scores[variant]
        return _with_interval(interquartile_mean, ".1f", blocks) if len(set(map(len, blocks))) == 1 else Cell()

    def improvement(self, variant: str) -> Cell:
        """The probability of improvement over the variant's baseline."""
        base = self.scores.get(self.baselines[variant])
        return Cell() if base is None else _with_interval(probability_of_improvement, ".2f", self.scores[variant], base)


def tasks(sweeps: Sequence[SweepResult]) -> Tasks | None:
    """The variants that every sweep has, on all of their test sets; None if there are not two test sets.

    Scores are exact matches where a sweep is about them, which has groups of examples or such a published score, and
    BLEU otherwise.
    """
    measured = [_complete(sweep) for sweep in sweeps]
    names = [f"{sweep.path.name}: {split}" if len(sweeps) > 1 else split for sweep in sweeps for split in sweep.tests]
    variants = [name for name in measured[0] if all(name in runs for runs in measured)]
    if len(names) < 2 or not variants:
        return None
    every = [each for runs in measured for name in variants for run in runs[name] for each in run]
    about = all(any(PUBLISHED in v.published for v in sweep.variants) for sweep in sweeps)
    is_exact = all(each.exact is not None and (about or each.exact.groups) for each in every)
    score = _right if is_exact else _bleu
    scores = {
        name: [np.array([[score(each) for each in run] for run in runs[name]]) for runs in measured]
        for name in variants
    }
    baselines = {v.name: v.baseline for v in sweeps[0].variants}
    return Tasks("exact match" if is_exact else "BLEU", names, sweeps[0].baseline, scores, baselines)


def _complete(sweep: SweepResult) -> dict[str, list[list[Measured]]]:
    """For each variant its runs with a result on every test set: of the baseline's texts, or the first variant's."""
    finished = {v.name: [run for run in v.finished if set(sweep.tests) <= run.measured.keys()] for v in sweep.variants}
    runs = {name: [[run.measured[split] for split in sweep.tests] for run in same] for name, same in finished.items()}
    first = next(iter(runs.get(sweep.baseline) or [run for same in runs.values() for run in same]), [])
    digests = [each.digest for each in first]
    same_texts = {
        name: [run for run in same if [each.digest for each in run] == digests] for name, same in runs.items()
    }
    return {name: same for name, same in same_texts.items() if same}


def _right(measured: Measured) -> float:
    return 0.0 if measured.exact is None else 100 * float(measured.exact.right_N.mean())


def _bleu(measured: Measured) -> float:
    return measured.bleu


def blocks(found: Tasks | None) -> list[Block]:
    """The report's part about all test sets together; empty if there are not several."""
    if found is None:
        return []
    about = (
        f"Scores are {found.score} in percent, as they are: a test set on which variants differ more counts more. The "
        "interquartile mean is that of all runs on all test sets. The probability of improvement is that of a run "
        "being better than one of its baseline; a tie is half (Agarwal et al. 2021). Intervals are bootstrap intervals "
        "over seeds, not over sentences, each of 95 %. A run is resampled with its scores on all test sets "
        "of its sweep, which are dependent. With few seeds such intervals are too narrow."
    )
    table = _table(found)
    if not all(cell.text for cell in table.rows[len(found.names)].cells):
        about += " The interquartile mean is left out where the sweeps have different numbers of runs."
    if any(cell.text and not cell.detail for row in table.rows[len(found.names) :] for cell in row.cells):
        about += " No interval is given for a single run, or where all resamples give the same value."
    return [Text(about), table, Figures([_profiles(found)], large=True)]


def _table(found: Tasks) -> Table:
    """Each test set, then the aggregates, by variant."""
    rows = []
    by_task = {name: [column for block in given for column in block.T] for name, given in found.scores.items()}
    for number, task in enumerate(found.names):
        values = [each[number] for each in by_task.values()]
        rows.append(Row(task, [Cell(mean_and_deviation(each, ".1f"), float(np.mean(each))) for each in values]))
    rows.append(Row("interquartile mean", list(map(found.interquartile_mean, found.scores))))
    rows.append(Row("probability of improvement", list(map(found.improvement, found.scores))))
    return Table([Column(name) for name in found.scores], rows, "test set")


def _with_interval(statistic: Any, form: str, *systems: Blocks) -> Cell:
    value, ends = float(statistic(*systems)), interval(statistic, *systems)
    if ends is None or math.isclose(*ends):
        return Cell(f"{value:{form}}", value)
    return Cell(f"{value:{form}}", value, f"[{ends[0]:{form}}, {ends[1]:{form}}]")


def _profiles(found: Tasks) -> Figure:
    """The share of runs above every score, with bands: of the baseline, and of the best and worst variants."""
    every = np.concatenate([block.ravel() for given in found.scores.values() for block in given])
    thresholds = np.linspace(every.min() - 1, every.max() + 1, THRESHOLDS)
    profile, series = partial(performance_profile, thresholds=thresholds), []
    shown, which = _extremes(found)
    for name in shown:
        low, high = interval(profile, found.scores[name]) or (np.zeros(0), np.zeros(0))
        line, low, high = ((100 * shares).tolist() for shares in (profile(found.scores[name]), low, high))
        series.append(Curve(name, thresholds.tolist(), line, low, high, name == found.baseline))
    return curves(Curves(f"performance profiles{which}", series, f"{found.score}, %", "runs with a better score, %"))


def _extremes(found: Tasks) -> tuple[list[str], str]:
    """The baseline and as many of the best and worst variants as a figure has colours, and how to call these."""
    base = [name for name in found.scores if name == found.baseline]
    others = [name for name in found.scores if name != found.baseline]
    if len(found.scores) <= len(COLOURS):
        return base + others, ""
    others.sort(key=lambda name: -float(interquartile_mean(found.scores[name])))
    worst = (len(COLOURS) - len(base)) // 2
    best = len(COLOURS) - len(base) - worst
    names = [*base, f"the {best} best and the {worst} worst variants by interquartile mean"]
    return [*base, *others[:best], *others[-worst:]], f": {', '.join(names)}"


def to_json(found: Tasks | None) -> dict[str, Any] | None:
    """The scores for other programs, by variant a list of runs for each sweep, and their aggregates."""
    if found is None:
        return None
    means = {name: found.interquartile_mean(name).value for name in found.scores}
    better = {name: found.improvement(name).value for name in found.scores}
    return {
        "score": found.score,
        "test_sets": list(found.names),
        "scores": {name: [block.tolist() for block in given] for name, given in found.scores.items()},
        "interquartile_mean": {name: value for name, value in means.items() if value is not None},
        "probability_of_improvement": {name: value for name, value in better.items() if value is not None},
    }
