"""The output of `--dry-run`: every variant, what differs in it, its size, and an estimate of the time it takes.

The time follows from one update of each program, which is compiled and timed now. Variants that differ in numbers
alone, such as a rate, have the same. It is meant to be right within a factor of two.
"""

from __future__ import annotations

import statistics
import textwrap
import time
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from transformer_jax import schema
from transformer_jax.config import TASKS, ExperimentConfig
from transformer_jax.data.batching import Batch, training_batches
from transformer_jax.data.prepared import MANIFEST, Prepared
from transformer_jax.experiment import with_vocabulary
from transformer_jax.files.progress import counting
from transformer_jax.model import size
from transformer_jax.runs.metrics import count_text, counted, duration
from transformer_jax.sweeps.definition import SOURCES, Variant, repeated
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.local import slots
from transformer_jax.sweeps.resolved import LENGTH, ResolvedSweep, parameters, training_flops
from transformer_jax.sweeps.run import SweepRun
from transformer_jax.sweeps.search import TUNING_SEEDS
from transformer_jax.sweeps.status import RunStatus, aligned, status_of
from transformer_jax.training.compiled import CompiledRuns
from transformer_jax.training.together import MAY_DIFFER
from transformer_jax.update import sharding
from transformer_jax.update.optimizer import make_schedule

LONGEST_DIFFERENCE = 60
# Seconds until a worker process begins to compile.
START = 5.0
# Programs besides those of the updates: validation, and the scores and translations of tests, of a few shapes each.
OTHER_PROGRAMS = 8
# Relative to an update of the same tokens: the time of a forward pass, and of translating greedily.
FORWARD, SEARCH = 1 / 3, 2.0
# Relative to compiling an update: compiling another program, and reading one that another run has compiled.
OTHER_PROGRAM, CACHED = 0.4, 0.15
# An update is repeated until this many seconds have passed, and at least this often.
SECONDS, CALLS = 0.5, 2
# On a CPU the most FLOPs of an update that is timed: a larger batch is represented by some of its rows.
MOST_FLOPS = 3e10
EXPLANATIONS = (
    f"FLOPs are of full batches of {LENGTH}-token sentences (a report counts the tokens trained on)",
    f"programs: about, one for each shape of training batch, and {OTHER_PROGRAMS} for validation and tests",
    "next run: the first run of a variant compiles its programs, which later ones find in train.compile_cache",
)


class Timed(NamedTuple):
    """Seconds to compile an update of a variant, and to compute it."""

    compiling: float
    update: float


def plan(
    sweep: SweepFolder, definition: ResolvedSweep, variants: Sequence[str], jobs: int | None = None, quick: bool = False
) -> str:
    """A table of the variants, and how long what is not finished yet will take; `quick`: without timing anything."""
    experiments = {name: definition.experiments[name] for name in variants}
    data = {name: sweep.data(config) for name, config in experiments.items()}
    unprepared = [name for name, folder in data.items() if not (folder / MANIFEST).is_file()]
    steps = {name: planned_steps(config, data[name]) for name, config in experiments.items()}
    statuses = [status_of(run) for run in sweep.all_runs(definition, variants, planned=True)]
    unfinished = [status for status in statuses if status.state not in ("finished", "diverged")]
    programs = {name: program_of(config, data[name]) for name, config in experiments.items()}
    timed = time_programs(programs, experiments, data) if unfinished and not quick else {}
    twins = {definition.tuned_as(name): name for name in variants} | {name: name for name in variants}
    seconds, next_run = [0.0], dict[str, float]()
    for status in () if quick else unfinished:
        run, name = status.run, twins[status.run.variant]
        left = max((steps[name] or run.experiment.train.steps) - status.step, 0)
        of_variant = timed[programs[name]]
        size_of_setting = training_flops(run.experiment, 1) / training_flops(experiments[name], 1)
        scaled = of_variant._replace(update=of_variant.update * size_of_setting)
        seconds.append(seconds_left(run, left, scaled, is_first=name not in next_run))
        next_run.setdefault(name, seconds[-1])
    rows = [("variant", "differs in", "parameters", "FLOPs per run", "programs", "peak rate", "next run")]
    for name, config in experiments.items():
        flops, count = training_flops(config, steps[name]), training_shapes(config) + OTHER_PROGRAMS
        facts = f"{parameters(config.model):,}", count_text(flops), str(count), _peak(config)
        varied = repeated(definition.sweep, definition.variant(name))
        time_left = "unknown" if unfinished and quick else duration(next_run.get(name, 0.0))
        rows.append((name, changes(varied), *facts, time_left))
    at_a_time = len(slots(jobs))
    if definition.sweep.propose is not None:  # a variant's settings are tried one after the other
        at_a_time = min(at_a_time, len(variants) * len(TUNING_SEEDS))
    total = total_time(seconds, at_a_time, len(timed))
    if unfinished and quick:
        total = "how long they take is not estimated, because nothing was timed (--quick)"
    lines = [
        f"{definition.sweep.name}: {definition.sweep.question}\n",
        aligned(rows, texts=2),
        count_line(definition, variants, statuses, unfinished),
        total,
        *EXPLANATIONS,
        f"differences between seeds include: {'; '.join(SOURCES[source] for source in definition.vary)}",
    ]
    if definition.sweep.propose is not None:
        lines.append("settings that propose has not given yet take as long as random ones")
    if unprepared:
        lines.append(
            f"the data of {counted(len(unprepared), 'variant')} is not prepared: vocabularies are taken to have the "
            "size asked for, and runs with train.epochs to have train.steps updates"
        )
    return "\n".join(lines)


