"""Runs of one shape, trained together: one program does a step of all of them, by `vmap` over their states.

They may differ in what is only a number to the program: the seed, the rates of dropout, label smoothing, the learning
rate's whole course, the optimizer's numbers. They see the same batches in the same order; their random bits are their
own. Each keeps its own folder, as if it had been alone.
"""

import contextlib
import copy
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import BadInput
from transformer_jax.files.progress import tell
from transformer_jax.processes.compilation import unfused
from transformer_jax.processes.signals import StopSignals
from transformer_jax.runs.checkpoint import DamagedCheckpoint
from transformer_jax.runs.folder import RunFolder
from transformer_jax.training.course import Course
from transformer_jax.training.journal import Ending, Evaluator, Journal
from transformer_jax.training.loop import Loop
from transformer_jax.training.programs import Programs
from transformer_jax.update import sharding
from transformer_jax.update.loss import TokenSums
from transformer_jax.update.optimizer import make_optimizer
from transformer_jax.update.step import IntervalSums, Pulse, TrainState, evaluation_sums, new_state, train_step

# What may differ. The programs are given these as arrays, one number a run, where they do differ ...
NUMBERS = (
    "seed",
    "model.dropout",
    "model.attention_dropout",
    "model.activation_dropout",
    "train.label_smoothing",
    "optimizer.beta1",
    "optimizer.beta2",
    "optimizer.epsilon",
    "optimizer.clip_norm",
    "optimizer.weight_decay",
)
# ... and each run's learning rate, whatever its course.
SCHEDULE = (
    "optimizer.schedule",
    "optimizer.learning_rate",
    "optimizer.warmup_steps",
    "optimizer.final_fraction",
)
# A run without these has another optimizer than one with them.
ALL_OR_NONE = ("optimizer.clip_norm", "optimizer.weight_decay")


def incompatible(configs: Sequence[ExperimentConfig]) -> list[str]:
    """The options whose differences forbid training these runs together, a line each; none if nothing does."""
    problems = []
    for path, values in _differing(configs).items():
        told = ", ".join(map(str, dict.fromkeys(values)))
        if path not in (*NUMBERS, *SCHEDULE):
            problems.append(f"{path} = {told}: must be the same for all")
        elif path in ALL_OR_NONE and not all(values) and any(values):
            problems.append(f"{path} = {told}: all have one, or none has")
    return problems


def _differing(configs: Sequence[ExperimentConfig]) -> dict[str, list[Any]]:
    """The options in which not all are the same: each one's value, in the runs' order."""
    values = {
        option.path: [schema.value_at(config, option.path) for config in configs]
        for option in schema.options(ExperimentConfig)
    }
    return {path: own for path, own in values.items() if any(value != own[0] for value in own)}


def train_together(
    configs: Sequence[ExperimentConfig],
    prepared: Prepared,
    folders: Sequence[RunFolder],
    evaluators: Sequence[Evaluator] = (),
) -> list[Ending]:
    """Trains runs, or goes on training them, until each one's end: how each ended. A failing one harms no other."""
    refuse_incompatible(configs)
    course = Course(configs[0], prepared, watched=bool(evaluators))
    above = os.path.commonpath([folder.path.absolute().parent for folder in folders])
    journals = [
        Journal(config, folder, evaluators, course, os.path.relpath(folder.path, above))
        for config, folder in zip(configs, folders, strict=True)
    ]
    # Refused here, what cannot be trained leaves no trace of a run.
    plans = [Programs(journal.config, journal.schedule, course.mesh).plan for journal in journals]
    with StopSignals() as signals, contextlib.ExitStack() as opened:
        for journal, plan in zip(journals, plans, strict=True):
            with journal.by_itself():
                opened.enter_context(journal.folder.held())
                journal.look_back()
                if journal.recorded is None:
                    journal.settle()
                opened.enter_context(journal)
                journal.note_if_ended(plan)
                if journal.recorded is not None:
                    journal.settle()
        while left := [journal for journal in journals if journal.ending is None]:
            _go_on(course, left, signals)
    return [journal.ending for journal in journals if journal.ending is not None]


def refuse_incompatible(configs: Sequence[ExperimentConfig]) -> None:
    problems = incompatible(configs)
    if len(configs) > 1 and configs[0].train.keep_latest < 2:
        problems.append("train.keep_latest = 1: must be at least 2, or a kill while they save leaves no common step")
    if jax.process_count() > 1:
        problems.append(f"they train in one process, here are {jax.process_count()}")
    if problems:
        raise BadInput("runs that cannot train together:\n  " + "\n  ".join(problems))


def _go_on(course: Course, left: Sequence[Journal], signals: StopSignals) -> None:
    """Takes to their ends those runs that can go on from one step; others follow. Or finds that they must be chosen
    anew, because a checkpoint is damaged or not theirs."""
    group, step = standing_together(left)
    configs, schedules = [journal.config for journal in group], [journal.schedule for journal in group]
    together = Together(configs, schedules, course.mesh) if len(group) > 1 else None
    programs = together or Programs(configs[0], schedules[0], course.mesh)
    restored: list[TrainState | None] = []
    for journal in group:
        with journal.by_itself(), contextlib.suppress(DamagedCheckpoint):
            restored.append(journal.state_at(step, programs.plan))
    if len(restored) < len(group):
        return
    for journal in group:
        with journal.by_itself():
            journal.forget_after(step)
    if together:
        tell(f"{'together':>11}: {about(configs)}")
    Loop(course, group, programs).run(restored, signals)


def about(configs: Sequence[ExperimentConfig]) -> str:
    """Which runs these are."""
    differing = {path: ", ".join(map(str, values)) for path, values in _differing(configs).items()}
    return f"{len(configs)} runs; " + "; ".join(f"{path}: {told}" for path, told in differing.items())


