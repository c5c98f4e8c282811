"""Metrics reported to an experiment tracker, besides metrics.jsonl, on which nothing depends.

RUN/tracker.json has the identity of the run's record there, and the last step that was reported: a resumed run
continues its record, and steps before that are not reported again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NotRequired, Protocol, TypedDict

from transformer_jax import extension, schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import BadInput
from transformer_jax.extras import require
from transformer_jax.files.atomic import explained, write_json
from transformer_jax.files.progress import tell
from transformer_jax.files.record import read_if_sound

FILE = "tracker.json"


@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """The facts that a tracker receives when a run starts or resumes."""

    id: str  # the same whenever the run is resumed, and no other run's
    project: str
    group: str | None
    name: str
    options: Mapping[str, Any]  # by path, "model.num_heads"; those that have an effect
    folder: str
    is_resumed: bool


class Tracker(Protocol):
    """The interface of a tracker, made by calling a class or function with a `TrackedRun`."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Reports metrics of a step; steps never decrease in one process."""

    def finish(self) -> None:
        """Ends the record, which may be resumed later."""


class Wandb:
    """A run of Weights & Biases, whose files are in the run's folder. WANDB_MODE and so on have their usual effect."""

    def __init__(self, run: TrackedRun):
        import wandb

        self._run = wandb.init(
            id=run.id,
            project=os.environ.get("WANDB_PROJECT") or run.project,
            group=run.group,
            name=run.name,
            dir=os.environ.get("WANDB_DIR") or run.folder,
            config=dict(run.options),
            resume="allow",
            reinit="create_new",  # several runs may train in one process
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def finish(self) -> None:
        self._run.finish()


class Expendable:
    """Calls a tracker, which is left out from its first error on, with one warning."""

    def __init__(self, name: str, tracker: Tracker):
        self._name, self._tracker, self.works = name, tracker, True

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._call(lambda: self._tracker.log(step, metrics))

    def finish(self) -> None:
        self._call(lambda: self._tracker.finish())

    def _call(self, act: Callable[[], None]) -> None:
        try:
            if self.works:
                act()
        except (Exception, SystemExit) as error:
            self.works = False
            problem = f"failed and is left out from here on ({type(error).__name__}: {error})"
            tell(f"warning: {self._name} {problem}; metrics.jsonl has everything")


class Stored(TypedDict):
    """The content of tracker.json."""

    tracker: str
    id: str
    step: NotRequired[int]


@dataclasses.dataclass(frozen=True)
class Labels:
    """The name of a run where its metrics are reported."""

    project: str = "transformer_jax"  # the name of the sweep
    group: str | None = None  # the variant
    name: str | None = None  # the variant and the seed; none = the name of the folder


class Tracking:
    """The tracker of a run. If it cannot start, that is an error; later it is left out, with one warning."""

    def __init__(self, folder: Path, config: ExperimentConfig, labels: Labels, has_checkpoint: bool):
        self._name, self._file = str(config.train.tracker), folder / FILE
        self._record = read_if_sound(self._file, Stored) or {}
        # Without a checkpoint a run starts anew, perhaps as another one.
        if not (is_resumed := has_checkpoint and self._record.get("tracker") == self._name):
            self._record = {"tracker": self._name, "id": uuid.uuid4().hex}
        options = [option for option in schema.options(ExperimentConfig) if option.has_effect(config)]
        run = TrackedRun(
            id=self._record["id"],
            project=labels.project,
            group=labels.group,
            name=labels.name or folder.absolute().name,
            options={option.path: schema.value_at(config, option.path) for option in options},
            folder=str(folder.absolute()),
            is_resumed=is_resumed,
        )
        make = maker(self._name)
        try:
            self._tracker = Expendable(f"train.tracker = {self._name}", make(run))
        except (Exception, SystemExit) as error:
            hint = "" if schema.is_address(self._name) else "; `wandb login`, or WANDB_MODE=offline"
            raise BadInput(f"train.tracker = {self._name}: could not start: {error}{hint}") from error
        with explained(self._file):
            write_json(self._file, self._record)

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Reports the finite numbers among these values. The last step that was reported may come again."""
        known = {name: x for name, x in values.items() if isinstance(x, (int, float)) and math.isfinite(x)}
        if known and step >= self._record.get("step", 0):
            self._tracker.log(step, known)
            if self._tracker.works:
                self._record["step"] = step
                with contextlib.suppress(OSError):  # after a resumption a step may then be reported twice
                    write_json(self._file, self._record)

    def finish(self) -> None:
        self._tracker.finish()


def maker(name: str) -> Callable[[TrackedRun], Tracker]:
    """The class of the tracker with this name or address. Raises BadInput if it is not there."""
    if not schema.is_address(name):
        require(f"train.tracker = {name}", name)
        return Wandb
    return extension.load_function("train.tracker", name, required=("run",)).function
