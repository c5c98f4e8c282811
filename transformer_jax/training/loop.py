"""The loop: restore, step, evaluate, save. No maths here; what it evaluates besides the loss is handed in."""

import collections
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import EvaluationBatches
from transformer_jax.data.prefetch import Prefetcher
from transformer_jax.data.prepared import Prepared
from transformer_jax.processes.compilation import CompileWatch, told_when_slow
from transformer_jax.processes.signals import StopSignals
from transformer_jax.runs.folder import RunFolder
from transformer_jax.runs.metrics import ProgressLine
from transformer_jax.training.course import Course
from transformer_jax.training.header import header
from transformer_jax.training.journal import Ending, Evaluator, Journal, exp
from transformer_jax.training.probes import Probes
from transformer_jax.training.programs import Programs
from transformer_jax.training.throughput import Throughput
from transformer_jax.update import sharding
from transformer_jax.update.loss import TokenSums
from transformer_jax.update.step import Pulse, TrainState

# How many steps the host may be ahead of the devices.
STEPS_AHEAD = 2
# Tokens after which the host takes over the devices' sums, even where no line of metrics is due: up to here float32
# counts exactly, and int32 is far from its end.
EXACT = 2**24


def train(
    config: ExperimentConfig,
    prepared: Prepared,
    folder: RunFolder,
    evaluators: Sequence[Evaluator] = (),
    params: Any = None,
    probes: Probes | None = None,
) -> str:
    """Trains, or goes on training, until the config's end; returns why it ended. A new run begins with `params`."""
    probes = probes or Probes()
    course = Course(config, prepared, watched=bool(evaluators))
    probes.check(course)
    journal = Journal(config, folder, evaluators, course)
    programs = Programs(config, journal.schedule, course.mesh, params)
    loop = Loop(course, [journal], programs)
    journal.look_back()
    if journal.recorded is None:
        journal.settle()  # only now: what cannot be trained leaves no trace of a run
    with StopSignals() as signals, journal, probes.watching(programs, folder.profile):
        restored = journal.restore(programs.plan)
        if journal.recorded is not None:
            journal.settle()  # only now: what cannot be resumed changes nothing
        ending = loop.run([restored], signals)[0]
    if journal.failure is not None:
        raise journal.failure
    return ending.why


