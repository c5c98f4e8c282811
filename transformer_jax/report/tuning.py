"""The learning rates that were tried: their validation losses, what they cost, and the results without tuning."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from transformer_jax.report.document import Block, Cell, Column, Filled, Table, Text, number_cell, rows_of
from transformer_jax.report.findings import TestFindings, find
from transformer_jax.report.metrics import METRICS, mean_and_deviation
from transformer_jax.report.results import SweepResult, json_object, listed, number
from transformer_jax.report.table import difference_cell
from transformer_jax.runs.metrics import count_text, duration

COSTS = ("runs", "updates", "train_seconds", "training_flops")


def factors(sweep: SweepResult) -> list[float]:
    """The factors of the learning rate that were tried."""
    return [factor for item in listed(sweep.definition.get("tune")) if (factor := number(item)) is not None]


def chosen(sweep: SweepResult) -> dict[str, float]:
    """The factor of each variant that has one."""
    found = {name: number(json_object(facts).get("factor")) for name, facts in sweep.tuned.items()}
    return {name: factor for name, factor in found.items() if factor is not None}


def remark(sweep: SweepResult) -> str:
    """How learning rates were chosen, and which may be better still."""
    tried = factors(sweep)
    if not tried:
        return (
            "Learning rates were not tuned: every variant trains at the rate of its config, which may suit some better "
            "than others."
        )
    text = (
        "Each variant's learning rate was chosen on validation loss, with one seed, among "
        f"{', '.join(f'{factor:g}' for factor in tried)} times that of its config."
    )
    if not (best := chosen(sweep)):
        return f"{text} None is chosen yet."
    reused = [name for name in best if "seed" not in json_object(sweep.tuned[name])]
    text += f" Chosen: {', '.join(f'{name} x {factor:g}' for name, factor in best.items())}."
    if reused:
        text += f" The run on which it was chosen is that of the first seed: {', '.join(reused)}."
    else:
        text += " No run that is compared has that seed."
    ends = {f"{min(tried):g}": "lowest", f"{max(tried):g}": "highest"}
    at_edge = [f"{name} ({ends[f'{factor:g}']})" for name, factor in best.items() if f"{factor:g}" in ends]
    if at_edge:
        text += f" At the edge of what was tried, so that a better rate may lie beyond: {', '.join(at_edge)}."
    return text


def cost(sweep: SweepResult) -> dict[str, float]:
    """What tuning took in all, as far as it was recorded."""
    costs = [json_object(json_object(facts).get("cost")) for facts in sweep.tuned.values()]
    return {name: sum(number(each.get(name)) or 0 for each in costs) for name in COSTS}


def cost_sentence(sweep: SweepResult) -> str:
    tuning = cost(sweep)
    if not tuning["runs"]:
        return ""
    runs = [run for run in sweep.all_runs if run.finished]
    updates, flops = (sum(run.number(name) or 0 for run in runs) for name in ("steps", "training_flops"))
    compared = (len(runs), updates, sum(run.seconds or 0 for run in runs), flops)
    texts = [
        f"{count:g} runs, {updates:,.0f} updates, {duration(seconds)}, {count_text(flops)} FLOPs"
        for count, updates, seconds, flops in (tuning.values(), compared)
    ]
    return f"Tuning took {texts[0]}; the compared runs took {texts[1]}."


def without(sweep: SweepResult) -> TestFindings | None:
    """The findings on the main test set at the variants' own rates; None unless all have finished runs there."""
    if not chosen(sweep) or not all(any(run.finished for run in variant.untuned) for variant in sweep.variants):
        return None
    variants = [dataclasses.replace(variant, runs=variant.untuned) for variant in sweep.variants]
    return find(dataclasses.replace(sweep, variants=variants, tests=sweep.tests[:1]))[0]


def blocks(sweep: SweepResult, tuned: TestFindings, untuned: TestFindings | None) -> list[Block]:
    """The report's part about learning rates; empty if they were not tuned."""
    best = chosen(sweep)
    names = [variant.name for variant in sweep.variants if variant.name in best]
    if not names:
        return []
    columns: list[Filled] = [(Column("rate x"), [Cell(f"{best[name]:g}", best[name]) for name in names])]
    for factor in factors(sweep):
        cells = [_loss(json_object(sweep.tuned[name]), factor) for name in names]
        columns.append((Column(f"validation loss x {factor:g}"), cells))
    about = ""
    if untuned is not None:
        columns += _both(names, tuned, untuned)
        about = f"Scores are on {tuned.split}, tuned and at the variants' own rates."
    table = Table([column for column, _ in columns], rows_of(names, columns))
    text = f"{about} {cost_sentence(sweep)}".strip()
    return [*([Text(text)] if text else []), table]


def _loss(facts: Mapping[str, Any], factor: float) -> Cell:
    losses = json_object(facts.get("losses"))
    if f"{factor:g}" not in losses:
        return Cell()
    loss = number(losses[f"{factor:g}"])
    if loss is None:
        return Cell("failed")
    is_chosen = f"{factor:g}" == f"{facts['factor']:g}"  # earlier versions rounded the chosen one
    return number_cell(loss, "{:.4f}".format)._replace(detail="chosen" if is_chosen else "")


def _both(names: list[str], tuned: TestFindings, untuned: TestFindings) -> list[Filled]:
    """Scores and differences from the baseline, tuned and untuned side by side."""
    columns: list[Filled] = []
    for metric in METRICS:
        for title, findings in (("tuned", tuned), ("own rate", untuned)):
            scores, best = findings.scores(metric), findings.best(metric)
            cells = [
                Cell(
                    mean_and_deviation(scores[name], ".2f"), float(np.mean(scores[name])), mark="best" * (name == best)
                )
                if scores.get(name)
                else Cell()
                for name in names
            ]
            columns.append((Column(f"{metric.title} {title}"), cells))
        for title, findings in (("tuned", tuned), ("own rate", untuned)):
            found = findings.differences(metric)
            columns.append(
                (Column(f"Δ {metric.title} {title}"), [difference_cell(metric, found.get(n)) for n in names])
            )
    return columns


def to_json(sweep: SweepResult, untuned: TestFindings | None) -> dict[str, Any]:
    found: dict[str, Any] = {"factors": factors(sweep), "variants": sweep.tuned, "cost": cost(sweep)}
    if untuned is not None:
        found["untuned"] = {
            metric.key: {
                "scores": untuned.scores(metric),
                "differences": {name: d._asdict() for name, d in untuned.differences(metric).items()},
            }
            for metric in METRICS
        }
    return found
