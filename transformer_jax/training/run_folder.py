"""A run's folder, which explains itself: config.json, versions.json, metrics.jsonl, checkpoints/, data/ ..."""

import contextlib
import fcntl
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_jax import config as configuration
from transformer_jax import schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.disk import explained, published
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.schema import is_address

PACKAGES = ("transformer_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "sentencepiece")
# What may differ when a run is taken up again: it changes how long and how the work is done, not what is computed.
MAY_CHANGE = ("train.", "mesh.", "decode.", "data.directory", "model.attention_implementation")
# ... but these, of train.*, are part of what is computed.
MAY_NOT_CHANGE = ("train.loss", "train.label_smoothing", "train.smoothing_over")


class RunFolder:
    """Where everything of one run lies. Of several processes one writes; for the others it is to read."""

    def __init__(self, path: str | Path, writes: bool = True):
        self.path, self.writes = Path(path), writes

    @property
    def lock(self) -> Path:
        return self.path / ".lock"

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def averaged(self) -> Path:
        return self.path / "averaged"

    def data(self, config: ExperimentConfig) -> Path:
        return Path(config.data.directory) if config.data.directory else self.path / "data"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Makes the folder and keeps every other training out of it until this one ends, however it ends."""
        if not self.writes:
            yield
            return
        with explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock.touch()
        with open(self.lock, "r+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadInput(
                    f"{self.path}: process {lock.read().strip()} is training here; wait, or use another --workdir"
                ) from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            yield

    def load_config(self) -> ExperimentConfig:
        """The config the run was started with."""
        if not self.config.is_file():
            raise BadInput(f"{self.path}: is no run (it has no config.json); transformer-jax train makes one")
        try:
            return configuration.from_json(self.config.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise BadInput(f"{self.config}:{error.lineno}: is no JSON: {error.msg}") from None
        except UnicodeDecodeError as error:
            raise BadInput(f"{self.config}: is no UTF-8 text (byte {error.start})") from None
        except ConfigError as error:
            raise ConfigError([f"{self.config}: {problem}" for problem in error.problems]) from None

    def settle(self, config: ExperimentConfig) -> None:
        """Notes what this run is, or refuses to go on with one that is another; without a checkpoint there is none."""
        begun = self.config.is_file() and self.checkpoints.is_dir() and any(self.checkpoints.iterdir())
        differences = _differences(self.load_config(), config) if begun else []
        if differences:
            raise BadInput(
                f"{self.path}: holds another run; use another --workdir, or its own config. It differs in:\n  "
                + "\n  ".join(differences)
            )
        if not self.writes:
            return
        with explained(self.path):
            for name, text in (("config.json", configuration.to_json(config)), ("versions.json", _versions())):
                with published(self.path / name) as file:
                    file.write(text.encode())

    def drop_metrics_after(self, step: int) -> None:
        """Takes up metrics.jsonl at a checkpoint: later lines told of steps that are about to be made again."""
        if not self.metrics.is_file() or not self.writes:
            return
        kept = [line for line in read_metrics(self.metrics) if line["step"] <= step]
        with explained(self.path), published(self.metrics) as file:
            file.write("".join(json.dumps(line) + "\n" for line in kept).encode())


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl. A last line that a killed process left unfinished is no line."""
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        with contextlib.suppress(json.JSONDecodeError):
            line = json.loads(text)
            if isinstance(line, dict) and isinstance(line.get("step"), int):
                lines.append(line)
    return lines


def _differences(old: ExperimentConfig, new: ExperimentConfig) -> list[str]:
    may_not_change: tuple[str, ...] = MAY_NOT_CHANGE
    if new.optimizer.schedule in ("cosine", "linear") or is_address(new.optimizer.schedule):
        may_not_change += ("train.steps",)  # these schedules end where the run does, or may do so
    lines = []
    for option in schema.options(ExperimentConfig):
        path = option.path
        if path.startswith(MAY_CHANGE) and not path.startswith(may_not_change):
            continue
        before, now = schema.value_at(old, path), schema.value_at(new, path)
        if before != now:
            lines.append(f"{path}: {before} there, {now} here")
    return lines


def _versions() -> str:
    found = {"python": platform.python_version(), "platform": platform.platform(), "command": " ".join(sys.argv)}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return json.dumps(found, indent=2) + "\n"
