"""What a sweep is going to be, before anything is run: every variant, what differs in it, its size and its cost."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from transformer_jax.sweeps import cost
from transformer_jax.sweeps.folder import SweepFolder, SweepRun
from transformer_jax.sweeps.spec import Definition, Variant
from transformer_jax.training import hardware
from transformer_jax.training.metrics import duration

LONGEST_DIFFERENCE = 60


def plan(sweep: SweepFolder, definition: Definition, variants: Sequence[str]) -> str:
    """The table and the total, of what is not finished yet."""
    shown = [variant for variant in definition.sweep.variants if variant.name in variants]
    runs = [*sweep.tries(definition, variants), *sweep.runs(definition, variants)]
    missing = [run for run in runs if run.result() is None]
    rate, origin = flops_rate(runs, definition)
    rows = [("variant", "differs in", "parameters", "FLOPs a run", "time a run")]
    for variant in shown:
        experiment = definition.experiments[variant.name]
        flops = cost.training_flops(experiment)
        rows.append(
            (
                variant.name,
                differs(variant),
                f"{cost.parameters(experiment.model):,}",
                f"{flops:.2e}",
                duration(flops / rate),
            )
        )
    # The try that is chosen is the first seed's run: it is trained once.
    tried = {run.variant for run in missing if run.factor is not None}
    trained = [
        run for run in missing if not (run.factor is None and run.seed == definition.seeds[0] and run.variant in tried)
    ]
    seconds = sum(cost.training_flops(run.experiment) for run in trained) / rate
    seeds = ", ".join(map(str, definition.seeds))
    tune = f" and {len(definition.tune)} learning rates" if definition.tune else ""
    return "\n".join(
        [
            f"{definition.sweep.name}: {definition.sweep.question}",
            "",
            _aligned(rows),
            "",
            f"{len(shown)} variants, seeds {seeds}{tune}: {len(trained)} runs to train, "
            f"{len(runs) - len(missing)} finished",
            f"about {duration(seconds)} one after the other: a rough estimate from {origin}; validation, tests "
            "and compiling come on top",
            f"FLOPs are of full batches of {cost.LENGTH}-token sentences, parameters of the vocabulary asked for",
        ]
    )


def flops_rate(runs: Sequence[SweepRun], definition: Definition) -> tuple[float, str]:
    """FLOP/s of a training, and where the number comes from: runs of this sweep, or a matrix product timed now."""
    results = [result for run in runs if (result := run.result()) is not None]
    if results:
        rates = [result["training_flops"] / result["train_seconds"] for result in results]
        return statistics.median(rates), f"the pace of {len(results)} finished here"
    peak, origin = hardware.peak_flops(definition.base.model.dtype)
    return peak, f"{peak / 1e12:.3g} TFLOP/s ({origin}), which a small model does not reach"


def differs(variant: Variant) -> str:
    """The changes of a variant in a line."""
    told = ", ".join(f"{path.partition('.')[2] or path}={_short(value)}" for path, value in variant.changes.items())
    return told if len(told) <= LONGEST_DIFFERENCE else told[: LONGEST_DIFFERENCE - 4] + " ..."


def _short(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Text to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
