"""Debugging a run: a profiler trace of some steps (--profile), and the origin of the first NaN (--debug-nans).

Both wrap the compiled step; the loop does not know of them.
"""

import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from transformer_jax.config import MeshConfig
from transformer_jax.errors import BadInput, Failed
from transformer_jax.files.progress import tell
from transformer_jax.training.steps import CompiledSteps
from transformer_jax.update import sharding
from transformer_jax.update.step import StepMetrics, TrainState, train_step

# An installed library is among the site-packages.
LIBRARY = str(Path(__file__).parents[1])
Step = Callable[[TrainState, Any], tuple[TrainState, StepMetrics]]


class Span(NamedTuple):
    """Consecutive steps, counted from 1 as in metrics.jsonl."""

    first: int
    steps: int

    @property
    def last(self) -> int:
        return self.first + self.steps - 1


@dataclasses.dataclass(frozen=True)
class Debugging:
    """What was asked for, of a run that trains alone."""

    profile: Span | None = None
    debug_nans: bool = False

    @contextlib.contextmanager
    def installed(self, steps: CompiledSteps, last_step: int, directory: Path) -> Iterator[None]:
        """Wraps the compiled step while it is entered. A trace is written into the directory."""
        problem = ""
        if self.debug_nans and jax.process_count() > 1:
            problem = "--debug-nans works with one process, and there are several: train with --processes=1"
        if self.profile is not None and self.profile.last > last_step:
            problem = (
                f"--profile: this run ends at step {last_step:,}, before step {self.profile.last:,}, the last traced"
            )
        if problem:
            raise BadInput(problem)
        step = steps.step
        with contextlib.ExitStack() as stack:
            if self.debug_nans:
                steps.step = halting(steps)
            if self.profile is not None:
                steps.step = stack.enter_context(traced(steps.step, self.profile, directory))
            try:
                yield
            finally:
                steps.step = step


@contextlib.contextmanager
def traced(step: Step, span: Span, directory: Path) -> Iterator[Step]:
    """The step, with a trace of some steps for TensorBoard and Perfetto."""
    number, trace = 0, contextlib.ExitStack()  # the number of the last step

    def traced_step(state: TrainState, batch: Any) -> tuple[TrainState, StepMetrics]:
        nonlocal number
        if not number and (number := int(state.step)) >= span.first:
            raise BadInput(f"--profile: step {span.first:,} was made before this start, whose first is {number + 1:,}")
        number += 1
        if number == span.first:
            jax.block_until_ready(state)  # so that earlier work is not in the trace
            trace.enter_context(jax.profiler.trace(directory, create_perfetto_trace=True))
        with jax.profiler.StepTraceAnnotation("update", step_num=number):
            state, metrics = step(state, batch)
        if number == span.last:
            jax.block_until_ready(state)
            trace.close()
            tell(f"steps {span.first:,} to {span.last:,} are traced in {directory}")
        return state, metrics

    with trace:  # ends the trace, too, of a run that is stopped half-way
        yield traced_step
    if number < span.first:
        tell(f"warning: --profile: nothing is traced; the run ended before step {span.first:,}")


def halting(steps: CompiledSteps) -> Step:
    """The step, which ends the run at the first non-finite gradient and finds the operation that it came from.

    Such a step changes no parameter, so it can be repeated, one operation after another.
    """
    step = steps.step

    def halting_step(state: TrainState, batch: Any) -> tuple[TrainState, StepMetrics]:
        state, metrics = step(state, batch)
        if int(metrics.bad_in_a_row):
            before = dataclasses.replace(state, step=state.step - 1)
            raise Failed(f"step {int(state.step):,}: {_origin(steps, before, batch)}")
        return state, metrics

    return halting_step


def _origin(steps: CompiledSteps, state: TrainState, batch: Any) -> str:
    """Runs a step again without jit, on one device."""
    device = jax.local_devices()[0]
    mesh = sharding.make_mesh(MeshConfig(), [device])
    state, batch = jax.device_put((state, batch), device)
    try:
        with jax.debug_nans(True), jax.disable_jit():
            train_step(steps.configs[0], steps.optimizer, state, batch, mesh)
    except FloatingPointError as error:
        return f"{error}, {_place(error)}"
    return "the gradient is not finite, but no operation produces a NaN: a number overflowed its type"


def _place(error: FloatingPointError) -> str:
    """The innermost line of the library or the user; for the backward pass, the line of the forward pass."""
    forward = error.__cause__ or error
    frames = [
        frame
        for frame in traceback.extract_tb(forward.__traceback__)
        if frame.filename.startswith(LIBRARY) or "site-packages" not in frame.filename
    ]
    place = f"{frames[-1].filename}:{frames[-1].lineno} ({frames[-1].name})"
    return f"in the backward pass of {place}" if error.__cause__ else f"at {place}"
