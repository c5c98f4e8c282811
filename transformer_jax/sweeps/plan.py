"""What `--dry-run` prints: every variant, what differs in it, its size, and an estimate of the time it takes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from transformer_jax.data.prepared import MANIFEST
from transformer_jax.runs.metrics import duration
from transformer_jax.sweeps.estimate import Work, left, pace_of, total
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.run import SweepRun
from transformer_jax.sweeps.spec import LENGTH, Definition, Variant, parameters, training_flops
from transformer_jax.sweeps.variance import listed
from transformer_jax.training.inputs import updates

LONGEST_DIFFERENCE = 60
UNCOUNTED = "train.epochs is counted once the data is prepared; until then a run is taken to have train.steps updates"


def plan(
    sweep: SweepFolder,
    definition: Definition,
    variants: Sequence[str],
    jobs: int | None = None,
    together: int | None = None,
) -> str:
    """A table of the variants, and the total of what is not finished yet."""
    runs, experiments = sweep.all_runs(definition, variants), definition.experiments
    counted = {name: updates(experiments[name], functools.partial(sweep.data, experiments[name])) for name in variants}
    flops = {name: training_flops(experiments[name], counted[name]) for name in variants}
    works = left(runs, counted)
    pace = pace_of(sweep, definition, runs, works, jobs) if works else None
    rows = [("variant", "differs in", "parameters", "FLOPs a run", "time of the first")]
    for name in variants:
        first = "" if pace is None else duration(pace.start + pace.seconds(_whole(runs, name, counted[name])))
        count = parameters(experiments[name].model)
        rows.append((name, changes(definition.variant(name)), f"{count:,}", f"{flops[name]:.2e}", first))
    seeds = ", ".join(map(str, definition.seeds))
    tune = f" and {len(definition.tune)} learning rates" if definition.tune else ""
    unchosen = (
        {work.run.variant for work in works if work.run.factor is not None} if definition.sweep.untuned else set()
    )
    at_most = f" (and at most {len(unchosen) * len(definition.seeds)} without tuned rates)" if unchosen else ""
    lines = [
        f"{definition.sweep.name}: {definition.sweep.question}",
        "",
        _aligned(rows),
        "",
        f"{len(variants)} variants, seeds {seeds}{tune}: {len(works)} runs to train{at_most}, "
        f"{len(runs) - len(works)} finished",
        f"differences between seeds include: {listed(definition.vary)}",
    ]
    if pace is not None:
        data = {place for work in works if not ((place := sweep.data(work.run.experiment)) / MANIFEST).is_file()}
        seconds = total(works, pace, jobs or 1, together) + pace.start + (pace.preparation or 0) * len(data)
        how = f"with {jobs} processes at a time" if (jobs or 1) > 1 else "one after the other"
        lines += [
            f"about {duration(seconds)} {how} on this machine, if no run ends early and it stays as busy as now",
            *(f"  {words}" for words in pace.words()),
        ]
    lines.append(f"FLOPs are of full batches of {LENGTH}-token sentences, parameters of the vocabulary asked for")
    return "\n".join([*lines, *([UNCOUNTED] if None in counted.values() else [])])


def _whole(runs: Sequence[SweepRun], name: str, updates: int | None) -> Work:
    """The first run of a variant, from its start."""
    run = next(run for run in runs if run.variant == name)
    return Work(run, updates or run.experiment.train.steps, training_flops(run.experiment, 1), is_first=True)


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
