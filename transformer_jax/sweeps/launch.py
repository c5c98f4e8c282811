"""Launches a sweep: runs what is missing, and does not repeat what is finished."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from transformer_jax.data.corpora import named_files
from transformer_jax.data.prepare import prepare
from transformer_jax.data.prepared import MANIFEST
from transformer_jax.data_config import TASKS, DataConfig
from transformer_jax.errors import BadInput, ConfigError, Failed
from transformer_jax.processes.signals import StopSignals
from transformer_jax.sweeps import checks, provenance
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.local import LocalPool, slots
from transformer_jax.sweeps.run import Job, SweepRun, now, seconds_of
from transformer_jax.sweeps.slurm import Slurm, SlurmPool
from transformer_jax.sweeps.spec import TUNING_SEED, Definition, training_flops
from transformer_jax.sweeps.status import Display, failure, tracker_failures
from transformer_jax.sweeps.variance import ORDER, SPLIT

# The exit status after a signal, as shells have it.
EXIT_STATUS = {"by SIGINT": 130, "by SIGTERM": 143}

# --dry-run prepares generated data of at most so many pairs, and text files of so many bytes: each takes seconds.
FEW_PAIRS, SMALL_FILES = 5000, 4 << 20

# About the data with --together: whether it varies with the seed.
TOGETHER = {
    True: "--together: in this sweep the order or the split of the training pairs varies with the seed, so only runs "
    "of the same seed train together",
    False: "--together: all seeds see the training pairs in the same order; the report mentions it",
}


@dataclasses.dataclass(frozen=True)
class LaunchOptions:
    """How a sweep is run this time; its results do not depend on it."""

    only: Sequence[str] | None = None  # patterns of variants' names
    jobs: int | None = None
    together: int | None = None  # runs at most in one program, 0 for as many as fit; none = one
    retries: int = 0
    fail_fast: bool = False
    accept_changed_code: bool = False  # recorded, and reported
    slurm: Slurm | None = None  # none = on this machine


def use_cpu_only() -> None:
    """Has JAX in this process use the CPU: on a GPU it would take the memory that the runs need."""
    jax.config.update("jax_platforms", "cpu")


def launch(sweep: SweepFolder, definition: Definition, options: LaunchOptions) -> int:
    """Runs what is missing; returns the exit status."""
    variants = definition.chosen(options.only)
    if options.slurm is not None:
        options.slurm.executor(sweep.path)  # refused now rather than after an hour of preparing data
    together = options.together is not None
    with sweep.held():
        definition = sweep.merged(definition, together)
        definition = dataclasses.replace(
            definition,
            together=together,
            code=provenance.digests(definition),
            accept_changed_code=options.accept_changed_code,
        )
        provenance.check(sweep, definition)
        for group in grouped(sweep.runs(definition), options.together):
            if len(group) > 1:  # refused now rather than when runs start to train together
                from transformer_jax.training.together import refuse_incompatible

                refuse_incompatible([run.experiment for run in group])
        prepare_data(definition, data_sets(sweep, definition, variants))
        sweep.save(definition)
        if together:
            print(TOGETHER[bool({ORDER, SPLIT} & set(definition.vary))], flush=True)
        with StopSignals() as signals:
            return Launcher(sweep, definition, variants, options, signals).run()


def data_sets(sweep: SweepFolder, definition: Definition, variants: Sequence[str]) -> dict[Path, SweepRun]:
    """The folder of each data set, with a run that uses it."""
    places: dict[Path, SweepRun] = {}
    for run in sweep.all_runs(definition, variants):
        places.setdefault(sweep.data(run.experiment), run)
    return places


def try_data(sweep: SweepFolder, definition: Definition, variants: Sequence[str]) -> None:
    """Refuses what `prepare_data` would, as far as that takes seconds, without writing to the sweep."""
    with tempfile.TemporaryDirectory() as scratch:
        places = {}
        for number, (place, run) in enumerate(data_sets(sweep, definition, variants).items()):
            if (place / MANIFEST).is_file():
                places[place] = run
            elif _is_small(run.experiment.data):
                places[Path(scratch) / str(number)] = run
        prepare_data(definition, places)


def _is_small(data: DataConfig) -> bool:
    if data.corpus in TASKS:
        return data.task.train_size + data.task.valid_size + data.task.test_size <= FEW_PAIRS
    files = named_files(data)
    with contextlib.suppress(OSError):  # text that is not here
        return bool(files) and sum(map(os.path.getsize, files)) <= SMALL_FILES
    return False


def prepare_data(definition: Definition, places: Mapping[Path, SweepRun]) -> None:
    """Prepares each data set once; refuses what could not be trained or evaluated on."""
    problems: list[tuple[str, str]] = []  # of variants
    for place, run in places.items():
        name = run.variant
        try:
            prepared = prepare(run.experiment, place)
        except BadInput as problem:
            problems.append((name, str(problem)))
            continue
        known = [split for split in prepared.splits if len(prepared.pairs(split))]
        problems += [(name, problem) for problem in checks.missing_splits(definition.sweep.tests, known)]
        if definition.tune and "valid" not in known:
            problems.append((name, "tune chooses by validation loss, and there is no validation data"))
    if problems:
        raise ConfigError(checks.listed(problems))


@dataclasses.dataclass
class Launcher:
    """One launch: first the runs that tune learning rates, if the sweep has them, then the runs themselves."""

    sweep: SweepFolder
    definition: Definition
    variants: list[str]
    options: LaunchOptions
    signals: StopSignals
    failed: list[str] = dataclasses.field(default_factory=list)  # names of runs
    unfinished: int = 0

    def run(self) -> int:
        if self.definition.tune:
            self._tune()
        if not self._is_over():
            self.failed += self._run_missing(self.sweep.runs(self.definition, self.variants))
        return self._conclude()

    def _tune(self) -> None:
        """Chooses a learning rate for each variant, which is left out if its runs all failed, or some only stopped."""
        runs = self.sweep.tuning_runs(self.definition, self.variants)
        if not runs:
            return
        print(f"{len(runs)} runs to choose learning rates", flush=True)
        failed = self._run_missing(runs)
        if self._is_over(failed):
            self.failed += failed
            return
        for name in dict.fromkeys(run.variant for run in runs):
            of_variant = [run for run in runs if run.variant == name]
            if not all(run.name in failed or run.is_finished() or _has_failed(run) for run in of_variant):
                self.variants.remove(name)  # until the same command has resumed them
                continue
            losses = {f"{run.factor:g}": valid_loss(run) for run in of_variant}  # by the names of factors
            known = {factor: loss for factor, loss in losses.items() if loss is not None}
            if not known:
                self.failed += [run.name for run in of_variant if run.name in failed]
                self.variants.remove(name)
                continue
            best = min(known, key=lambda factor: known[factor])
            exact = {f"{factor:g}": float(factor) for factor in self.definition.tune or ()}
            facts = {"factor": exact[best], "losses": losses, "seed": TUNING_SEED, "cost": cost(of_variant)}
            self.sweep.record_tuned(name, facts)
            listed = ", ".join(f"x {f}: {'failed' if loss is None else f'{loss:.4f}'}" for f, loss in losses.items())
            print(f"{name}: rate x {best} (validation loss {listed})", flush=True)

    def _run_missing(self, runs: Sequence[SweepRun]) -> list[str]:
        """Runs those that are not finished; returns the names of those that failed."""
        display, options = Display(runs), self.options
        missing = [run for run in runs if not run.is_finished()]
        if options.slurm is not None and options.slurm.detach:
            # A launch that does not wait cannot know whether a tuning run failed in it or in an earlier one.
            missing = [run for run in missing if run.factor is None or not _has_failed(run)]
        pool = (
            LocalPool(self.sweep, slots(options.jobs))
            if options.slurm is None
            else SlurmPool(self.sweep, options.slurm, display)
        )
        # The most expensive job first, so that no device is idle while the last long one runs.
        jobs = sorted(
            grouped(missing, options.together), key=lambda job: -sum(training_flops(run.experiment) for run in job)
        )
        run_jobs(pool, jobs, display, self.signals, options.retries, options.fail_fast)
        statuses = display.close()
        self.unfinished += sum(status.state not in ("finished", "failed") for status in statuses)
        failed = [status for status in statuses if status.state == "failed"]
        for status in failed:
            print(f"\n{failure(status)}", flush=True)
        if warning := tracker_failures(statuses):
            print(f"\n{warning}", flush=True)
        return [status.run.name for status in failed]

    def _is_over(self, failed: Sequence[str] = ()) -> bool:
        return bool(self.signals.asked or self._is_detached() or ((self.failed or failed) and self.options.fail_fast))

    def _is_detached(self) -> bool:
        """Whether runs remain that this launch does not wait for."""
        return bool(self.options.slurm and self.options.slurm.detach and self.unfinished)

    def _conclude(self) -> int:
        if self.signals.asked:
            print(f"stopped {self.signals.asked}; the same command resumes the sweep", file=sys.stderr)
            return EXIT_STATUS[self.signals.asked]
        if self._is_detached():
            tuning = bool(self.definition.tune and self.sweep.tuning_runs(self.definition, self.variants))
            print(
                f"\n{self.unfinished} runs are left to the cluster; --status shows their state"
                + ("; when they are done, the same command chooses the learning rates and submits the rest" * tuning)
            )
            return 0
        if self.failed:
            stopped = "; --fail-fast stopped the others" if self.options.fail_fast else ""
            raise Failed(f"{len(self.failed)} runs: {'; '.join(self.failed)}{stopped}. The same command retries them")
        if self.unfinished:
            raise Failed(f"{self.unfinished} runs are not finished; the same command resumes the sweep")
        print(f"\ntransformer-jax report {self.sweep.path}    writes the report", flush=True)
        return 0


def run_jobs(
    pool: LocalPool | SlurmPool,
    jobs: Sequence[Job],
    display: Display,
    signals: StopSignals,
    retries: int = 0,
    fail_fast: bool = False,
) -> None:
    """Returns when all runs have ended; after a stop signal, or a failure with `fail_fast`, when all are saved."""
    waiting, failures, stopping = list(jobs), collections.Counter[str](), False
    display.pending |= {run.address: "waiting" for job in jobs for run in job}
    while waiting or pool.is_busy():
        if not stopping and (signals.asked or (fail_fast and any(count > retries for count in failures.values()))):
            stopping = True
            pool.stop()
        waiting = [] if stopping else pool.start(waiting)
        for run, outcome in pool.ended():
            display.outcomes[run.address] = outcome
            display.pending.pop(run.address, None)
            if outcome.state != "failed":
                continue
            failures[run.address] += 1
            if run.attempt().get("state") == "running":  # the process could not record the failure itself
                with contextlib.suppress(OSError):
                    run.record_attempt(state="failed", error=outcome.error, ended=now())
            if failures[run.address] <= retries and not stopping:
                display.print(f"{run.name}: failed, retrying: {outcome.error.splitlines()[0]}")
                display.pending[run.address] = "waiting"
                waiting.append([run])
        display.refresh()
        if waiting or pool.is_busy():
            time.sleep(pool.seconds_between_polls)
    display.refresh(now=True)


def grouped(runs: Sequence[SweepRun], at_most: int | None) -> list[list[SweepRun]]:
    """The runs that each process trains: one, or those that differ only in numbers."""
    if at_most is None:
        return [[run] for run in runs]
    from transformer_jax.training.together import incompatible

    groups: list[list[SweepRun]] = []
    for run in runs:
        for group in groups:
            has_room = len(group) < at_most or not at_most
            if has_room and not incompatible([group[0].experiment, run.experiment]):
                group.append(run)
                break
        else:
            groups.append([run])
    return groups


def _has_failed(run: SweepRun) -> bool:
    return run.attempt().get("state") == "failed"


def valid_loss(run: SweepRun) -> float | None:
    """The validation loss at the end of a tuning run; None if it failed or diverged."""
    result = run.result()
    loss = None if result is None else result["valid"].get("loss")
    return loss if loss is not None and math.isfinite(loss) else None


def cost(runs: Sequence[SweepRun]) -> dict[str, float]:
    """What tuning runs took; of those that failed only their number is known."""
    results = [result for run in runs if (result := run.result()) is not None]
    return {
        "runs": len(runs),
        "updates": sum(result["steps"] for result in results),
        "train_seconds": sum(map(seconds_of, results)),
        "training_flops": sum(result["training_flops"] for result in results),
    }
