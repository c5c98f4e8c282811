"""The training loop of one run. Training several runs in one program (together.py) uses the same loop."""

import collections
import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from transformer_jax.config import ExperimentConfig, TrainConfig
from transformer_jax.data.prefetch import Prefetcher
from transformer_jax.data.prepared import Prepared
from transformer_jax.files.progress import tell
from transformer_jax.processes.compilation import announced_when_slow
from transformer_jax.processes.distributed import processes
from transformer_jax.processes.signals import StopSignals
from transformer_jax.runs.folder import RunFolder
from transformer_jax.training.debugging import Debugging
from transformer_jax.training.ending import Ending
from transformer_jax.training.journal import Evaluator, Journal
from transformer_jax.training.progress import ProgressLine, Throughput, header
from transformer_jax.training.setup import RunSetup
from transformer_jax.training.steps import CompiledSteps
from transformer_jax.update.step import Pulse, TrainState

if TYPE_CHECKING:
    from transformer_jax.training.together_journal import TogetherJournal

# How many steps the host may be ahead of the devices.
STEPS_AHEAD = 2


def train(
    config: ExperimentConfig,
    prepared: Prepared,
    folder: RunFolder,
    evaluators: Sequence[Evaluator] = (),
    params: Any = None,
    probes: Debugging | None = None,
) -> str:
    """Trains a run, or resumes it, until it ends; returns why it ended. A new run starts from `params`."""
    probes = probes or Debugging()
    inputs = RunSetup(config, prepared, has_evaluators=bool(evaluators))
    probes.check(inputs)
    programs = CompiledSteps(config, inputs.schedule(config), inputs.mesh, params)
    journal = Journal(programs, folder, evaluators, inputs)
    with StopSignals() as signals, journal.open(), probes.installed(programs, folder.profile):
        state = journal.restore()
        take_steps(state, journal.saved, inputs, programs, journal, signals)
    return journal.ending.why if journal.ending else ""


def take_steps(
    state: TrainState | None,
    step: int,
    inputs: RunSetup,
    programs: CompiledSteps,
    journal: "Journal | TogetherJournal",
    signals: StopSignals,
) -> None:
    """Trains from the state after `step` updates until the end; None is a new run."""
    train, began = inputs.config.train, time.monotonic()
    speed = Throughput(inputs.config.model, inputs.batches.statistics(), inputs.mesh.devices.size, train.peak_flops)
    pulses: collections.deque[Pulse] = collections.deque()
    compiled: set[tuple[Any, ...]] = set()  # the shapes of batches so far: each has its own program
    announce(inputs, programs, speed, resumed_at=None if state is None else step)
    state = programs.new_state() if state is None else state
    journal.count_tokens(state, step)  # train.tokens may have been lowered
    progress = ProgressLine(step, inputs.last_step)
    with contextlib.closing(progress), Prefetcher(inputs.placed_batch, step) as batches:
        speed.start(batches, step)
        while not journal.end_if_due(state, step, interruption(step, train, began, signals)):
            batch = next(batches)
            shape = tuple(leaf.shape for leaf in jax.tree.leaves(batch))
            if shape in compiled:
                state, pulse = programs.step(state, batch)
            else:
                state, pulse = first_call(programs, state, batch, progress, is_announced=not compiled)
                compiled.add(shape)
            step += 1
            is_last = step == inputs.last_step
            pulses.append(pulse)
            while len(pulses) > (0 if is_last else STEPS_AHEAD):  # so that the host is never far ahead of the devices
                progress.advance(journal.check(jax.device_get(pulses.popleft()), step - len(pulses)))
            journal.count_tokens(state, step)
            if journal.log_is_due(step):
                state, line = journal.log(state, step, speed)
                progress.report(step, line)
            elif step % inputs.collect_every == 0:
                state = journal.collect(state)
            with speed.paused():
                if step % train.eval_every == 0 or is_last:
                    compiling = inputs.compilations.seconds
                    journal.validate(state, step)
                    progress.exclude(inputs.compilations.seconds - compiling)
                if step % train.checkpoint_every == 0 or is_last:
                    journal.save(state, step)


def first_call(
    programs: CompiledSteps, state: TrainState, batch: Any, progress: ProgressLine, is_announced: bool
) -> tuple[TrainState, Pulse]:
    """A step that compiles its program. It runs alone, so that its time can be left out of the speed."""
    jax.block_until_ready(state)
    began = time.perf_counter()
    with announced_when_slow(tell) if is_announced and processes().is_first else contextlib.nullcontext():
        state, pulse = jax.block_until_ready(programs.step(state, batch))
    progress.exclude_step(time.perf_counter() - began)
    return state, pulse


def interruption(step: int, train: TrainConfig, began: float, signals: StopSignals) -> Ending | None:
    """Why training stops before its end: by a signal, or by train.hours. It can then be resumed."""
    is_late = train.hours is not None and time.monotonic() - began > train.hours * 3600
    why = signals.stop_at(step, f"after train.hours = {train.hours:g}" if is_late else None)
    return None if why is None else Ending(f"stopped {why}", final=False)


def announce(inputs: RunSetup, programs: CompiledSteps, speed: Throughput, resumed_at: int | None) -> None:
    """Prints what a log should begin with."""
    if not processes().is_first:
        return
    tell(header(inputs, programs, speed))
    if inputs.validation is None:
        tell("warning: there is no validation data: the loss on unseen sentences will not be known")
    if resumed_at is not None:
        tell(f"resuming from the checkpoint of step {resumed_at:,}")
