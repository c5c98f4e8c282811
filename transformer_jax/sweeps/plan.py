"""What `--dry-run` prints: every variant, what differs in it, its size, and an estimate of the time it takes."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from typing import Any

from transformer_jax.config import ExperimentConfig
from transformer_jax.processes import hardware
from transformer_jax.runs.metrics import duration
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.run import SweepRun, seconds_of
from transformer_jax.sweeps.spec import LENGTH, Definition, Variant, parameters, training_flops
from transformer_jax.sweeps.variance import listed
from transformer_jax.training.inputs import updates

LONGEST_DIFFERENCE = 60
UNCOUNTED = "train.epochs is counted once the data is prepared; until then a run is taken to have train.steps updates"
# Seconds that even the smallest run takes: the least that were measured in sweeps of models of 5,000 to 500,000
# parameters on two CPU cores. To start a process, import, initialize and trace;
STARTING = 3.0
# to compile, once for a variant: its other seeds use the cache (train.compile_cache);
COMPILING = 5.0
# and for each test set to load the weights, compile the search, and translate.
MEASURING = 3.0
# Rows of the matrix products that are timed: with more, their rate is the same.
ROWS = 1024


def plan(sweep: SweepFolder, definition: Definition, variants: Sequence[str]) -> str:
    """A table of the variants, and the total of what is not finished yet."""
    runs = sweep.all_runs(definition, variants)
    missing = [run for run in runs if not run.is_finished()]
    rate, experiments = measured_rate(runs), definition.experiments
    counted = {name: updates(experiments[name], functools.partial(sweep.data, experiments[name])) for name in variants}
    flops = {name: training_flops(experiments[name], counted[name]) for name in variants}

    def seconds(name: str, tests: int) -> float:
        pace = rate or fastest_rate(experiments[name])
        return STARTING + MEASURING * tests + flops[name] / pace

    rows = [("variant", "differs in", "parameters", "FLOPs a run", "time of the first")]
    for name in variants:
        count, first = parameters(experiments[name].model), seconds(name, len(definition.sweep.tests)) + COMPILING
        rows.append((name, changes(definition.variant(name)), f"{count:,}", f"{flops[name]:.2e}", duration(first)))
    total = sum(seconds(run.variant, len(run.tests)) for run in missing)
    total += COMPILING * len({run.variant for run in missing})
    seeds = ", ".join(map(str, definition.seeds))
    tune = f" and {len(definition.tune)} learning rates" if definition.tune else ""
    unchosen = {run.variant for run in missing if run.factor is not None} if definition.sweep.untuned else set()
    at_most = f" (and at most {len(unchosen) * len(definition.seeds)} without tuned rates)" if unchosen else ""
    estimate = (
        "at the rate of the runs finished here, about"
        if rate
        else "at the rate of matrix products of the model's widths, timed now: if no run ends early, at least"
    )
    return "\n".join(
        [
            f"{definition.sweep.name}: {definition.sweep.question}",
            "",
            _aligned(rows),
            "",
            f"{len(variants)} variants, seeds {seeds}{tune}: {len(missing)} runs to train{at_most}, "
            f"{len(runs) - len(missing)} finished",
            f"differences between seeds include: {listed(definition.vary)}",
            f"{estimate} {duration(total)} one after the other on this machine, with {STARTING:g} s a run for its "
            f"start, {MEASURING:g} s a test set, {COMPILING:g} s a variant for compiling",
            f"FLOPs are of full batches of {LENGTH}-token sentences, parameters of the vocabulary asked for",
            *([UNCOUNTED] if None in counted.values() else []),
        ]
    )


def measured_rate(runs: Sequence[SweepRun]) -> float | None:
    """The FLOP/s of the sweep's finished runs; None if there are none."""
    results = [result for run in runs if (result := run.result()) is not None]
    return statistics.median(r["training_flops"] / seconds_of(r) for r in results) if results else None


_products_rate = functools.cache(hardware.products_rate)


def fastest_rate(experiment: ExperimentConfig) -> float:
    """The FLOP/s of matrix products of the model's widths on this machine, measured now; training is slower."""
    model = experiment.model
    return _products_rate(ROWS, model.d_model, model.d_ff, model.dtype, model.matmul_precision)


def changes(variant: Variant) -> str:
    """The changes of a variant in a short line."""
    text = ", ".join(f"{path.partition('.')[2] or path}={_short(value)}" for path, value in variant.changes.items())
    return text if len(text) <= LONGEST_DIFFERENCE else text[: LONGEST_DIFFERENCE - 4] + " ..."


def _short(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """A table with text aligned left and numbers right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [[*map(str.ljust, row[:2], widths), *map(str.rjust, row[2:], widths[2:])] for row in rows]
    return "\n".join(map("  ".join, aligned))
