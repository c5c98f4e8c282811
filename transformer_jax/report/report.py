"""The report of a sweep: everything that it says, gathered once for all of its formats."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from transformer_jax.report import figures, literature, tuning
from transformer_jax.report.accuracy import Accuracy, accuracies
from transformer_jax.report.analyses import Analysis, analyses
from transformer_jax.report.findings import TestFindings, find
from transformer_jax.report.method import code_mixtures, facts, remarks, sources
from transformer_jax.report.metrics import BLEU, PERPLEXITY, percent
from transformer_jax.report.results import RunResult, SweepResult
from transformer_jax.report.samples import SampleSentence, samples
from transformer_jax.report.statistics import CONFIDENCE, Difference
from transformer_jax.report.summary import Summary, state_name, state_sentence, summary, unfinished
from transformer_jax.report.table import COSTS, Cell, Column, Row, Table, main_table, number_cell
from transformer_jax.runs.metrics import duration
from transformer_jax.sweeps.provenance import SHOWN_DIGITS


@dataclasses.dataclass(frozen=True)
class TestReport:
    """One test set."""

    findings: TestFindings
    summary: Summary
    table: Table
    forests: Mapping[str, figures.Forest]  # by metric

    @property
    def words(self) -> list[str]:
        return self.summary.findings + self.summary.notes

    @property
    def about_forests(self) -> str:
        family = "simultaneous " * (len(self.findings.differences(BLEU)) > 1)
        return (
            f"On {self.findings.split}: differences from the baseline with {family}{percent(CONFIDENCE)} confidence "
            "intervals."
        )


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
    literature: Table | None
    scatter: figures.Scatter | None
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
    def base(self) -> str:
        return json.dumps(self.sweep.config, indent=1, ensure_ascii=False)


def report_of(sweep: SweepResult) -> Report:
    tests = find(sweep)
    untuned, compared = tuning.without(sweep), literature.comparisons(sweep, tests[0])
    analysed, problems = analyses(sweep)
    about = f"Scores are on {tests[0].split}, tuned and at the variants' own rates." if untuned else ""
    return Report(
        sweep=sweep,
        state=state_sentence(sweep),
        mixtures=code_mixtures(sweep),
        unfinished=unfinished(sweep.all_runs),
        problems=[*sweep.problems, *problems],
        tests=[
            TestReport(found, summary(sweep, found), main_table(sweep, found), figures.forests(sweep, found))
            for found in tests
        ],
        accuracies=accuracies(sweep, tests),
        untuned=untuned,
        tuning=tuning.table(sweep, tests[0], untuned) if sweep.tuned else None,
        tuning_note=f"{about} {tuning.cost_sentence(sweep)}".strip(),
        comparisons=compared,
        literature=literature.table(compared) if compared else None,
        scatter=figures.score_against_compute(sweep, tests[0]),
        curves=figures.learning_curves(sweep),
        analyses=analysed,
        samples=samples(sweep, tests[0].split),
        runs=runs_table(sweep),
        facts=facts(sweep, tests),
        remarks=remarks(sweep, tests),
    )


def runs_table(sweep: SweepResult) -> Table:
    """Every run, in whatever state."""
    runs, about = sweep.all_runs, {title: help for title, _, help, _ in COSTS}

    def bleu(split: str, run: RunResult) -> Cell:
        return number_cell(run.measured[split].bleu if split in run.measured else None, "{:.2f}".format)

    columns = [
        Column("state", [Cell(state_name(run.state), run.state) for run in runs], kind="left"),
        Column("code", [Cell(", ".join(d[:SHOWN_DIGITS] for d in sources(run))) for run in runs], kind="left"),
        Column("updates", [number_cell(run.step, "{:,}".format) for run in runs]),
        Column("time", [number_cell(run.number("train_seconds"), duration) for run in runs]),
        Column("tokens/s", [number_cell(run.number("tokens_per_second"), "{:,.0f}".format) for run in runs]),
        *(Column(f"BLEU {split}", [*map(partial(bleu, split), runs)]) for split in sweep.tests),
    ]
    columns = [
        column._replace(kind="cost", help=about[column.title]) if column.title in about else column
        for column in columns
    ]
    return Table([Row(run.name) for run in runs], columns, "run")


def to_json(report: Report) -> dict[str, Any]:
    """Everything that was found, for other programs."""
    sweep = report.sweep
    return {
        "format": 1,
        "name": sweep.name,
        "question": sweep.question,
        "state": report.state,
        "mixtures": report.mixtures,
        "baseline": sweep.baseline,
        "remarks": report.remarks,
        "facts": report.facts,
        "problems": report.problems,
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
    findings = test.findings

    def differences(found: Mapping[str, Difference]) -> dict[str, Any]:
        # "resolved" is the name that significance has in this file.
        return {
            name: {**difference.to_json(), "resolved": difference.significant} for name, difference in found.items()
        }

    bleu = findings.by_metric.get(BLEU.key)
    return {
        "split": findings.split,
        "name": findings.name,
        "sentences": findings.sentences,
        "clusters": findings.clusters,
        "signature": findings.signature,
        "unit": findings.unit,
        "bleu": bleu.scores if bleu else {},
        "perplexity": findings.token_perplexity,
        "word_perplexity": findings.word_perplexity,
        "bleu_differences": differences(findings.differences(BLEU)),
        "perplexity_differences": differences(findings.differences(PERPLEXITY)),
        "not_compared": findings.not_compared,
        "words": test.words,
    }
