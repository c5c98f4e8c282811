"""Everything that a report says, gathered once for all of its formats."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax.report import analyses, document, pareto
from transformer_jax.report.curves import learning_curves
from transformer_jax.report.document import (
    Block,
    Bullets,
    Cell,
    Code,
    Column,
    Document,
    Facts,
    Figure,
    Figures,
    Folded,
    Heading,
    Part,
    Row,
    Text,
    Translations,
    number_cell,
)
from transformer_jax.report.figures import Interval, forest
from transformer_jax.report.findings import TestFindings, find
from transformer_jax.report.method import METHOD, code_mixtures, facts, remarks
from transformer_jax.report.metrics import METRICS
from transformer_jax.report.results import SweepResult
from transformer_jax.report.samples import samples
from transformer_jax.report.summary import state_name, state_sentence, summary, unfinished
from transformer_jax.report.table import table
from transformer_jax.runs.metrics import duration


class Content(NamedTuple):
    sweep: SweepResult
    state: str
    mixtures: Sequence[str]  # that the runs were not all made by the same code
    tests: Sequence[TestFindings]
    tables: Sequence[document.Table]  # of each test set
    words: Sequence[Sequence[str]]  # the summary of each test set
    unfinished: Sequence[tuple[str, str]]
    fronts: Sequence[pareto.Front]  # on the main test set
    pictures: Sequence[Figure]
    remarks: Sequence[str]
    facts: Mapping[str, str]


def gather(sweep: SweepResult) -> Content:
    tests = find(sweep)
    pictures, left_out = analyses.pictures(sweep)
    too_large = f"Pictures too large for this page, in the runs' folders: {left_out}."
    return Content(
        sweep=sweep,
        state=state_sentence(sweep),
        mixtures=code_mixtures(sweep),
        tests=tests,
        tables=[table(sweep, findings) for findings in tests],
        words=[summary(sweep, findings) for findings in tests],
        unfinished=unfinished(sweep.runs),
        fronts=pareto.fronts(sweep, tests[0]),
        pictures=pictures,
        remarks=[*remarks(sweep, tests), *([too_large] if left_out else [])],
        facts=facts(sweep, tests),
    )


def to_document(content: Content) -> Document:
    """The report as a tree. Parts that have nothing to say are left out."""
    sweep = content.sweep
    troubles = [f"{name}: {what}" for name, what in content.unfinished]
    damaged = [f"damaged: {problem}" for problem in sweep.problems]
    base = json.dumps(sweep.definition.get("base", {}), indent=1, ensure_ascii=False)
    found = samples(sweep, content.tests[0].split)
    parts: dict[str, list[Block]] = {
        "Results": [*_results(content), Heading("Caveats"), Bullets(content.remarks)],
        "Size and compute": pareto.blocks(sweep, content.fronts, content.tests[0].unit),
        "Learning curves": [Figures(learning_curves(sweep))],
        "Analyses": [*analyses.blocks(analyses.analyses(sweep)), Figures(content.pictures)],
        "Translations": [Translations(found)] if found else [],
        "Runs": [Folded("Every run", [_runs(sweep)])],
        "Method": [Bullets(METHOD), Facts(content.facts), Folded("The base's config", [Code(base)])],
    }
    return Document(
        title=sweep.name,
        question=sweep.question,
        state=[Text(content.state), *(Bullets(items) for items in (content.mixtures, troubles, damaged) if items)],
        is_complete=not (troubles or damaged or content.mixtures),
        parts=[Part(title, blocks) for title, blocks in parts.items() if any(map(_says_something, blocks))],
    )


def _says_something(block: Block) -> bool:
    return not isinstance(block, Figures) or bool(block.figures)


def _results(content: Content) -> list[Block]:
    blocks: list[Block] = []
    for findings, found, words in zip(content.tests, content.tables, content.words, strict=True):
        blocks += [Heading(f"On {findings.split}: {findings.name}"), Bullets(words), found]
        blocks.append(Figures(_forests(content.sweep, findings), large=True))
    return blocks


def _forests(sweep: SweepResult, findings: TestFindings) -> list[Figure]:
    figures = []
    for metric in METRICS:
        rows = []
        for name, found in findings.differences(metric).items():
            tip = f"{metric.change(found.value)} {metric.interval(found)}, p = {found.corrected_p:.3g}"
            tip += f", seeds {found.seeds[0]} and {found.seeds[1]}"
            published = metric.published_difference(sweep.published(name, metric.key))
            tip += "" if published is None else f"; published {metric.change(published)}"
            rows.append(Interval(name, found.value, found.low, found.high, tip, metric.mark(found), published))
        if rows:
            better = "right" if metric.sign > 0 else "left"
            diamonds = "; ◇ is the published one" if any(row.published is not None for row in rows) else ""
            is_bleu = metric.key == "bleu"
            title = (
                f"{'BLEU' if is_bleu else 'Perplexity'}: differences from the baseline ({better} is better{diamonds})"
            )
            x = "difference in BLEU" if is_bleu else f"log-perplexity per {findings.unit}"
            figures.append(Figure(title, forest(rows, x)))
    return figures


def _runs(sweep: SweepResult) -> document.Table:
    """Every run, in whatever state."""
    rows = []
    for run in sweep.runs:
        scores = [run.measured.get(split) if run.finished else None for split in sweep.tests]
        cells = [
            Cell(state_name(run.state), run.state),
            number_cell(run.step, "{:,}".format),
            number_cell(run.number("train_seconds"), duration),
            number_cell(run.number("tokens_per_second"), "{:,.0f}".format),
            *(number_cell(measured and measured.bleu, "{:.2f}".format) for measured in scores),
        ]
        rows.append(Row(run.name, cells))
    titles = ("state", "step", "time", "tokens/s", *(f"BLEU {split}" for split in sweep.tests))
    columns = [Column(title, kind="left" if title == "state" else "") for title in titles]
    return document.Table(columns, rows, "run")


def to_json(content: Content) -> dict[str, Any]:
    """Everything that was found, for other programs."""
    sweep = content.sweep
    return {
        "format": 1,
        "name": sweep.name,
        "question": sweep.question,
        "state": content.state,
        "mixtures": list(content.mixtures),
        "baseline": sweep.baseline,
        "remarks": list(content.remarks),
        "facts": dict(content.facts),
        "problems": list(sweep.problems),
        "runs": [
            {"variant": run.variant, "seed": run.seed, "state": run.state, "reason": run.reason, "step": run.step}
            for run in sweep.runs
        ],
        "tests": [
            {**_test_json(findings), "words": list(words)}
            for findings, words in zip(content.tests, content.words, strict=True)
        ],
        "sizes": [front.to_json() for front in content.fronts],
        "base": sweep.definition.get("base", {}),
    }


def _test_json(findings: TestFindings) -> dict[str, Any]:
    differences = {
        f"{metric.key}_differences": {
            # "resolved" is what earlier versions called it.
            name: {**difference._asdict(), "resolved": difference.significant}
            for name, difference in findings.differences(metric).items()
        }
        for metric in METRICS
    }
    return {**findings._asdict(), **differences}
