"""Everything that a report says, gathered once for all of its formats."""

import json
from typing import Any

from transformer_jax.report import accuracy, analyses, document, published, tuning
from transformer_jax.report.curves import learning_curves
from transformer_jax.report.differences import forests
from transformer_jax.report.figures import curves, forest
from transformer_jax.report.findings import TestFindings, find
from transformer_jax.report.method import METHOD, code_mixtures, facts, remarks, sources
from transformer_jax.report.metrics import METRICS, percent
from transformer_jax.report.results import SweepResult
from transformer_jax.report.samples import samples
from transformer_jax.report.statistics import CONFIDENCE
from transformer_jax.report.summary import state_name, state_sentence, summary, unfinished
from transformer_jax.report.table import COSTS, table
from transformer_jax.runs.metrics import duration
from transformer_jax.sweeps.provenance import SHOWN_DIGITS


class Content:
    """What is said of a sweep."""

    def __init__(self, sweep: SweepResult):
        self.sweep, self.tests = sweep, find(sweep)
        self.state = state_sentence(sweep)
        self.mixtures = code_mixtures(sweep)  # that the runs were not all made by the same code
        self.unfinished = unfinished(sweep.all_runs)
        self.tables = [table(sweep, findings) for findings in self.tests]
        self.accuracies = accuracy.accuracies(sweep, self.tests)
        self.summaries = [
            summary(sweep, findings, accuracy.compared(self.accuracies, findings.split, sweep.baseline))
            for findings in self.tests
        ]
        self.words = [found.findings + found.notes for found in self.summaries]
        self.untuned = tuning.without(sweep)  # what the variants' own learning rates give, if they were trained
        self.published = published.comparisons(sweep, self.tests[0])
        self.pictures, left_out = analyses.pictures(sweep)
        self.facts, self.remarks = facts(sweep, self.tests), remarks(sweep, self.tests)
        if left_out:
            self.remarks.append(f"Pictures too large for this page, in the runs' folders: {left_out}.")


def to_document(content: Content) -> document.Document:
    """The report as a tree. Parts that have nothing to say are left out."""
    sweep = content.sweep
    troubles = [f"{name}: {what}" for name, what in content.unfinished]
    damaged = [f"damaged: {problem}" for problem in sweep.problems]
    base = json.dumps(sweep.definition.get("base", {}), indent=1, ensure_ascii=False)
    found = samples(sweep, content.tests[0].split)
    parts: dict[str, list[document.Block]] = {
        "Results": [*_results(content), document.Heading("Caveats"), document.Bullets(content.remarks)],
        "Exact match": accuracy.blocks(sweep, content.accuracies),
        "Learning rates": tuning.blocks(sweep, content.tests[0], content.untuned),
        "Compared with the published figures": published.blocks(content.published),
        "Learning curves": [document.Figures([curves(plot) for plot in learning_curves(sweep)])],
        "Analyses": [*analyses.blocks(analyses.analyses(sweep)), document.Figures(content.pictures)],
        "Translations": [document.Translations(found)] if found else [],
        "Runs": [document.Folded("Every run", [_runs(sweep)])],
        "Method": [
            document.Bullets(METHOD),
            document.Facts(content.facts),
            document.Folded("The base's config", [document.Code(base)]),
        ],
    }
    return document.Document(
        title=sweep.name,
        question=sweep.question,
        state=[
            document.Text(content.state),
            *(document.Bullets(items) for items in (content.mixtures, troubles, damaged) if items),
        ],
        findings=_findings(content),
        is_complete=not (troubles or damaged or content.mixtures),
        parts=[document.Part(title, blocks) for title, blocks in parts.items() if any(map(_says_something, blocks))],
    )


def _says_something(block: document.Block) -> bool:
    match block:
        case document.Figures(figures):
            return bool(figures)
        case document.Bullets(items):
            return bool(items)
    return True


def _findings(content: Content) -> list[document.Block]:
    """What the report opens with: what is significant on the main test set, in sentences and as a plot."""
    return [document.Bullets(content.summaries[0].findings), _forests(content, content.tests[0])]


def _results(content: Content) -> list[document.Block]:
    """Of each test set the table, and of all but the main one the findings too."""
    blocks: list[document.Block] = []
    for findings, found, words in zip(content.tests, content.tables, content.summaries, strict=True):
        is_main = findings is content.tests[0]
        blocks.append(document.Heading(f"On {findings.title}"))
        blocks += [] if is_main else [document.Bullets(words.findings), _forests(content, findings)]
        blocks += [found, document.Bullets(words.notes)]
    return blocks


def _forests(content: Content, findings: TestFindings) -> document.Figures:
    plots = forests(content.sweep, findings)
    family = "simultaneous " * (len(findings.bleu_differences) > 1)
    about = (
        f"On {findings.split}: differences from the baseline with {family}{percent(CONFIDENCE)} confidence intervals."
    )
    return document.Figures([forest(plot) for plot in plots.values()], about, large=True)


def _runs(sweep: SweepResult) -> document.Table:
    """Every run, in whatever state."""
    rows = []
    for run in sweep.all_runs:
        scores = [run.measured.get(split) if run.finished else None for split in sweep.tests]
        cells = [
            document.Cell(state_name(run.state), run.state),
            document.Cell(", ".join(digest[:SHOWN_DIGITS] for digest in sources(run))),
            document.number_cell(run.step, "{:,}".format),
            document.number_cell(run.number("train_seconds"), duration),
            document.number_cell(run.number("tokens_per_second"), "{:,.0f}".format),
            *(document.number_cell(measured and measured.bleu, "{:.2f}".format) for measured in scores),
        ]
        rows.append(document.Row(run.name, cells))
    titles = ("state", "code", "updates", "time", "tokens/s", *(f"BLEU {split}" for split in sweep.tests))
    about = {title: help for title, _, help, _ in COSTS}
    kinds = {"state": "left", "code": "left"} | dict.fromkeys(about, "cost")
    columns = [document.Column(title, kind=kinds.get(title, ""), help=about.get(title, "")) for title in titles]
    return document.Table(columns, rows, "run")


def to_json(content: Content) -> dict[str, Any]:
    """Everything that was found, for other programs."""
    sweep, tests = content.sweep, []
    for findings, words in zip(content.tests, content.words, strict=True):
        test = {**findings._asdict(), "words": words}
        for metric in METRICS:
            # "resolved" is what earlier versions called it.
            found = {n: {**d._asdict(), "resolved": d.significant} for n, d in findings.differences(metric).items()}
            test[f"{metric.key}_differences"] = found
        tests.append(test)
    return {
        "format": 1,
        "name": sweep.name,
        "question": sweep.question,
        "state": content.state,
        "mixtures": content.mixtures,
        "baseline": sweep.baseline,
        "remarks": content.remarks,
        "facts": content.facts,
        "problems": list(sweep.problems),
        "runs": [
            {"variant": run.variant, "seed": run.seed, "state": run.state, "reason": run.reason, "step": run.step}
            | ({"untuned": True} if run.is_untuned else {})
            for run in sweep.all_runs
        ],
        "tests": tests,
        "tuning": tuning.to_json(sweep, content.untuned),
        "published": [comparison.to_json() for comparison in content.published],
        "exact_match": accuracy.to_json(content.accuracies),
        "base": sweep.definition.get("base", {}),
    }
