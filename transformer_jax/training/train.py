"""A training, told from top to bottom: set up, restore, loop (step, log, save, validate), end.

It is of one run, or of several that train as one program (vmapped.py). These see the same batches with independent
random numbers, log, save and validate at the same steps, and end together. Each keeps its folder as if it had trained
alone.
"""

import collections
import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.prefetch import Prefetcher
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import BadInput, Failed
from transformer_jax.files.progress import tell
from transformer_jax.processes.compilation import announced_when_slow
from transformer_jax.processes.distributed import processes
from transformer_jax.processes.hardware import seconds_since_start
from transformer_jax.processes.signals import StopSignals
from transformer_jax.runs.checkpoint import DamagedCheckpoint, refuse_without_digest
from transformer_jax.runs.folder import RunFolder
from transformer_jax.training.debugging import Debugging
from transformer_jax.training.ending import Ending, ending
from transformer_jax.training.progress import ProgressLine, Throughput, header
from transformer_jax.training.recorder import Recorder
from transformer_jax.training.setup import RunSetup
from transformer_jax.training.steps import CompiledSteps
from transformer_jax.training.vmapped import describe, refuse_incompatible
from transformer_jax.update.step import StepMetrics, TrainState

# How many steps the host may be ahead of the devices.
STEPS_AHEAD = 2
# What the progress line shows of several runs is their mean; their speeds are added.
MEANS = ("loss", "perplexity", "learning_rate", "data_wait", "seconds")
# Called with the parameters at each validation; what it returns is added to the line in metrics.jsonl.
Evaluator = Callable[[Any], Mapping[str, float]]


def train(
    configs: Sequence[ExperimentConfig],
    prepared: Prepared,
    folders: Sequence[RunFolder],
    evaluators: Sequence[Evaluator] = (),
    params: Any = None,
    debugging: Debugging | None = None,
) -> list[Ending]:
    """Trains runs, or resumes them, until they end; returns how each ended. A new run starts from `params`."""
    refuse_incompatible(configs)
    debugging = debugging or Debugging()
    setup = RunSetup(configs[0], prepared, has_evaluators=bool(evaluators))
    debugging.check(setup)
    steps = CompiledSteps(configs, [setup.schedule(config) for config in configs], setup.mesh, params)
    refuse_without_digest(steps.abstract_state)  # not at the first checkpoint, which may be hours away
    runs = [
        Recorder(config, schedule, folder, setup, label)
        for config, schedule, folder, label in zip(configs, steps.schedules, folders, labels(folders), strict=True)
    ]
    with StopSignals() as signals, contextlib.ExitStack() as opened, debugging.installed(steps, folders[0].profile):
        for run in runs:
            opened.enter_context(run.opened())
        trainer = Trainer(setup, steps, runs, evaluators, signals)
        trainer.restore()
        return trainer.train()


def labels(folders: Sequence[RunFolder]) -> list[str]:
    """What distinguishes the folders; nothing for a single one."""
    if len(folders) == 1:
        return [""]
    above = os.path.commonpath([folder.path.absolute().parent for folder in folders])
    return [os.path.relpath(folder.path, above) for folder in folders]


