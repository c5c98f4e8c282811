"""The interface of experiment trackers, and Weights & Biases, MLflow and Trackio behind it (optional packages)."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

# The tag of a run in MLflow, which chooses the run's identifier itself.
ID_TAG = "transformer_jax.id"
# MLflow takes no more parameters in one call, and no longer values.
MOST_PARAMETERS, LONGEST_VALUE = 100, 500


@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """What a tracker receives about a run when it starts or resumes."""

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
    """A run of Weights & Biases. WANDB_MODE=offline, WANDB_PROJECT, WANDB_DIR and so on have their usual effect."""

    def __init__(self, run: TrackedRun):
        import wandb

        self._run = wandb.init(
            id=run.id,
            project=os.environ.get("WANDB_PROJECT") or run.project,
            group=run.group,
            name=run.name,
            config=dict(run.options),
            resume="allow",
            reinit="create_new",  # several runs may train in one process
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def finish(self) -> None:
        self._run.finish()


class Mlflow:
    """A run of MLflow, in the experiment MLFLOW_EXPERIMENT_NAME or that of the run's project, found again by a tag."""

    def __init__(self, run: TrackedRun):
        from mlflow.tracking import MlflowClient

        self._client, name = MlflowClient(), os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.project
        experiment = self._client.get_experiment_by_name(name)
        place = experiment.experiment_id if experiment else self._client.create_experiment(name)
        found = self._client.search_runs([place], f"tags.`{ID_TAG}` = '{run.id}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {ID_TAG: run.id, **({"group": run.group} if run.group else {})}
        self._id = self._client.create_run(place, tags=tags, run_name=run.name).info.run_id
        self._log_options(run.options)

    def _log_options(self, options: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(path, str(value)[:LONGEST_VALUE]) for path, value in options.items()]
        for first in range(0, len(params), MOST_PARAMETERS):
            self._client.log_batch(self._id, params=params[first : first + MOST_PARAMETERS])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, step) for name, value in metrics.items()])

    def finish(self) -> None:
        self._client.set_terminated(self._id)


class Trackio:
    """A run of Trackio, which identifies runs by their names."""

    def __init__(self, run: TrackedRun):
        import trackio

        self._run = trackio.init(
            project=run.project,
            name=f"{run.name} {run.id[:8]}",
            group=run.group,
            config={path: str(value) if isinstance(value, tuple) else value for path, value in run.options.items()},
            resume="allow",
            embed=False,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def finish(self) -> None:
        self._run.finish()


KNOWN: dict[str, Callable[[TrackedRun], Tracker]] = {"wandb": Wandb, "mlflow": Mlflow, "trackio": Trackio}
# What helps where they cannot start.
HINTS = {"wandb": "`wandb login`, or WANDB_MODE=offline", "mlflow": "MLFLOW_TRACKING_URI says where its store is"}
