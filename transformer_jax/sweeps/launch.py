"""A sweep from its definition to its last result: what is missing is run, what is there is not run again."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence

import jax

from transformer_jax import schema
from transformer_jax.data.prepare import prepare
from transformer_jax.errors import BadInput, ConfigError, Failed
from transformer_jax.processes.signals import StopSignals
from transformer_jax.sweeps import cost, provenance, status
from transformer_jax.sweeps.folder import SweepFolder, SweepRun
from transformer_jax.sweeps.local import LocalJobs, slots
from transformer_jax.sweeps.slurm import Slurm, SlurmJobs
from transformer_jax.sweeps.spec import BY_SEED, SAME_FOR_ALL, Definition
from transformer_jax.sweeps.status import Display, Standing

# What a process ends with that was asked to stop by a signal, as shells count.
EXIT_STATUS = {"by SIGINT": 130, "by SIGTERM": 143}

TOGETHER = {
    BY_SEED: "--together: in this sweep the order of the training pairs varies with the seed, so only runs of the same "
    "seed train together",
    SAME_FOR_ALL: "--together: all seeds see the training pairs in the same order; the report says so",
}


@dataclasses.dataclass(frozen=True)
class Orders:
    """How a sweep is to be run this time; what comes out does not depend on it."""

    only: str | None = None  # a pattern of variants' names
    jobs: int | None = None
    together: int | None = None  # so many runs at most in one program, 0 for as many as fit; none = each by itself
    retries: int = 0
    fail_fast: bool = False
    accept_changed_code: bool = False  # which is recorded, and reported
    slurm: Slurm | None = None  # none = on this machine


def leave_devices_alone() -> None:
    """Has JAX in this process use the CPU alone: on a GPU it would take the memory that the runs need."""
    jax.config.update("jax_platforms", "cpu")


def launch(sweep: SweepFolder, definition: Definition, orders: Orders) -> int:
    """Runs what is missing; the exit status."""
    variants = definition.chosen(orders.only)
    if orders.slurm is not None:
        orders.slurm.executor(sweep.path)  # refused now rather than after an hour of preparing data
    with sweep.held():
        definition = sweep.merged(definition, together=orders.together is not None)
        definition = dataclasses.replace(
            definition,
            together=orders.together is not None,
            code=provenance.digests(definition),
            accept_changed_code=orders.accept_changed_code,
        )
        provenance.check(sweep, definition)
        _refuse_groups(sweep, definition, orders)
        prepare_data(sweep, definition, variants)
        sweep.settle(definition)
        if definition.together:
            print(TOGETHER[definition.data_order], flush=True)
        with StopSignals() as signals:
            launcher = Launcher(sweep, definition, variants, orders, signals)
            return launcher.run()


def _refuse_groups(sweep: SweepFolder, definition: Definition, orders: Orders) -> None:
    """Refuses now what would be refused when runs begin to train together."""
    from transformer_jax.training.together import refuse_incompatible

    for group in grouped(sweep.runs(definition), orders.together):
        if len(group) > 1:
            refuse_incompatible([run.experiment for run in group])


def prepare_data(sweep: SweepFolder, definition: Definition, variants: Sequence[str]) -> None:
    """Prepares each text once, for all runs that ask for the same; refuses what could not be trained on or measured."""
    problems, seen = [], set()
    for name in variants:
        experiment = definition.experiments[name]
        place = sweep.data(experiment)
        if place in seen:
            continue
        seen.add(place)
        try:
            prepared = prepare(experiment, place)
        except BadInput as problem:
            problems.append(f"variant {name!r}: {problem}")
            continue
        for split in definition.sweep.tests:
            if split not in prepared.splits or split == "train" or not len(prepared.pairs(split)):
                known = [other for other in prepared.splits if other != "train" and len(prepared.pairs(other))]
                hint = schema.nearest(split, known)
                problems.append(f"variant {name!r}: tests = {split!r}: its data has no such sentences; {hint}")
        if definition.tune and ("valid" not in prepared.splits or not len(prepared.pairs("valid"))):
            problems.append(f"variant {name!r}: --tune chooses by validation loss, and there is no validation data")
    if problems:
        raise ConfigError(problems)


class Launcher:
    """One launch: tries of learning rates first, where the sweep asks for them, then the runs themselves."""

    def __init__(
        self, sweep: SweepFolder, definition: Definition, variants: Sequence[str], orders: Orders, signals: StopSignals
    ):
        self.sweep, self.definition, self.variants = sweep, definition, list(variants)
        self.orders, self.signals = orders, signals
        self.failed: dict[str, Standing] = {}  # by the run's name
        self.unfinished = 0

    def run(self) -> int:
        if self.definition.tune:
            self._tune()
        if not self._is_over():
            adopt_tries(self.sweep, self.definition)
            self._work_off(self.sweep.runs(self.definition, self.variants))
        return self._conclude()

    def _tune(self) -> None:
        """Tries learning rates and chooses one for each variant; a variant for which none can be chosen is left out."""
        tries = self.sweep.tries(self.definition, self.variants)
        if not tries:
            return
        print(f"{len(tries)} runs to choose learning rates", flush=True)
        failed_before = dict(self.failed)
        self._work_off(tries)
        if self._is_over():
            return
        self.failed, failed_tries = failed_before, self.failed
        for name in dict.fromkeys(run.variant for run in tries):
            mine = [run for run in tries if run.variant == name]
            losses = {f"{run.factor:g}": valid_loss(run) for run in mine}
            known = {factor: loss for factor, loss in losses.items() if loss is not None}
            if not known:
                self.failed |= {run.name: failed_tries[run.name] for run in mine if run.name in failed_tries}
                self.variants.remove(name)
                continue
            best = min(known, key=lambda factor: known[factor])
            self.sweep.note_tuned(name, float(best), losses)
            told = ", ".join(
                f"x {factor}: {'failed' if loss is None else f'{loss:.4f}'}" for factor, loss in losses.items()
            )
            print(f"{name}: rate x {best} (validation loss {told})", flush=True)

    def _work_off(self, runs: Sequence[SweepRun]) -> None:
        """Runs what is missing of these."""
        display = Display(runs)
        here = self.orders
        missing = [run for run in runs if not run.is_finished()]
        if here.slurm is not None and here.slurm.detach:
            # A launch that does not wait cannot tell a rate that failed just now from one that is still to be tried.
            missing = [run for run in missing if run.factor is None or run.attempt().get("state") != "failed"]
        jobs = longest_first(grouped(missing, here.together))
        how = (display, self.signals, here.retries, here.fail_fast)
        if here.slurm is not None:
            SlurmJobs(self.sweep, here.slurm, *how).work_off(jobs)
        else:
            LocalJobs(self.sweep, slots(here.jobs), *how).work_off(jobs)
        standings = display.close()
        self.unfinished = sum(standing.state not in ("finished", "failed") for standing in standings.values())
        failed = [run for run in runs if standings[run.address].state == "failed"]
        self.failed |= {run.name: standings[run.address] for run in failed}
        for run in failed:
            print(f"\n{status.failure(run, standings[run.address])}", flush=True)

    def _is_over(self) -> bool:
        return bool(self.signals.asked or self._has_left() or (self.failed and self.orders.fail_fast))

    def _has_left(self) -> bool:
        """Whether runs are at work that this launch does not wait for."""
        return bool(self.orders.slurm and self.orders.slurm.detach and self.unfinished)

    def _conclude(self) -> int:
        if self.signals.asked:
            print(f"stopped {self.signals.asked}; the same command goes on from here", file=sys.stderr)
            return EXIT_STATUS[self.signals.asked]
        if self._has_left():
            tries = bool(self.definition.tune and self.sweep.tries(self.definition, self.variants))
            print(
                f"\n{self.unfinished} runs are left to the cluster; --status looks in"
                + ("; when they are done, the same command chooses the learning rates and submits the rest" * tries)
            )
            return 0
        if self.failed:
            stopped = "; --fail-fast stopped the others" if self.orders.fail_fast else ""
            raise Failed(
                f"{len(self.failed)} of the runs: {'; '.join(self.failed)}{stopped}. The same command tries them again"
            )
        if self.unfinished:
            raise Failed(f"{self.unfinished} of the runs are not finished; the same command goes on")
        print(f"\ntransformer-jax report {self.sweep.path}    makes the page of what was found", flush=True)
        return 0


def grouped(runs: Sequence[SweepRun], at_most: int | None) -> list[list[SweepRun]]:
    """The runs that one process trains: each by itself, or together those that differ only in numbers."""
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


def longest_first(jobs: list[list[SweepRun]]) -> list[list[SweepRun]]:
    """What takes longest begins first: nobody waits at the end for one long job beside idle devices."""
    return sorted(jobs, key=lambda job: -sum(cost.training_flops(run.experiment) for run in job))


def valid_loss(run: SweepRun) -> float | None:
    """Where a try of a learning rate ended; None where it came to nothing."""
    result = run.result()
    loss = None if result is None else result["valid"].get("loss")
    return loss if loss is not None and math.isfinite(loss) else None


def adopt_tries(sweep: SweepFolder, definition: Definition) -> None:
    """The try with the rate that was chosen is the first seed's run: it is not made again."""
    for run in sweep.runs(definition):
        factor = sweep.tuned().get(run.variant, {}).get("factor")
        tried = run.path.with_name(f"tune-{factor:g}") if factor is not None else None
        if run.seed == definition.seeds[0] and tried is not None and tried.is_dir() and not run.path.exists():
            tried.rename(run.path)