def standing_together(journals: Sequence[Journal]) -> tuple[list[Journal], int]:
    """The runs that go on together, and the newest step that they all have; step 0 is had by all.

    A kill while they were saving leaves some with the step before the leader's. One that stands further back has failed
    at some time, and does what is left by itself.
    """
    steps = {journal: [0, *journal.checkpoints.steps] for journal in journals}
    *_, before, newest = [0, *max(steps.values(), key=max)]
    at_newest, at_before = ([journal for journal in journals if step in steps[journal]] for step in (newest, before))
    return (at_before, before) if set(at_newest) < set(at_before) else (at_newest, newest)


class Together(Programs):
    """The programs of several runs. Their state is that of one with an axis more, in front: a place for each run."""

    def __init__(self, configs: Sequence[ExperimentConfig], schedules: Sequence[optax.Schedule], mesh: Mesh):
        super().__init__(configs[0], schedules[0], mesh)
        self.schedules = schedules
        one = jax.tree.map(lambda leaf: leaf.sharding, self.plan)
        several = jax.tree.map(lambda place: NamedSharding(mesh, PartitionSpec(None, *place.spec)), one)
        everywhere = NamedSharding(mesh, PartitionSpec())
        self.numbers = jax.device_put(numbers_of(configs), everywhere)
        options = unfused(mesh)
        self._new = jax.jit(jax.vmap(self.new_run), out_shardings=several, compiler_options=options)
        self._join = jax.jit(lambda *states: jax.tree.map(lambda *own: jnp.stack(own), *states), out_shardings=several)
        self._keep = jax.jit(
            lambda sums, is_kept: jax.tree.map(lambda each: jnp.where(is_kept, each, jnp.zeros_like(each)), sums),
            out_shardings=everywhere,
        )
        self._take = jax.jit(lambda states, run: jax.tree.map(lambda leaf: leaf[run], states), out_shardings=one)
        step = jax.jit(
            self.step_of_all,
            in_shardings=(everywhere, several, sharding.batch_sharding(mesh)),
            out_shardings=(several, everywhere),
            donate_argnums=1,
            compiler_options=options,
        )
        evaluate = jax.jit(
            jax.vmap(self.evaluate_run, in_axes=(0, 0, None)), out_shardings=everywhere, compiler_options=options
        )
        self.step, self.evaluate = (functools.partial(self._run, program, self.numbers) for program in (step, evaluate))
        self.new_sums = jax.jit(
            lambda: jax.tree.map(lambda zero: jnp.stack([zero] * len(configs)), IntervalSums.zero()),
            out_shardings=everywhere,
        )

    def begin(self, restored: Sequence[TrainState | None]) -> TrainState:
        """Of a group, either all begin or all go on."""
        if restored[0] is None:
            return self._run(self._new, self.numbers)
        return self._join(*restored)

    def take(self, state: TrainState, run: int) -> TrainState:
        return self._take(state, run)

    def without_sums(self, state: TrainState, kept: Sequence[int] = ()) -> TrainState:
        if not kept:
            return super().without_sums(state)
        is_kept = np.isin(np.arange(len(self.schedules)), kept)
        return dataclasses.replace(state, sums=self._keep(state.sums, is_kept))

    # What follows is one run's, with numbers that are traced.

    def new_run(self, numbers: Mapping[str, jax.Array]) -> TrainState:
        config = with_values(self.config, numbers)
        return new_state(config, make_optimizer(config.optimizer, self.schedules[0]))

    def evaluate_run(self, numbers: Mapping[str, jax.Array], params: Any, batch: Any) -> TokenSums:
        return evaluation_sums(with_values(self.config, numbers), params, batch)

    def step_of_run(
        self, numbers: Mapping[str, jax.Array], rate: jax.Array, state: TrainState, batch: Any
    ) -> tuple[TrainState, Pulse]:
        config = with_values(self.config, numbers)
        return train_step(config, make_optimizer(config.optimizer, lambda count: rate), state, batch, self.mesh)

    def step_of_all(self, numbers: Mapping[str, jax.Array], states: TrainState, batch: Any) -> tuple[TrainState, Pulse]:
        """A schedule is asked with a run's own count of updates, and is the run's own, of whatever form."""
        rates = jnp.stack([schedule(states.updates[run]) for run, schedule in enumerate(self.schedules)])
        return jax.vmap(self.step_of_run, in_axes=(0, 0, 0, None))(numbers, rates, states, batch)

    def _run(self, program: Callable[..., Any], *arguments: Any) -> Any:
        """A part of one's own may need a number when its program is made, which is before there is one."""
        try:
            return program(*arguments)
        except jax.errors.ConcretizationTypeError as error:
            raise BadInput(
                f"these runs differ in {', '.join(self.numbers)}, but a part of the model or the optimizer is another "
                "program for each of these numbers: they must train apart"
            ) from error


def numbers_of(configs: Sequence[ExperimentConfig]) -> dict[str, np.ndarray]:
    """The numbers in which the runs differ, and the seeds in any case; one number a run."""
    differing = _differing(configs)
    paths = [path for path in NUMBERS if path in differing or path == "seed"]
    return {
        path: np.asarray(
            [schema.value_at(config, path) for config in configs], np.uint32 if path == "seed" else np.float32
        )
        for path in paths
    }


def with_values(section: Any, values: Mapping[str, Any]) -> Any:
    """A section of the config with these values, by path. They may be traced: nothing is checked."""
    changed = copy.copy(section)
    for path, value in values.items():
        name, _, inner = path.partition(".")
        own = with_values(getattr(changed, name), {inner: value}) if inner else value
        object.__setattr__(changed, name, own)
    return changed
