"""A training, from top to bottom: set up (setup.py), restore, loop (step, log, save, validate), end.

It is of one run, or of several as one program (together.py says which). These see the same batches, each with the
random numbers of its seed, log, save and validate at the same steps, and end together. Each keeps its folder as if it
had trained alone (recorder.py).
"""

import collections
import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.prefetch import Prefetcher
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import EXIT_UNFINISHED, BadInput
from transformer_jax.files.progress import tell
from transformer_jax.processes import watchdog
from transformer_jax.processes.distributed import processes
from transformer_jax.processes.hardware import memory, seconds_since_start
from transformer_jax.processes.signals import StopSignals
from transformer_jax.runs.checkpoint import DamagedCheckpoint
from transformer_jax.runs.folder import RunFolder
from transformer_jax.runs.metrics import count_text
from transformer_jax.training.compiled import COMPILE_THREADS, Advance, CompiledRuns
from transformer_jax.training.debugging import Debugging
from transformer_jax.training.progress import ProgressLine, Throughput, header
from transformer_jax.training.recorder import Ending, Recorder
from transformer_jax.training.setup import RunSetup
from transformer_jax.update.step import StepOutcome, TrainState

# How many steps the host may be ahead of the devices.
STEPS_AHEAD = 2
# Called with the parameters at each validation; what it returns is added to the line in metrics.jsonl.
Evaluator = Callable[[Any], Mapping[str, float]]


def train(
    configs: Sequence[ExperimentConfig],
    prepared: Prepared,
    folders: Sequence[RunFolder],
    evaluator: Evaluator | None = None,
    params: Any = None,
    debugging: Debugging | None = None,
) -> list[Ending]:
    """Trains runs, or resumes them, until they end; returns how each ended.

    One new run may start from `params`. Several runs must be compatible (together.py).
    """
    setup = RunSetup(configs, prepared, is_evaluated=evaluator is not None)
    compiled = CompiledRuns(configs, setup.schedules, setup.mesh, params)
    refuse_too_large(compiled.abstract_states)
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        advance: Advance = compiled.advance
        if debugging is not None:
            advance = stack.enter_context(debugging.around(compiled, setup.last_step, folders[0].profile))
        runs = [
            stack.enter_context(
                Recorder.opened(config, schedule, folder, setup, label=f"{folder.path}: " if folders[1:] else "")
            )
            for config, schedule, folder in zip(configs, setup.schedules, folders, strict=True)
        ]
        pool = ThreadPoolExecutor(COMPILE_THREADS)
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        saved_step, restored = restore(runs, compiled.abstract_state)
        compile_ahead(setup, compiled, pool, saved_step or 0)
        # The checkpoint of a run that was stopped at step 0 has the parameters that it was to start from.
        states = compiled.new_states() if saved_step is None else compiled.join(restored)
        return Trainer(setup, compiled, advance, runs, evaluator, signals, states, saved_step).train()


def refuse_too_large(states: TrainState) -> None:
    """Raises BadInput if the states alone are larger than a device's memory: compiling them may never end."""
    leaves = jax.tree.leaves(states)
    needed = sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)
    available = memory()
    if available is not None and needed > available:
        raise BadInput(
            f"parameters and optimizer need {count_text(needed)}B of memory on each device, which has "
            f"{count_text(available)}B: choose a smaller model (model.d_model, model.num_encoder_layers ...)"
        )


# Restore.


def restore(runs: Sequence[Recorder], abstract_state: TrainState) -> tuple[int | None, Sequence[TrainState]]:
    """The newest step of which all runs have an undamaged checkpoint, and their states there; or None: from step 0.

    With several processes the first chooses the step, and all must be able to read it before anything is moved.
    """
    damaged: dict[int, Sequence[str]] = {}
    restored: Sequence[Any] = [(None, {})] * len(runs)
    saved_step = None
    common = set.intersection(*(set(run.checkpoints.steps) for run in runs))
    for step in processes().broadcast(sorted(common, reverse=True)):
        restored, problems = zip(*[_read(run, step, abstract_state) for run in runs], strict=True)
        if not any(problems):
            saved_step = step
            break
        damaged[step] = problems
    if damaged and saved_step is None:
        reasons = "; ".join(f"step {step}: {', '.join(filter(None, each))}" for step, each in damaged.items())
        raise BadInput(f"{runs[0].folder.checkpoints}: every checkpoint is damaged ({reasons})")
    for step, problems in damaged.items():
        for run, problem in zip(runs, problems, strict=True):
            if problem:
                aside = run.checkpoints.set_aside(step)
                run.tell(f"the checkpoint of step {step} is damaged ({problem}); moved to {aside}", "warning: ")
    step = saved_step or 0
    processes().compare({"the restored step": step})
    for run, (_, notes) in zip(runs, restored, strict=True):
        run.resume(step, notes)
        if len(runs) > 1:
            run.checkpoints.drop_after(step)
    return saved_step, [state for state, _ in restored]