class Loop:
    """Takes runs through a course, step by step: usually one. A run that has ended is computed but no longer heard."""

    def __init__(self, course: Course, journals: Sequence[Journal], programs: Programs):
        self.course, self.journals, self.programs = course, journals, programs
        self.config = journals[0].config  # what the loop asks of it is the same for all
        self.watch = CompileWatch()
        self.throughput = Throughput(self.config, course.batches.statistics(), course.mesh.devices.size)
        shapes = course.batches.shapes
        self.most_tokens = max(shape.rows * shape.target for shape in shapes)  # of a batch
        self.fold_every = max(1, EXACT // max(shape.rows * max(shape.source, shape.target) for shape in shapes))
        self.count_at = 0  # the first step at which a run may have its train.tokens

    @property
    def going(self) -> list[int]:
        """The runs that have not ended, by their numbers."""
        return [run for run, journal in enumerate(self.journals) if journal.ending is None]

    def run(self, restored: Sequence[TrainState | None], signals: StopSignals) -> list[Ending]:
        """From what was restored of each run, or from the beginning, until each has a reason to end."""
        state = self.programs.begin(restored)
        step = int(_by_run(state.step)[0])
        with ProgressLine(step, self.course.last_step, shown=jax.process_index() == 0) as progress:
            schedule, plan = self.journals[0].schedule, self.programs.plan
            about = (self.config, self.course.batches, self.course.mesh, schedule, self.course.last_step)
            progress.tell(header(*about, self.throughput, plan.params))
            if self.course.validation is None:
                progress.tell("warning: there is no validation data: the loss on unseen sentences will not be known")
            if restored[0] is not None:
                progress.tell(f"going on from the checkpoint of step {step:,}")
            self.with_all_tokens(state, step)  # which may have been lowered
            self.take_steps(state, step, progress, signals)
        return [journal.ending for journal in self.journals if journal.ending is not None]

    def take_steps(self, state: TrainState, step: int, progress: ProgressLine, signals: StopSignals) -> None:
        every, began, first = self.config.train, time.monotonic(), step
        pulses: collections.deque[Pulse] = collections.deque()
        with Prefetcher(self.course.placed_batch, step) as prefetcher:
            self.throughput.start(prefetcher, step)
            while self.goes_on(state, step, self.reason_to_stop(step, began, signals), progress):
                batch = next(prefetcher)
                with told_when_slow(progress.tell) if step == first else contextlib.nullcontext():
                    state, pulse = self.programs.step(state, batch)
                step += 1
                pulses.append(pulse)
                is_last = step == self.course.last_step
                self.feel(pulses, 0 if is_last else STEPS_AHEAD, step, progress)
                lines = self.going if step % every.log_every == 0 or is_last else self.with_all_tokens(state, step)
                if lines:
                    state = self.log(state, step, lines, progress)
                elif step % self.fold_every == 0:
                    state = self.fold(state)
                with self.throughput.paused():
                    if step % every.eval_every == 0 or is_last:
                        self.validate(state, step, self.going, progress)
                    if step % every.checkpoint_every == 0 or is_last:
                        self.save(state, step, self.going)

    def reason_to_stop(self, step: int, began: float, signals: StopSignals) -> Ending | None:
        """A reason for all runs to be taken up another time."""
        limit = self.config.train.hours
        is_late = limit is not None and time.monotonic() - began > limit * 3600
        why = signals.stop_at(step, f"after train.hours = {limit:g}" if is_late else None)
        return None if why is None else Ending(f"stopped {why}", final=False)

    def goes_on(self, state: TrainState, step: int, stop: Ending | None, progress: ProgressLine) -> bool:
        """Whether any run goes on. One that has a reason to end is validated and saved a last time."""
        reasons = {run: self.journals[run].reason_to_end(step) or stop for run in self.going}
        endings = {run: reason for run, reason in reasons.items() if reason is not None}
        own = [run for run, ending in endings.items() if ending.final and self.journals[run].validated != step]
        self.validate(state, step, own, progress)
        self.save(state, step, [run for run in endings if self.journals[run].saved != step])
        for run, ending in endings.items():
            journal = self.journals[run]
            with journal.by_itself():
                journal.checkpoints.wait()
                progress.tell(f"{journal.label}{ending.why} at step {step:,}; {self.watch}")
            journal.ending = journal.ending or ending  # unless the saving failed
        return bool(self.going)

    def feel(self, pulses: collections.deque[Pulse], ahead: int, step: int, progress: ProgressLine) -> None:
        """Looks at the steps that must be done by now, so that the host is never far ahead of the devices."""
        while len(pulses) > ahead and self.going:
            pulse = jax.device_get(pulses.popleft())
            losses, bad_in_a_row = _by_run(pulse.loss), _by_run(pulse.bad_in_a_row)
            progress.advance(float(np.mean(losses[self.going])))
            for run in self.going:
                with self.journals[run].by_itself():
                    self.journals[run].feel(step - len(pulses), int(bad_in_a_row[run]))

    def with_all_tokens(self, state: TrainState, step: int) -> list[int]:
        """The runs that have been trained on `train.tokens` target tokens.

        Updates that were skipped do not count, so only the devices know. They are asked where full batches would be
        enough, which is seldom, and does not depend on when lines of metrics are written.
        """
        limit = self.config.train.tokens
        if limit is None or step < self.count_at:
            return []
        on_devices = _by_run(jax.device_get(state.sums.target_tokens))
        for run in self.going:
            self.journals[run].count(int(on_devices[run]))
        left = {run: limit - self.journals[run].tokens for run in self.going}
        self.count_at = step + min(
            (-(-tokens // self.most_tokens) for tokens in left.values() if tokens > 0), default=1
        )
        return [run for run, tokens in left.items() if tokens <= 0]

    def fold(self, state: TrainState) -> TrainState:
        """The state without its sums, which the journals now have."""
        sums = jax.tree.map(_by_run, jax.device_get(state.sums))
        for run in self.going:
            self.journals[run].fold(jax.tree.map(lambda each, run=run: each[run], sums))
        return self.programs.without_sums(state)

    def log(self, state: TrainState, step: int, runs: Sequence[int], progress: ProgressLine) -> TrainState:
        """A line of metrics of these runs about the steps since the last one; they are then forgotten."""
        counts = jax.tree.map(_by_run, jax.device_get((state.sums, state.updates, state.skipped)))
        self.throughput.lap(step)
        lines = []
        others = [run for run in self.going if run not in runs]
        for run in runs:
            sums, updates, skipped = jax.tree.map(lambda counted, run=run: counted[run], counts)
            with self.journals[run].by_itself():
                own = self.journals[run].log(step, sums, int(updates), int(skipped), self.throughput, progress)
                lines.append(own)
        if lines:
            progress.report(step, lines)
        return self.programs.without_sums(state, kept=others)

    def validate(self, state: TrainState, step: int, runs: Sequence[int], progress: ProgressLine) -> None:
        """Loss on validation data, of all runs at once, and the evaluators' opinion of each."""
        if not runs:
            return
        measured: Sequence[dict[str, float]] = [{} for _ in self.journals]
        if self.course.validation is not None:
            measured = evaluate(self.programs.evaluate, state.params, self.course.validation, self.course.mesh)
        for run in runs:
            journal = self.journals[run]
            params = self.programs.take(state, run).params if journal.evaluators else None
            with journal.by_itself():
                journal.validate(step, measured[run], params, progress)

    def save(self, state: TrainState, step: int, runs: Sequence[int]) -> None:
        """Checkpoints. None is begun before all runs have their last ones whole: so there is a step that all have."""
        for run in runs:
            with self.journals[run].by_itself():
                self.journals[run].checkpoints.wait()
        for run in runs:
            if self.journals[run].ending is None:
                with self.journals[run].by_itself():
                    self.journals[run].save(step, self.programs.take(state, run))


def evaluate(
    evaluate_once: Callable[..., Any], params: Any, batches: EvaluationBatches, mesh: Any
) -> list[dict[str, float]]:
    """Each run's loss, perplexity and accuracy over every sentence once: sums first, divided once."""
    totals: dict[str, Any] = collections.defaultdict(float)
    for number in range(len(batches)):
        batch = batches.batch(number, *sharding.batch_share(mesh))
        sums = jax.device_get(evaluate_once(params, sharding.place_batch(batch, mesh)))
        for name, value in sums._asdict().items():
            totals[name] += _by_run(value).astype(np.float64)
    return [
        {
            "valid_loss": float(loss / weight),
            "valid_perplexity": exp(float(nll / tokens)),
            "valid_accuracy": float(right / tokens),
        }
        for loss, nll, right, tokens, weight in zip(*(totals[name] for name in TokenSums._fields), strict=True)
    ]


def _by_run(numbers: Any) -> np.ndarray:
    """One run's number as a list of one; several runs' numbers are one already."""
    return np.atleast_1d(numbers)
