"""What a sweep is going to be, before anything is run: every variant, what differs in it, its size and its cost."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from transformer_jax.config import ExperimentConfig
from transformer_jax.runs.metrics import duration
from transformer_jax.sweeps import cost
from transformer_jax.sweeps.folder import SweepFolder, SweepRun
from transformer_jax.sweeps.spec import Definition, Variant
from transformer_jax.training.course import updates

LONGEST_DIFFERENCE = 60
UNCOUNTED = "train.epochs is counted once the data is prepared; until then a run is taken to have train.steps updates"


def plan(sweep: SweepFolder, definition: Definition, variants: Sequence[str]) -> str:
    """The table and the total, of what is not finished yet."""
    shown = [variant for variant in definition.sweep.variants if variant.name in variants]
    runs = [*sweep.tries(definition, variants), *sweep.runs(definition, variants)]
    missing = [run for run in runs if not run.is_finished()]
    pace, experiments = Pace.of(runs), definition.experiments
    counted = {name: updates(experiments[name], functools.partial(sweep.data, experiments[name])) for name in variants}
    flops = {name: cost.training_flops(experiments[name], counted[name]) for name in variants}
    rows = [("variant", "differs in", "parameters", "FLOPs a run", "time of the first")]
    for variant in shown:
        experiment = experiments[variant.name]
        rows.append(
            (
                variant.name,
                differs(variant),
                f"{cost.parameters(experiment.model):,}",
                f"{flops[variant.name]:.2e}",
                duration(pace.seconds(experiment, flops[variant.name], len(definition.sweep.tests)) + cost.COMPILING),
            )
        )
    # The try that is chosen is the first seed's run: it is trained once.
    tried = {run.variant for run in missing if run.factor is not None}
    trained = [
        run for run in missing if not (run.factor is None and run.seed == definition.seeds[0] and run.variant in tried)
    ]
    seconds = sum(pace.seconds(run.experiment, flops[run.variant], len(run.tests)) for run in trained)
    seconds += cost.COMPILING * len({run.variant for run in trained})
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
            f"order of the training pairs: {definition.data_order}",
            f"{pace.told} {duration(seconds)} one after the other on this machine, with {cost.STARTING:g} s a run for "
            f"its start, {cost.MEASURING:g} s a test set, {cost.COMPILING:g} s a variant for compiling",
            f"FLOPs are of full batches of {cost.LENGTH}-token sentences, parameters of the vocabulary asked for",
            *([UNCOUNTED] if None in counted.values() else []),
        ]
    )


class Pace(NamedTuple):
    """How fast this machine trains."""

    rate: float | None  # FLOP/s, of runs of this sweep; none = none has finished

    @classmethod
    def of(cls, runs: Sequence[SweepRun]) -> Pace:
        results = [result for run in runs if (result := run.result()) is not None]
        rates = [result["training_flops"] / result["train_seconds"] for result in results]
        return cls(statistics.median(rates) if rates else None)

    def seconds(self, experiment: ExperimentConfig, flops: float, tests: int) -> float:
        """What a run takes that makes all of its updates, or takes at least, when everything is compiled."""
        model = experiment.model
        rate = self.rate or cost.fastest_rate(model.d_model, model.d_ff, model.dtype, model.matmul_precision)
        return cost.STARTING + cost.MEASURING * tests + flops / rate

    @property
    def told(self) -> str:
        if self.rate is not None:
            return "by the pace of those finished here, about"
        return "by the products of its own widths, timed now, a model's fastest part: if none ends early, at least"


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
