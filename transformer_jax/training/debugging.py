"""Debugging a run: a profiler trace of some steps (--profile), and the origin of the first NaN (--debug-nans).

Both wrap the step that the loop calls; the loop does not know of them.
"""

import contextlib
import dataclasses
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from transformer_jax.config import MeshConfig
from transformer_jax.errors import BadInput, Failed
from transformer_jax.files.progress import tell
from transformer_jax.schema import with_values
from transformer_jax.training.compiled import Advance, CompiledRuns
from transformer_jax.update import sharding
from transformer_jax.update.loss import Objective, load_loss
from transformer_jax.update.step import StepOutcome, TrainState, train_step

# An installed library is among the site-packages.
LIBRARY = str(Path(__file__).parents[1])


class Debugging(NamedTuple):
    """The debugging options of a run that trains alone."""

    profile: tuple[int, int] | None = None  # the first step, counted from 1 as in metrics.jsonl, and their number
    debug_nans: bool = False

    @contextlib.contextmanager
    def around(self, compiled: CompiledRuns, last_step: int, directory: Path) -> Iterator[Advance]:
        """A step to call in place of `compiled.advance`. A trace is written into the directory."""
        advance: Advance = compiled.advance
        if self.debug_nans:
            if jax.process_count() > 1:
                raise BadInput("--debug-nans works with one process, and there are several: train with --processes=1")
            advance = halting_at_nans(compiled)
        with contextlib.ExitStack() as stack:
            if self.profile is not None:
                advance = stack.enter_context(traced(advance, *self.profile, last_step, directory))
            yield advance


@contextlib.contextmanager
def traced(advance: Advance, first: int, count: int, last_step: int, directory: Path) -> Iterator[Advance]:
    """A step that writes a trace of some calls for TensorBoard and Perfetto."""
    last, number, trace = first + count - 1, 0, contextlib.ExitStack()
    if last > last_step:
        raise BadInput(f"--profile: this run ends at step {last_step:,}, before step {last:,}, the last traced")

    def traced_step(state: TrainState, batch: Any) -> tuple[TrainState, StepOutcome]:
        nonlocal number
        if number == 0 and (number := int(state.step)) >= first:
            raise BadInput(f"--profile: step {first:,} is in the past: training resumes after step {number:,}")
        number += 1
        if number == first:
            jax.block_until_ready(state)  # so that earlier work is not in the trace
            trace.enter_context(jax.profiler.trace(directory, create_perfetto_trace=True))
        with jax.profiler.StepTraceAnnotation("update", step_num=number):
            state, outcome = advance(state, batch)
        if number == last:
            jax.block_until_ready(state)
            trace.close()
            tell(f"steps {first:,} to {last:,} are traced in {directory}")
        return state, outcome

    with trace:  # ends the trace, too, of a run that is stopped half-way
        yield traced_step
    if number == 0:
        tell("--profile: nothing was traced: no step was left to train")


def halting_at_nans(compiled: CompiledRuns) -> Advance:
    """A step that ends the run at the first non-finite gradient, and finds the operation that it came from.

    Such a step changes no parameter, so it can be repeated, one operation after another.
    """

    def halting_step(state: TrainState, batch: Any) -> tuple[TrainState, StepOutcome]:
        state, outcome = compiled.advance(state, batch)
        if int(outcome.bad_in_a_row):
            before = dataclasses.replace(state, step=state.step - 1)
            raise Failed(f"step {int(state.step):,}: {_origin(compiled, before, batch)}")
        return state, outcome

    return halting_step


def _origin(compiled: CompiledRuns, state: TrainState, batch: Any) -> str:
    """Runs a step again without jit, on one device."""
    device = jax.local_devices()[0]
    mesh = sharding.make_mesh(MeshConfig(), [device])
    state, batch = jax.device_put((state, batch), device)
    config = with_values(compiled.configs[0], {"model.attention_implementation": "plain"})  # a kernel is one operation
    try:
        with jax.debug_nans(True), jax.disable_jit():
            objective = Objective.of(config.train, load_loss(config.train))
            train_step(config, objective, compiled.optimizer, mesh, jax.random.key(config.seed), state, batch)
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