class Trainer:
    """The runs after `step` updates: their states on the devices, and a recorder for each."""

    def __init__(
        self,
        setup: RunSetup,
        steps: CompiledSteps,
        runs: Sequence[Recorder],
        evaluators: Sequence[Evaluator],
        signals: StopSignals,
    ):
        self.setup, self.steps, self.runs, self.evaluators, self.signals = setup, steps, runs, evaluators, signals
        self.config, self.step = setup.config.train, 0
        self.saved: int | None = None  # the step of the last checkpoint
        self.speed = Throughput(
            setup.config.model, setup.batches.statistics(), setup.mesh.devices.size, self.config.peak_flops
        )
        self._compiled: set[tuple[Any, ...]] = set()  # the shapes of batches so far: each has its own program
        self._metrics: collections.deque[StepMetrics] = collections.deque()  # of the last steps
        self.tokens, self._count_at = 0, 0  # target tokens at the last count, and the step of the next one

    # Restore.

    def restore(self) -> None:
        """Continues from the newest step of which all runs have an undamaged checkpoint; or starts at step 0.

        Of several processes the first chooses the step, and all must be able to read it.
        """
        states: list[TrainState] = []
        damaged: dict[int, list[str]] = {}
        common = set.intersection(*(set(run.checkpoints.steps) for run in self.runs))
        for step in processes().broadcast(sorted(common, reverse=True)):
            restored, problems = self._read(step)
            if not any(problems):
                self.step, self.saved = step, step
                break
            damaged[step] = problems
        else:
            if damaged:
                reasons = "; ".join(f"step {step}: {', '.join(filter(None, each))}" for step, each in damaged.items())
                raise BadInput(f"{self.runs[0].folder.checkpoints}: every checkpoint is damaged ({reasons})")
            restored = [(None, {})] * len(self.runs)
        for step, problems in damaged.items():
            for run, problem in zip(self.runs, problems, strict=True):
                if problem:
                    aside = run.checkpoints.set_aside(step)
                    run.tell(
                        f"warning: {run.label}the checkpoint of step {step} is damaged ({problem}); moved to {aside}"
                    )
        for run, (state, notes) in zip(self.runs, restored, strict=True):
            run.resume(self.step, notes)
            states.append(state)
        if len(self.runs) > 1:
            for run in self.runs:
                run.checkpoints.drop_after(self.step)
        self.announce()
        self.states = self.steps.join(states) if self.step else self.steps.new_state()

    def _read(self, step: int) -> tuple[list[tuple[Any, dict[str, Any]]], list[str]]:
        """The state and notes of each run's checkpoint, or what is wrong with it; the same in every process."""
        restored, problems = [], []
        for run in self.runs:
            try:
                restored.append(run.checkpoints.restore(step, self.steps.abstract_state))
                problem = ""
            except DamagedCheckpoint as damage:
                problem = str(damage)
                if processes().count > 1:  # the others may be waiting for this one inside of their reading
                    tell(f"{processes()} cannot read the checkpoint of step {step}: {problem}")
            everywhere = processes().gather(problem)
            if any(everywhere) and not all(everywhere):
                number, reason = next((number, text) for number, text in enumerate(everywhere) if text)
                raise Failed(
                    f"process {number} cannot read the checkpoint of step {step} ({reason}), and others can: do all "
                    f"see the files in {run.checkpoints.directory}? The same command tries again"
                )
            problems.append(problem)
        return restored, problems

    def announce(self) -> None:
        """Prints what a log should begin with."""
        if not processes().is_first:
            return
        if len(self.runs) > 1:
            tell(f"{'together':>11}: {describe(self.steps.configs)}")
        tell(header(self.setup, self.steps, self.speed))
        if self.setup.validation is None:
            tell("warning: there is no validation data: the loss on unseen sentences will not be known")
        if self.step:
            tell(f"resuming from the checkpoint of step {self.step:,}")

    # The loop.

    def train(self) -> list[Ending]:
        """Trains until the end."""
        train, last_step = self.config, self.setup.last_step
        self.count_tokens()  # train.tokens may have been lowered
        self.progress = ProgressLine(self.step, last_step)
        with contextlib.closing(self.progress), Prefetcher(self.setup.placed_batch, self.step) as batches:
            if self.step and self.step % train.eval_every == 0:
                self.validate()  # if a kill came between the checkpoint and its validation
            self.speed.start(batches, self.step)
            while (end := self.ending()) is None:
                self.take_step(next(batches))
                self.check_metrics()
                self.count_tokens()
                is_last = self.step == last_step
                if self.step % train.log_every == 0 or is_last or self._has_its_tokens():
                    self.log()
                elif self.step % self.setup.collect_every == 0:
                    self.collect()
                with self.speed.paused():
                    if self.step % train.checkpoint_every == 0 or is_last:
                        self.save()
                    if self.step % train.eval_every == 0 or is_last:
                        self.validate()
            return self.end(end)

    def take_step(self, batch: Any) -> None:
        """One update. A step that compiles its program runs alone, so that its time can be left out of the speed."""
        shape = tuple(leaf.shape for leaf in jax.tree.leaves(batch))
        if shape in self._compiled:
            self.states, metrics = self.steps.step(self.states, batch)
        else:
            jax.block_until_ready(self.states)
            began = time.perf_counter()
            is_announced = not self._compiled and processes().is_first
            with announced_when_slow(tell) if is_announced else contextlib.nullcontext():
                self.states, metrics = jax.block_until_ready(self.steps.step(self.states, batch))
            self.progress.exclude_step(time.perf_counter() - began)
            self._compiled.add(shape)
        self.step += 1
        self._metrics.append(metrics)

    def check_metrics(self) -> None:
        """Reads the metrics of earlier steps, so that the host is never far ahead of the devices."""
        while len(self._metrics) > (0 if self.step == self.setup.last_step else STEPS_AHEAD):
            step, losses = self.step - len(self._metrics) + 1, []
            for run, metrics in zip(self.runs, self.steps.fetch(self._metrics.popleft()), strict=True):
                if metrics.bad_in_a_row >= self.config.max_bad_steps and not run.diverged:
                    run.diverged = (
                        f"the gradient was not finite in {metrics.bad_in_a_row} steps in a row, up to step {step:,} "
                        f"(learning rate {float(run.schedule(step)):.3g}); these updates were skipped. A lower "
                        "optimizer.learning_rate, more warmup, or optimizer.clip_norm may help"
                    )
                    if len(self.runs) > 1:
                        run.tell(f"failed: {run.label}{run.diverged}")
                if not run.diverged:
                    losses.append(float(metrics.loss))
            if losses:
                self.progress.advance(float(np.mean(losses)))

    # Log, save, validate.

    def count_tokens(self) -> None:
        """Counts the target tokens for `train.tokens`, which only a run that trains alone may have.

        Only the devices know, because skipped updates do not count. They are asked where full batches would reach the
        limit, which is seldom and does not depend on how often metrics are logged.
        """
        if self.config.tokens is None or self.step < self._count_at:
            return
        self.tokens = self.runs[0].tokens + int(self.states.sums.target_tokens)
        self._count_at = self.step + max(1, -(-(self.config.tokens - self.tokens) // self.setup.most_tokens))

    def _has_its_tokens(self) -> bool:
        return self.config.tokens is not None and self.tokens >= self.config.tokens

    def log(self) -> None:
        """Writes a line of metrics of each run about the steps since the last one."""
        sums = self.steps.fetch((self.states.sums, self.states.updates))
        self.states = self.steps.reset_sums(self.states)
        self.speed.lap(self.step)
        lines = []
        for run, (of_run, updates) in zip(self.runs, sums, strict=True):
            run.add(of_run)
            lines.append(run.log(self.step, int(updates), self.speed))
        self.progress.report(self.step, shown(lines))

    def collect(self) -> None:
        """Takes over the devices' sums without a line of metrics."""
        for run, sums in zip(self.runs, self.steps.fetch(self.states.sums), strict=True):
            run.add(sums)
        self.states = self.steps.reset_sums(self.states)

    def save(self) -> None:
        """Starts to write a checkpoint of each run, once the last ones of all are complete: all have a common step."""
        if self.saved == self.step or all(run.diverged for run in self.runs):
            return
        for run in self.runs:
            run.checkpoints.wait()
        for run, state in zip(self.runs, self.steps.split(self.states), strict=True):
            run.save(self.step, state)
        self.saved = self.step

    def validate(self) -> None:
        """Evaluates the runs on the validation data and with the evaluators, those that have not been at this step."""
        pending = [number for number, run in enumerate(self.runs) if run.validated != self.step]
        if not pending:
            return
        compiling = self.setup.compilations.seconds
        params = self.steps.evaluated_params(self.states)
        sums = self.setup.validation_sums(self.steps.evaluate, params)
        of_runs = [None] * len(self.runs) if sums is None else self.steps.fetch(sums)
        for number in pending:
            translated: dict[str, float] = {}
            for evaluator in self.evaluators:
                translated |= evaluator(self.steps.params_of(params, number))
            self.runs[number].write_validation(self.step, of_runs[number], translated)
        self.progress.exclude(self.setup.compilations.seconds - compiling)

    # End.

    def ending(self) -> Ending | None:
        """Why the runs end here, or None: they are complete, or interrupted by a signal or by train.hours."""
        hours = self.config.hours
        if all(run.diverged for run in self.runs):
            return Ending(self.runs[0].diverged, diverged=True)
        # Runs that train together have no limits that depend on how they train.
        complete = ending(self.config, self.setup.last_step, self.step, self.tokens, self.runs[0].validations)
        is_late = hours is not None and processes().is_first and seconds_since_start() > hours * 3600
        why = self.signals.stop_at(self.step, f"after train.hours = {hours:g}" if is_late else None)
        return complete or (None if why is None else Ending(f"stopped {why}", final=False))

    def end(self, end: Ending) -> list[Ending]:
        """Saves, and validates if the runs are complete."""
        if not end.diverged:
            self.save()
            if end.final:
                self.validate()
        return [run.end(self.step, end) for run in self.runs]


def shown(lines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What the progress line shows of several runs' lines of metrics."""
    if len(lines) == 1:
        return lines[0]
    means = {name: float(np.nanmean([line[name] for line in lines])) for name in MEANS}
    together = sum(line["target_tokens_per_second"] for line in lines)
    return {"runs": len(lines), **means, "target_tokens_per_second": together}
