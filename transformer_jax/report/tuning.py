"""The learning rates that were tried: their validation losses, what they cost, and the results without tuning."""

import dataclasses
from typing import Any

from transformer_jax.report.findings import TestFindings, find
from transformer_jax.report.results import SweepResult, Tuned
from transformer_jax.report.table import Cell, Column, Row, Table, difference_cell, score_cell
from transformer_jax.report.text import words
from transformer_jax.runs.metrics import count_text, duration


def cost(sweep: SweepResult) -> dict[str, float]:
    """The total cost of tuning, as far as it was recorded."""
    names = ("runs", "updates", "train_seconds", "training_flops")
    return {name: sum(tuned.cost.get(name, 0) for tuned in sweep.tuned.values()) for name in names}


def note(sweep: SweepResult, untuned: TestFindings | None) -> str:
    """Which scores the table has, and what tuning took."""
    runs = [run for run in sweep.all_runs if run.finished]
    names = ("steps", "train_seconds", "training_flops")
    compared = (len(runs), *(sum(run.number(name) or 0 for run in runs) for name in names))
    spent = [
        f"{count:g} runs, {updates:,.0f} updates, {duration(seconds)}, {count_text(flops)} FLOPs"
        for count, updates, seconds, flops in (cost(sweep).values(), compared)
        if count
    ]
    return " ".join(words("tuning_note", sweep, untuned, spent))


def without(sweep: SweepResult) -> TestFindings | None:
    """The findings on the main test set at the variants' own rates; None unless all have finished runs there."""
    if not sweep.tuned or not all(any(run.finished for run in variant.untuned) for variant in sweep.variants):
        return None
    variants = [dataclasses.replace(variant, runs=variant.untuned) for variant in sweep.variants]
    return find(dataclasses.replace(sweep, variants=variants, tests=sweep.tests[:1]))[0]


def table(sweep: SweepResult, tuned: TestFindings, untuned: TestFindings | None) -> Table:
    """The losses of every factor, and scores tuned and untuned side by side."""
    names = [variant.name for variant in sweep.variants if variant.name in sweep.tuned]
    factors = [sweep.tuned[name].factor for name in names]
    columns = [Column("rate x", [Cell(f"{factor:g}", factor) for factor in factors])]
    for factor in sweep.factors:
        cells = [_loss(sweep.tuned[name], f"{factor:g}") for name in names]
        columns.append(Column(f"validation loss x {factor:g}", cells))
    both = {} if untuned is None else {"tuned": tuned, "own rate": untuned}
    for key, compared in tuned.by_metric.items():
        metric, differences = compared.metric, []
        for title, findings in both.items():
            if found := findings.by_metric.get(key):
                scores = [score_cell(found.scores.get(name, ()), name in found.leading) for name in names]
                columns.append(Column(f"{metric.title} {title}", scores, kind="scores"))
                cells = [difference_cell(metric, found.differences.get(name)) for name in names]
                differences.append(Column(f"Δ {metric.title} {title}", cells, kind="differences"))
        columns += differences
    return Table([Row(name) for name in names], columns)


def _loss(tuned: Tuned, factor: str) -> Cell:
    loss = tuned.losses.get(factor)
    if loss is None:
        return Cell("no loss" if factor in tuned.losses else "")  # it diverged, or was not tried
    return Cell(f"{loss:.4f}", loss, "chosen" * (factor == f"{tuned.factor:g}"))


def to_json(sweep: SweepResult, untuned: TestFindings | None) -> dict[str, Any]:
    variants = {name: dataclasses.asdict(tuned) for name, tuned in sweep.tuned.items()}
    found: dict[str, Any] = {"factors": sweep.factors, "variants": variants, "cost": cost(sweep)}
    if untuned is not None:
        found["untuned"] = {
            key: {"scores": compared.scores, "differences": compared.to_json()}
            for key, compared in untuned.by_metric.items()
        }
    return found