def count_line(
    definition: ResolvedSweep, variants: Sequence[str], statuses: Sequence[RunStatus], unfinished: Sequence[RunStatus]
) -> str:
    """The line that counts variants, seeds, settings and runs."""
    seeds, what = ", ".join(map(str, definition.seeds)), "settings" if definition.sweep.search else "learning rates"
    to_try = f" and {definition.settings} {what}" if definition.settings else ""
    choosing = sum(status.run.setting is not None for status in unfinished)
    to_choose = f" ({choosing} to choose {what}, {len(unfinished) - choosing} to compare)" if choosing else ""
    return (
        f"\n{counted(len(variants), 'variant')}, seeds {seeds}{to_try}: "
        f"{counted(len(unfinished), 'run')} to train{to_choose}, {len(statuses) - len(unfinished)} finished"
    )


def time_programs(
    programs: Mapping[str, Hashable], experiments: Mapping[str, ExperimentConfig], data: Mapping[str, Path]
) -> dict[Hashable, Timed]:
    """The time of an update of each program, by one of the variants that have it."""
    timed, alike = dict[Hashable, Timed](), {program: name for name, program in programs.items()}
    with counting("timing an update", "programs", len(alike)) as advance:
        for program, name in alike.items():
            timed[program] = time_update(experiments[name], data[name])
            advance(1)
    return timed


def total_time(seconds: Sequence[float], processes: int, timed: int) -> str:
    """How long all runs take, whose seconds were estimated from `timed` programs."""
    how = f"with {processes} processes at a time" if processes > 1 else "one after the other"
    total = duration(max(sum(seconds) / processes, *seconds))
    basis = f"one update of each of {counted(timed, 'program')}, timed now"
    return f"about {total} {how} on this machine, by {basis}; right within a factor of two, if no run ends early"


def _peak(config: ExperimentConfig) -> str:
    """The peak learning rate as text."""
    if schema.is_address(config.optimizer.schedule):  # only the user's function knows its peak
        return "custom"
    if not config.optimizer.has_known_peak:
        return "unknown"
    return f"{config.optimizer.peak_rate(config.model.base_d_model):.3g}"


def program_of(config: ExperimentConfig, data: Path) -> Hashable:
    """Identifies the program of an update, except for the numbers in it, on which its time does not depend."""
    options = [option for option in schema.options(ExperimentConfig) if not option.path.startswith("decode.")]
    values = {
        o.path: schema.value_at(config, o.path) for o in options if o.affects in ("data", "result", "computation")
    }
    values |= {path: bool(values[path]) for path in MAY_DIFFER}
    return str(data), repr(values)


def changes(variant: Variant) -> str:
    """The changes of a variant in a short line."""
    text = ", ".join(f"{path.partition('.')[2] or path}={value}" for path, value in variant.changes.items())
    return textwrap.shorten(text, LONGEST_DIFFERENCE, placeholder=" ...")


def training_shapes(config: ExperimentConfig) -> int:
    """The most shapes that training batches have."""
    return 1 if config.data.batching == "packing" else config.data.num_shapes


def seconds_left(run: SweepRun, left: int, timed: Timed, is_first: bool) -> float:
    """Seconds of the updates left of a run by a timed one; the first run of a variant compiles its programs."""
    config = run.experiment
    compiling = timed.compiling * (training_shapes(config) + OTHER_PROGRAM * OTHER_PROGRAMS)
    if not is_first and config.train.compile_cache is not None:
        compiling *= CACHED
    sizes = config.data.task if config.data.corpus in TASKS else config.data
    search = SEARCH * config.decode.beam**0.5
    validation = sizes.valid_size * FORWARD + min(config.decode.bleu_sentences or 0, sizes.valid_size) * search
    tests = len(run.tests) * sizes.test_size * (FORWARD + search)
    pairs_of_an_update = config.data.tokens_per_batch / LENGTH
    held_out = (validation * left / config.train.eval_every + tests) / pairs_of_an_update
    return START + compiling + timed.update * (left + held_out)


def planned_steps(config: ExperimentConfig, data: Path) -> int | None:
    """The number of steps of a run that has not started; None if `train.epochs` needs data that is not prepared."""
    if config.train.epochs is None:
        return config.train.steps
    if not (data / MANIFEST).is_file():
        return None
    batches = training_batches(config.data, Prepared.open(data).pairs("train"))
    return config.train.last_step(batches.steps_per_epoch)


def time_update(config: ExperimentConfig, data: Path) -> Timed:
    """Compiles and times an update; `data` is the folder of its prepared data, if that exists."""
    if (data / MANIFEST).is_file():
        config = with_vocabulary(config, Prepared.open(data))
    mesh = sharding.make_mesh(config.mesh)
    multiple = sharding.batch_shards(mesh) * config.train.accumulate
    length = min(LENGTH, config.data.max_length)
    rows = max(config.data.tokens_per_batch // length // multiple, 1)
    flops = size.training_flops(config.model, length, length).of(multiple * length, multiple * length)  # of a row each
    timed_rows = rows if jax.default_backend() != "cpu" else max(min(rows, round(MOST_FLOPS / flops)), 1)
    steps = CompiledRuns(
        [config], [make_schedule(config.optimizer, config.model.base_d_model, config.train.steps)], mesh
    )
    batch = sharding.place_batch(Batch(*[np.ones((timed_rows * multiple, length), np.int32)] * 3), mesh)
    state = jax.block_until_ready(steps.new_states())

    times: list[float] = []
    while len(times) <= CALLS or sum(times[1:]) < SECONDS:
        begin = time.monotonic()
        state, metrics = steps.advance(state, batch)
        jax.block_until_ready(metrics)
        times.append(time.monotonic() - begin)
    seconds = statistics.median(times[1:])
    return Timed(max(times[0] - seconds, 0.0), seconds * rows / timed_rows)