def _read(run: Recorder, step: int, abstract_state: TrainState) -> tuple[tuple[Any, dict[str, Any]], str]:
    """The state and notes of a run's checkpoint, and what is wrong with it, which is the same in every process."""
    try:
        return run.checkpoints.restore(step, abstract_state), ""
    except DamagedCheckpoint as damage:
        return (None, {}), str(damage)


def compile_ahead(setup: RunSetup, compiled: CompiledRuns, pool: Executor, step: int) -> None:
    """Starts to compile the programs that are needed after a step, and prints what a log should begin with."""
    steps = setup.batches.first_of_each_shape(step, setup.last_step)
    of_validation = setup.validation.first_of_each_shape() if setup.validation else []
    batches = map(setup.placed_batch, steps), map(setup.placed_validation_batch, of_validation)
    compiling = compiled.compile_ahead(pool, *batches)
    if processes().is_first:
        if len(setup.configs) > 1:
            tell(f"{'together':>11}: {len(setup.configs)} runs")
        tell(header(compiled, setup.batches, setup.left_out, setup.last_step, len(compiling)))
        if setup.validation is None:
            tell("warning: there is no validation data: the loss on unseen sentences will not be known")
        if step:
            tell(f"resuming from the checkpoint of step {step:,}")


@dataclasses.dataclass(eq=False)
class Trainer:
    """The runs after `step` steps: their states on the devices, and a recorder for each."""

    setup: RunSetup
    compiled: CompiledRuns
    advance: Advance
    runs: Sequence[Recorder]
    evaluator: Evaluator | None
    signals: StopSignals
    states: TrainState
    saved_step: int | None = None  # of the last checkpoint

    def __post_init__(self) -> None:
        self.train_config, self.step = self.setup.configs[0].train, self.saved_step or 0
        self.progress = ProgressLine(self.step, self.setup.last_step, self.compiled.clock)
        self._outcomes: collections.deque[StepOutcome] = collections.deque()  # of the last steps
        self._saved_at, self._logged_step = time.monotonic(), self.step
        self.tokens, self._count_at = 0, 0  # target tokens at the last count, and the step of the next one

    # The loop.

    def train(self) -> list[Ending]:
        """Trains until the end."""
        train, last, statistics = self.train_config, self.setup.last_step, self.setup.batches.statistics()
        with contextlib.closing(self.progress.bar), Prefetcher(self.setup.placed_batch, self.step) as batches:
            if self.step and self.step % train.eval_every == 0:
                self.validate()  # if a kill came between the checkpoint and its validation
            devices, clock = self.setup.mesh.devices.size, self.compiled.clock
            speed = Throughput(self.setup.configs[0], statistics, devices, clock, batches, self.step)
            while (end := self.ending()) is None:
                self.take_step(next(batches))
                self.check_outcomes()
                if self.step % train.log_every == 0 or self.step == last or self.has_its_tokens():
                    self.log(speed)
                with speed.paused():
                    if self.step % train.checkpoint_every == 0 or self.is_late_for_a_checkpoint():
                        self.save()
                    if self.step % train.eval_every == 0:
                        self.validate()
            if end.final and not end.diverged and self.step > self._logged_step:  # a validation ends the run
                self.log(speed)
            return self.end(end)

    def take_step(self, batch: Any) -> None:
        """One step. Its program may not be ready yet, which may take minutes."""
        for run in self.runs:
            run.checkpoints.check()  # of those that are written meanwhile
        waited = self.compiled.waited
        self.states, outcome = self.advance(self.states, batch)
        if self.compiled.waited > waited:
            self.progress.bar.unpause()
        self.step += 1
        watchdog.advance()
        self._outcomes.append(outcome)

    def check_outcomes(self) -> None:
        """Reads the outcomes of earlier steps, so that the host is never far ahead of the devices."""
        while len(self._outcomes) > (0 if self.step == self.setup.last_step else STEPS_AHEAD):
            step, outcome, losses = self.step - len(self._outcomes) + 1, self._outcomes.popleft(), []
            with watchdog.waiting():
                fetched = self.compiled.fetch((outcome.loss, outcome.bad_in_a_row))
            for number, (run, (loss, bad_in_a_row)) in enumerate(zip(self.runs, fetched, strict=True)):
                if bad_in_a_row >= self.train_config.max_bad_steps and not run.divergence:
                    rate = float(run.schedule(self.compiled.fetch(outcome.updates)[number]))
                    run.divergence = (
                        f"the gradient was not finite in {bad_in_a_row} steps in a row, up to step {step:,} (learning "
                        f"rate {rate:.3g}): a lower optimizer.learning_rate, more warmup, or optimizer.clip_norm may "
                        "help"
                    )
                    if len(self.runs) > 1:
                        run.tell(run.divergence, "failed: ")
                if not run.divergence:
                    losses.append(float(loss))
            if losses:
                self.progress.advance(float(np.mean(losses)))

    # Log, save, validate.

    def has_its_tokens(self) -> bool:
        """Whether the run, which trains alone, has the target tokens of `train.tokens`.

        Only the devices know, because skipped updates do not count. They are asked where full batches would reach the
        limit, which is seldom and does not depend on how often metrics are logged.
        """
        limit = self.train_config.tokens
        if limit is None:
            return False
        if self.step >= self._count_at:
            self.tokens = self.runs[0].logged_tokens + int(self.states.sums.target_tokens)
            self._count_at = self.step + max(1, -(-(limit - self.tokens) // self.setup.most_tokens))
        return self.tokens >= limit

    def log(self, speed: Throughput) -> None:
        """Writes a line of metrics of each run about the steps since the last one."""
        fetched = self.compiled.fetch((self.states.sums, self.states.updates))
        self.states = self.compiled.reset_sums(self.states)
        self._logged_step = self.step
        rates = functools.partial(speed.rates, speed.lap(self.step))
        lines = [
            run.log(self.step, sums, int(updates), rates)
            for run, (sums, updates) in zip(self.runs, fetched, strict=True)
        ]
        self.progress.report(self.step, lines)

    def save(self) -> None:
        """Starts to write a checkpoint of each run, once the last ones of all are complete: all have a common step."""
        if self.saved_step == self.step or all(run.divergence for run in self.runs):
            return
        for run in self.runs:
            run.wait()
        for run, state in zip(self.runs, self.compiled.split(self.states), strict=True):
            run.save(self.step, state)
        self.saved_step, self._saved_at = self.step, time.monotonic()

    def is_late_for_a_checkpoint(self) -> bool:
        """Whether train.checkpoint_minutes have passed since the last one. Several processes ask where they log."""
        minutes = self.train_config.checkpoint_minutes
        is_late = minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes
        if processes().count == 1 or minutes is None:
            return is_late
        return self.step % self.train_config.log_every == 0 and bool(processes().broadcast(is_late))

    def validate(self) -> bool:
        """Evaluates the runs on the validation data and with the evaluators, those that have not been at this step.

        A signal to stop ends this early (of several processes only where all agree, before the next step). Returns
        whether all are validated: if not, the resumed run does it.
        """
        pending = {number: run for number, run in enumerate(self.runs) if run.validated_step != self.step}
        if not pending:
            return True

        def is_stopped() -> bool:
            return processes().count == 1 and self.signals.asked is not None

        params = self.states.params
        sums = self.setup.over_validation_data(self.compiled.evaluate, params, is_stopped)
        of_runs = [None] * len(self.runs) if sums is None else self.compiled.fetch(sums)
        for number, run in pending.items():
            translated: Mapping[str, float] = {}
            if self.evaluator is not None and not is_stopped():
                translated = self.evaluator(self.compiled.params_of(params, number))
            if is_stopped():
                return False
            run.write_validation(self.step, of_runs[number], translated)
        return True

    # End.

    def ending(self) -> Ending | None:
        """Why the runs end here, or None: they are complete, or interrupted by a signal or by train.hours."""
        run, hours = self.runs[0], self.train_config.hours
        if all(run.divergence for run in self.runs):
            return Ending(run.divergence, diverged=True)
        if self.step >= self.setup.last_step:
            return Ending("finished")
        if self.has_its_tokens():
            return Ending(f"finished {self.tokens:,} target tokens")
        if reason := run.early_end:  # vmapped runs have no limits that depend on how they train
            return Ending(f"finished: {reason}")
        is_late = hours is not None and processes().is_first and seconds_since_start() > hours * 3600
        why = self.signals.stop_at(self.step, f"after train.hours = {hours:g}" if is_late else None)
        return None if why is None else Ending(f"stopped {why}", final=False)

    def end(self, end: Ending) -> list[Ending]:
        """Saves, and validates if the runs are complete."""
        if not end.diverged:
            self.save()
            if end.final and not self.validate():
                end = Ending(f"stopped {self.signals.asked}", final=False)
        endings = [run.end(self.step, end) for run in self.runs]
        if not end.final:
            self.signals.exit_status = EXIT_UNFINISHED  # from here on, while trackers and files are closed
        return endings
