"""A run's folder, which explains itself: config.json, versions.json, metrics.jsonl, checkpoints/, data/ ..."""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from transformer_jax import config as configuration
from transformer_jax import schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.disk import explained, is_same_file, made, publish_record, published
from transformer_jax.data.progress import tell
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.record import parse_object, read_bytes, read_record
from transformer_jax.schema import is_address
from transformer_jax.training.own_files import with_files_found

PACKAGES = ("transformer_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "sentencepiece")
# What may differ when a run is taken up again: it changes how long and how the work is done, not what is computed.
MAY_CHANGE = ("train.", "mesh.", "decode.", "data.directory", "model.attention_implementation")
# ... but these, of train.*, are part of what is computed.
MAY_NOT_CHANGE = ("train.loss", "train.label_smoothing", "train.smoothing_over")

# In versions.json: what config.json was when it was written.
CONFIG_DIGEST = "config_sha256"
# Characters that make a path a pattern.
PATTERN = "[]*?\\"
BY_WHOM = "changed by hand, or damaged"


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

    @property
    def profile(self) -> Path:
        return self.path / "profile"

    def data(self, config: ExperimentConfig) -> Path:
        return Path(config.data.directory) if config.data.directory else self.path / "data"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Makes the folder and keeps every other training out of it until this one ends, however it ends.

        A training that comes to nothing leaves nothing: no folder that was not there, and nothing in one that was.
        """
        refuse_patterns(self.path)
        if not self.writes:
            yield
            return
        with contextlib.ExitStack() as stack:
            with explained(self.path):
                stack.enter_context(made(self.path))
                lock = stack.enter_context(self._locked())
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            try:
                yield
            finally:
                if os.listdir(self.path) == [self.lock.name]:
                    self.lock.unlink()

    def _locked(self) -> IO[str]:
        """The file of the lock, which is ours until it is closed."""
        while True:
            self.lock.touch()
            lock = open(self.lock, "r+")  # noqa: SIM115
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with lock:
                    raise BadInput(
                        f"{self.path}: process {lock.read().strip()} is training here; wait, or use another --workdir"
                    ) from None
            if is_same_file(lock, self.lock):
                lock.truncate(0)
                return lock
            lock.close()  # who held it has taken it away in between

    def load_config(self) -> ExperimentConfig:
        """The config the run was started with."""
        if not self.config.is_file():
            raise BadInput(f"{self.path}: is no run (it has no config.json); transformer-jax train makes one")
        try:
            config = schema.build(ExperimentConfig, parse_object(read_bytes(self.config), self.config))
        except ConfigError as error:
            raise ConfigError([f"{self.config}: {problem}" for problem in error.problems]) from None
        return with_files_found(config, self.config, self._started_in())

    def _started_in(self) -> str | None:
        """The directory that paths in the config are relative to."""
        with contextlib.suppress(OSError, BadInput):
            directory = read_record(self.path / "versions.json").get("directory")
            return directory if isinstance(directory, str) else None
        return None

    def doubt_config(self) -> None:
        """Warns of a config.json that is not what the training wrote: the weights do not tell, and results may."""
        versions = self.path / "versions.json"
        with contextlib.suppress(BadInput):
            wanted = read_record(versions).get(CONFIG_DIGEST) if versions.is_file() else None
            if wanted is not None and hashlib.sha256(read_bytes(self.config)).hexdigest() != wanted:
                tell(f"warning: {self.config} is not what was written there ({BY_WHOM}); taken as it is")

    def settle(self, config: ExperimentConfig) -> None:
        """Notes what this run is, or refuses to go on with one that is another; without a checkpoint there is none."""
        begun = self.config.is_file() and self.checkpoints.is_dir() and any(self.checkpoints.iterdir())
        differences = _differences(self.load_config(), config) if begun else []
        if differences:
            self.doubt_config()
            raise BadInput(
                f"{self.path}: holds another run; use another --workdir, or its own config. It differs in:\n  "
                + "\n  ".join(differences)
            )
        if not self.writes:
            return
        with explained(self.path):
            text = configuration.to_json(config).encode()
            # First, for with the config there is a run.
            publish_record(
                self.path / "versions.json", {**_versions(), CONFIG_DIGEST: hashlib.sha256(text).hexdigest()}
            )
            with published(self.config) as file:
                file.write(text)

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
        with contextlib.suppress(ValueError, RecursionError):
            line = json.loads(text)
            if isinstance(line, dict) and isinstance(line.get("step"), int) and all(map(_is_told, line.values())):
                lines.append(line)
    return lines


def refuse_patterns(path: Path) -> None:
    """Orbax looks its files up as patterns: below `a[1]` it would not find what it has written, and below `a*` more."""
    found = sorted(set(str(path.absolute())) & set(PATTERN))
    if found:
        raise BadInput(f"{path}: has {' '.join(found)} in its path, where no checkpoint could be read back; rename it")


def _is_told(value: Any) -> bool:
    """Whether it can stand in a line of metrics."""
    return value is None or isinstance(value, (int, float))


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


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform(), "command": " ".join(sys.argv)}
    found["directory"] = os.getcwd()  # what paths in the config are relative to
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
