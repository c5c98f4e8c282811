"""Debugging a run: a profiler trace of some updates (--profile), and the origin of the first NaN (--debug-nans).

Both wrap the step; the loop does not know of them.
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
from transformer_jax.training.course import Course
from transformer_jax.training.programs import Programs
from transformer_jax.update import sharding
from transformer_jax.update.loss import load_loss
from transformer_jax.update.step import Pulse, TrainState, train_step

# An installed library is among the site-packages.
LIBRARY = str(Path(__file__).parents[1])


class Span(NamedTuple):
    """Consecutive updates, counted from 1 as in metrics.jsonl."""

    first: int
    steps: int

    @property
    def last(self) -> int:
        return self.first + self.steps - 1


@dataclasses.dataclass(frozen=True)
class Probes:
    """What was asked for."""

    profile: Span | None = None
    debug_nans: bool = False

    def check(self, course: Course) -> None:
        """Refuses what this training cannot show."""
        if self.profile is not None and self.profile.last > course.last_step:
            raise BadInput(
                f"--profile: this run ends at update {course.last_step:,}, before update {self.profile.last:,}, the "
                "last to be traced"
            )
        if self.debug_nans and jax.process_count() > 1:
            raise BadInput("--debug-nans works with one process, and there are several: train with --processes=1")

    @contextlib.contextmanager
    def installed(self, programs: Programs, directory: Path) -> Iterator[None]:
        """Wraps the step of the programs while it is entered. A trace is written into the directory."""
        step = programs.step
        with contextlib.ExitStack() as stack:
            if self.debug_nans:
                programs.step = NanHalt(programs)
            if self.profile is not None:
                programs.step = stack.enter_context(Tracer(programs.step, self.profile, directory))
            try:
                yield
            finally:
                programs.step = step


class Tracer:
    """Writes a trace of some updates, for TensorBoard and Perfetto."""

    def __init__(self, step: Any, span: Span, directory: Path):
        self._step, self._span, self._directory = step, span, directory
        self._update: int | None = None  # the next one
        self._tracing = False

    def __call__(self, state: TrainState, batch: Any) -> tuple[TrainState, Pulse]:
        if self._update is None:
            self._update = int(state.step) + 1
            if self._update > self._span.first:
                raise BadInput(
                    f"--profile: update {self._span.first:,} was made before this start, whose first is "
                    f"{self._update:,}"
                )
        if self._update == self._span.first:
            jax.block_until_ready(state)  # so that earlier work is not in the trace
            jax.profiler.start_trace(self._directory, create_perfetto_trace=True)
            self._tracing = True
        with jax.profiler.StepTraceAnnotation("update", step_num=self._update):
            state, pulse = self._step(state, batch)
        if self._update == self._span.last:
            jax.block_until_ready(state)
            self._write()
        self._update += 1
        return state, pulse

    def _write(self) -> None:
        jax.profiler.stop_trace()
        self._tracing = False
        tell(f"updates {self._span.first:,} to {self._span.last:,} are traced in {self._directory}")

    def __enter__(self) -> "Tracer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._tracing:  # the run was stopped half-way
            self._write()
        elif kind is None and (self._update or 0) <= self._span.first:
            tell(f"warning: --profile: nothing is traced; the run ended before update {self._span.first:,}")


class NanHalt:
    """Ends the run at the first gradient that is not finite, and finds the operation that it came from.

    Such a step changes no parameter, so it can be repeated, one operation after another.
    """

    def __init__(self, programs: Programs):
        self._programs, self._step = programs, programs.step

    def __call__(self, state: TrainState, batch: Any) -> tuple[TrainState, Pulse]:
        state, pulse = self._step(state, batch)
        if int(pulse.bad_in_a_row):
            before = dataclasses.replace(state, step=state.step - 1)
            raise Failed(f"update {int(state.step):,}: {self._origin(before, batch)}")
        return state, pulse

    def _origin(self, state: TrainState, batch: Any) -> str:
        """Runs the step again without jit, on one device."""
        programs, device = self._programs, jax.local_devices()[0]
        mesh = sharding.make_mesh(MeshConfig(), [device])
        state, batch = jax.device_put((state, batch), device)
        try:
            with jax.debug_nans(True), jax.disable_jit():
                train_step(programs.config, programs.optimizer, load_loss(programs.config.train), state, batch, mesh)
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
