"""The report of a sweep: everything that it says, gathered once for all of its formats."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.report import figures, literature, tuning
from transformer_jax.report.accuracy import Accuracy, accuracies
from transformer_jax.report.analyses import Analysis, analyses
from transformer_jax.report.findings import TestFindings, find
from transformer_jax.report.method import code_mixtures, facts, remarks
from transformer_jax.report.metrics import BLEU, PERPLEXITY
from transformer_jax.report.results import SweepResult
from transformer_jax.report.samples import SampleSentence, samples
from transformer_jax.report.summary import STATE_NAMES, Summary, state_sentence, summary, unfinished
from transformer_jax.report.table import Cell, Column, Row, Table, main_table, number_cell, records
from transformer_jax.runs.metrics import duration


@dataclasses.dataclass(frozen=True)
class TestReport:
    """One test set."""

    findings: TestFindings
    summary: Summary
    rows: Sequence[Mapping[str, Any]]  # those of table.csv
    table: Table
    forests: Mapping[str, figures.Forest]  # by metric

    @property
    def words(self) -> list[str]:
        return self.summary.findings + self.summary.notes


@dataclasses.dataclass(frozen=True)
class Report:
    """What is said of a sweep; every format is written from this."""

    sweep: SweepResult
    state: str
    mixtures: Sequence[str]  # that the runs were not all made by the same code
    unfinished: Sequence[tuple[str, str]]  # the name and state of each such run
    problems: Sequence[str]  # damaged files
    tests: Sequence[TestReport]  # the main one first
    accuracies: Sequence[Accuracy]
    untuned: TestFindings | None  # what the variants' own learning rates give, if they were trained
    tuning: Table | None
    tuning_note: str
    comparisons: Sequence[literature.Comparison]
    scatter: figures.Curves | None
    curves: Sequence[figures.Curves]
    analyses: Sequence[Analysis]
    samples: Sequence[SampleSentence]
    runs: Table
    facts: Mapping[str, str]
    remarks: Sequence[str]

    @property
    def is_complete(self) -> bool:
        return not (self.unfinished or self.problems or self.mixtures)

    @property
    def literature(self) -> list[Table]:
        return [literature.table(*comparison) for comparison in self.comparisons]


def report_of(sweep: SweepResult) -> Report:
    tests = find(sweep)
    main = tests[0]
    untuned, (analysed, problems) = tuning.without(sweep), analyses(sweep)
    reports = []
    for test in tests:
        words = summary(sweep, test, literature.comparisons(sweep, test))
        rows = records(sweep, test)
        table = main_table(sweep, test, rows)
        reports.append(TestReport(test, words, rows, table, figures.forests(test)))
    return Report(
        sweep=sweep,
        state=state_sentence(sweep),
        mixtures=code_mixtures(sweep),
        unfinished=unfinished(sweep.all_runs),
        problems=[*sweep.problems, *problems],
        tests=reports,
        accuracies=accuracies(sweep, tests),
        untuned=untuned,
        tuning=tuning.table(sweep, main, untuned) if sweep.tuned else None,
        tuning_note=tuning.note(sweep, untuned),
        comparisons=literature.comparisons(sweep, main),
        scatter=figures.score_against_compute(sweep, main),
        curves=figures.learning_curves(sweep),
        analyses=analysed,
        samples=samples(sweep, main.split),
        runs=runs_table(sweep),
        facts=facts(sweep, tests),
        remarks=remarks(sweep, tests),
    )


def runs_table(sweep: SweepResult) -> Table:
    """Every run, in whatever state."""
    runs = sweep.all_runs
    columns = [
        Column("state", [Cell(STATE_NAMES.get(run.state, run.state), run.state) for run in runs], kind="left"),
        Column("updates", [number_cell(run.step, "{:,}".format) for run in runs]),
        Column("time", [number_cell(run.number("train_seconds"), duration) for run in runs]),
        Column("tokens/s", [number_cell(run.number("tokens_per_second"), "{:,.0f}".format) for run in runs]),
    ]
    for split in sweep.tests:
        scores = [run.measured[split].bleu if split in run.measured else None for run in runs]
        columns.append(Column(f"BLEU {split}", [number_cell(score, "{:.2f}".format) for score in scores]))
    return Table([Row(run.name) for run in runs], columns, "run")


def to_json(report: Report) -> dict[str, Any]:
    """Everything that was found, for other programs."""
    sweep = report.sweep
    return {
        "format": 1,
        **{key: getattr(sweep, key) for key in ("name", "question", "baseline")},
        **{key: getattr(report, key) for key in ("state", "mixtures", "remarks", "facts", "problems")},
        "runs": [
            {"variant": run.variant, "seed": run.seed, "state": run.state, "reason": run.reason, "step": run.step}
            | ({"unevaluated": run.unevaluated} if run.unevaluated else {})
            | ({"untuned": True} if run.is_untuned else {})
            for run in sweep.all_runs
        ],
        "tests": [_test_json(test) for test in report.tests],
        "tuning": tuning.to_json(sweep, report.untuned),
        "published": [comparison.to_json() for comparison in report.comparisons],
        "exact_match": [accuracy.to_json() for accuracy in report.accuracies],
        "base": sweep.config,
    }


def _test_json(test: TestReport) -> dict[str, Any]:
    keys = ("split", "name", "sentences", "clusters", "signature", "unit", "not_compared")
    found = {key: getattr(test.findings, key) for key in keys}
    for metric in (BLEU, PERPLEXITY):
        # "resolved" is the name that significance has in this file.
        found[f"{metric.key}_differences"] = {
            name: {**difference.to_json(), "resolved": difference.significant}
            for name, difference in test.findings.differences(metric).items()
        }
    return {**found, **test.findings.scores, "rows": test.rows, "words": test.words}
