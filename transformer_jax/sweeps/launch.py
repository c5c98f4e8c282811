"""Launches a sweep: checks it, prepares its data, runs what is missing, and repeats nothing that is finished."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax

from transformer_jax.data.corpora import named_files
from transformer_jax.data.prepare import prepare
from transformer_jax.data.prepared import MANIFEST
from transformer_jax.data_config import TASKS, DataConfig
from transformer_jax.errors import BadInput, ConfigError, Failed
from transformer_jax.files.progress import tell
from transformer_jax.processes.signals import StopSignals
from transformer_jax.sweeps import checks, provenance, tuning
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.local import LocalPool, slots
from transformer_jax.sweeps.process import Pool
from transformer_jax.sweeps.run import Job, SweepRun, now
from transformer_jax.sweeps.slurm import Slurm, SlurmPool
from transformer_jax.sweeps.spec import TUNING_SEED, ResolvedSweep, training_flops
from transformer_jax.sweeps.status import Display, RunStatus, failure, tracker_failures
from transformer_jax.sweeps.variance import ORDER, SPLIT

# The exit status after a signal, as shells have it.
EXIT_STATUS = {"by SIGINT": 130, "by SIGTERM": 143}

# --dry-run prepares generated data of at most so many pairs, and text files of so many bytes: each takes seconds.
FEW_PAIRS, SMALL_FILES = 5000, 4 << 20


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


def launch(sweep: SweepFolder, definition: ResolvedSweep, options: LaunchOptions) -> int:
    """Runs what is missing; returns the exit status."""
    variants = definition.chosen(options.only)
    with sweep.held():
        definition = ready(sweep, definition, options)
        prepare_data(definition, data_sets(sweep, definition, variants))
        sweep.save(definition)
        if definition.together:
            print(f"--together: {what_trains_together(sweep, definition, options)}", flush=True)
        with StopSignals() as signals:
            return Launcher(sweep, definition, variants, options, signals).run()


def ready(sweep: SweepFolder, definition: ResolvedSweep, options: LaunchOptions) -> ResolvedSweep:
    """The definition as it will be launched. Raises for all that cannot be launched, before data is prepared."""
    if options.slurm is not None:
        options.slurm.executor(sweep.path)
    sweep.check_place()
    definition = sweep.merged(definition, options.together is not None, options.only)
    definition = dataclasses.replace(
        definition,
        together=options.together is not None,
        cores=definition.cores if options.slurm else cores_of_a_run(options.jobs, definition.cores),
        code=provenance.digests(definition),
        accept_changed_code=options.accept_changed_code,
    )
    provenance.check(sweep, definition)
    return definition


def what_trains_together(sweep: SweepFolder, definition: ResolvedSweep, options: LaunchOptions) -> str:
    runs = sweep.runs(definition)
    if len(grouped(runs, options.together)) == len(runs):
        return "no two runs of this sweep can train together"
    if {ORDER, SPLIT} & set(definition.vary):
        return (
            "in this sweep the order or the split of the training pairs varies with the seed, so only runs of the same "
            "seed train together"
        )
    return "all seeds see the training pairs in the same order; the report mentions it"


def cores_of_a_run(jobs: int | None, recorded: int | None) -> int | None:
    """How many CPU cores each run gets: as many as the sweep began with, because the last digits depend on it."""
    cores = len(slots(jobs, recorded)[0].cores)
    if not cores:  # GPUs
        return recorded
    if recorded is not None and cores < recorded:
        tell(
            f"warning: the sweep's runs had {recorded} CPU cores each, here are {cores}: their last digits will differ"
        )
    elif recorded is not None and cores != len(slots(jobs)[0].cores):
        tell(f"each run has {recorded} of the CPU cores, as when the sweep began; its last digits depend on that")
    return recorded or cores


def data_sets(sweep: SweepFolder, definition: ResolvedSweep, variants: Sequence[str]) -> dict[Path, SweepRun]:
    """The folder of each data set, with a run that uses it."""
    places: dict[Path, SweepRun] = {}
    for run in sweep.all_runs(definition, variants):
        places.setdefault(sweep.data(run.experiment), run)
    return places


@contextlib.contextmanager
def trial_data(sweep: SweepFolder, definition: ResolvedSweep, variants: Sequence[str]) -> Iterator[dict[Path, Path]]:
    """Where the data of each data folder is: data whose preparation takes seconds is prepared in a temporary folder.

    Raises what `prepare_data` would of this data; other data is left out.
    """
    with tempfile.TemporaryDirectory() as scratch:
        places: dict[Path, Path] = {}
        sets = data_sets(sweep, definition, variants)
        for number, (place, run) in enumerate(sets.items()):
            if (place / MANIFEST).is_file():
                places[place] = place
            elif _is_small(run.experiment.data):
                places[place] = Path(scratch) / str(number)
        prepare_data(definition, {now: sets[place] for place, now in places.items()})
        yield places


def _is_small(data: DataConfig) -> bool:
    if data.corpus in TASKS:
        return data.task.train_size + data.task.valid_size + data.task.test_size <= FEW_PAIRS
    files = named_files(data)
    with contextlib.suppress(OSError):  # text that is not here
        return bool(files) and sum(map(os.path.getsize, files)) <= SMALL_FILES
    return False


def prepare_data(definition: ResolvedSweep, places: Mapping[Path, SweepRun]) -> None:
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
    definition: ResolvedSweep
    variants: list[str]
    options: LaunchOptions
    signals: StopSignals
    failed: list[str] = dataclasses.field(default_factory=list)  # names of runs
    diverged: list[str] = dataclasses.field(default_factory=list)
    unfinished: int = 0

    def run(self) -> int:
        if self.definition.tune:
            self._tune()
        if not self._is_over():
            statuses = self._run_missing(self.sweep.runs(self.definition, self.variants))
            self.diverged += [status.run.name for status in statuses if status.state == "diverged"]
        return self._conclude()

    def _tune(self) -> None:
        """Chooses the learning rate of each variant whose runs are over, and leaves out the others."""
        runs = self.sweep.tuning_runs(self.definition, self.variants)
        if not runs:
            return
        print(f"{len(runs)} runs to choose learning rates", flush=True)
        self._run_missing(runs)
        if self._is_over():
            return
        for name in dict.fromkeys(run.variant for run in runs):
            of_variant = [run for run in runs if run.variant == name]
            if not all(map(tuning.is_over, of_variant)):
                self.variants.remove(name)
            elif (choice := tuning.choice(of_variant)) is None:
                self.variants.remove(name)
                self.diverged += [run.name for run in of_variant]
            else:
                self.sweep.record_tuned(name, choice)
                losses = {
                    factor: "diverged" if loss is None else f"{loss:.4f}" for factor, loss in choice["losses"].items()
                }
                shown = ", ".join(f"x {factor}: {loss}" for factor, loss in losses.items())
                print(f"{name}: rate x {choice['factor']:g} (validation loss {shown})", flush=True)

    def _run_missing(self, runs: Sequence[SweepRun]) -> list[RunStatus]:
        """Runs those that are not finished; returns how all stand then."""
        display, options = Display(runs), self.options
        missing = [run for run in runs if not run.is_finished() and not run.has_diverged()]
        pool: Pool = (
            LocalPool(self.sweep, slots(options.jobs, self.definition.cores))
            if options.slurm is None
            else SlurmPool(self.sweep, options.slurm, display)
        )
        jobs = in_order(grouped(missing, options.together), self.definition)
        run_jobs(pool, jobs, display, self.signals, options.retries, options.fail_fast)
        statuses = display.close()
        self.unfinished += sum(status.state not in ("finished", "failed", "diverged") for status in statuses)
        self.failed += [status.run.name for status in statuses if status.state == "failed"]
        for status in statuses:
            if status.state in ("failed", "diverged"):
                print(f"\n{failure(status)}", flush=True)
        if warning := tracker_failures(statuses):
            print(f"\n{warning}", flush=True)
        return statuses

    def _is_over(self) -> bool:
        return bool(self.signals.asked or self._is_detached() or (self.failed and self.options.fail_fast))

    def _is_detached(self) -> bool:
        """Whether runs remain that this launch does not wait for."""
        return bool(self.options.slurm and self.options.slurm.detach and self.unfinished)

    def _conclude(self) -> int:
        if self.signals.asked:
            print(f"stopped {self.signals.asked}; the same command resumes the sweep", file=sys.stderr)
            return EXIT_STATUS[self.signals.asked]
        if self._is_detached():
            tuning_runs = bool(self.definition.tune and self.sweep.tuning_runs(self.definition, self.variants))
            print(
                f"\n{self.unfinished} runs are left to the cluster; --status shows their state"
                + (
                    "; when they are done, the same command chooses the learning rates and submits the rest"
                    * tuning_runs
                )
            )
            return 0
        if self.failed:
            stopped = "; --fail-fast stopped the others" if self.options.fail_fast else ""
            raise Failed(f"{len(self.failed)} runs: {'; '.join(self.failed)}{stopped}. The same command retries them")
        if self.diverged:
            raise Failed(
                f"{len(self.diverged)} runs diverged: {'; '.join(self.diverged)}. The same command does not repeat "
                "them unless their folders are removed"
            )
        if self.unfinished:
            raise Failed(f"{self.unfinished} runs are not finished; the same command resumes the sweep")
        print(f"\ntransformer-jax report {self.sweep.path}    writes the report", flush=True)
        return 0


def in_order(jobs: Sequence[Job], definition: ResolvedSweep) -> list[Job]:
    """The order in which jobs start: seed by seed, so that a sweep that is cut short has whole comparisons.

    Within a seed the baseline is first, because all others are compared with it, and then the most expensive.
    """
    baselines, seeds = definition.baselines(), [TUNING_SEED, *definition.seeds]

    def place(job: Job) -> tuple[bool, int, bool, float]:
        first = min((run.kind == "untuned", seeds.index(run.seed), run.variant not in baselines) for run in job)
        return *first, -sum(training_flops(run.experiment) for run in job)

    return sorted(jobs, key=place)


def run_jobs(
    pool: Pool,
    jobs: Sequence[Job],
    display: Display,
    signals: StopSignals,
    retries: int = 0,
    fail_fast: bool = False,
) -> None:
    """Returns when all runs have ended; after a stop signal, or a failure with `fail_fast`, when all are saved."""
    pending, failures, stopping = list(jobs), collections.Counter[str](), False
    display.pending |= {run.run_id: "waiting" for job in jobs for run in job}
    while pending or pool.is_busy():
        if not stopping and (signals.asked or (fail_fast and any(count > retries for count in failures.values()))):
            stopping = True
            pool.stop()
        pending = [] if stopping else pool.start(pending)
        for run, outcome in pool.ended():
            display.outcomes[run.run_id] = outcome
            display.pending.pop(run.run_id, None)
            if outcome.state != "failed":
                continue
            failures[run.run_id] += 1
            if run.attempt().get("state") == "running":  # the process could not record the failure itself
                with contextlib.suppress(OSError):
                    run.record_attempt(state="failed", error=outcome.error, ended=now())
            if failures[run.run_id] <= retries and not stopping:
                display.print(f"{run.name}: failed, retrying: {outcome.error.splitlines()[0]}")
                display.pending[run.run_id] = "waiting"
                pending.append([run])
        display.refresh()
        if pending or pool.is_busy():
            time.sleep(pool.seconds_between_polls)
    display.refresh(now=True)


def grouped(runs: Sequence[SweepRun], at_most: int | None) -> list[list[SweepRun]]:
    """The runs that each process trains: one, or those that differ only in numbers."""
    if at_most is None:
        return [[run] for run in runs]
    from transformer_jax.training.steps import incompatible

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
