"""One run of a sweep as it is on disk.

A run folder as `train` makes it, and besides: log.txt, attempt.json (how the last attempt went), translations/,
analysis/, and result.json, which is written last.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig, training_addresses
from transformer_jax.files.atomic import explained, locked, write_json
from transformer_jax.files.digests import json_sha256
from transformer_jax.files.paths import inside
from transformer_jax.files.record import read_if_sound
from transformer_jax.runs.folder import RunFolder
from transformer_jax.runs.records import Record, difference
from transformer_jax.sweeps.definition import Setting

LOCK = ".worker.lock"


class Attempt(TypedDict, total=False):
    """The content of attempt.json: how the last attempt went."""

    state: str
    error: str | None
    host: str
    tries: int
    asked: bool


class Right(TypedDict):
    right: int
    total: int


class TestScores(TypedDict):
    """A test set in result.json; the record that `file` names has more."""

    file: str
    bleu: float
    perplexity_per_token: NotRequired[float]
    exact_match: NotRequired[Right]
    custom_metrics: NotRequired[dict[str, float]]
    decode: NotRequired[dict[str, Any]]


class Result(TypedDict):
    """The content of result.json."""

    steps: int
    tests: dict[str, TestScores]
    valid: dict[str, float | None]
    config_digest: NotRequired[str]
    versions: NotRequired[dict[str, Any]]
    code: NotRequired[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class SweepRun:
    """One run of a sweep: a variant with a seed, as it is compared, or to try a setting of it."""

    path: Path
    variant: str
    seed: int
    experiment: ExperimentConfig
    primary: str  # the metric by which its status is shown
    tests: tuple[str, ...] = ()
    analyses: tuple[str, ...] = ()
    measured_by: Mapping[str, str] = dataclasses.field(default_factory=dict)  # digests of metrics and analyses
    setting: Setting | None = None  # that it tries

    @property
    def name(self) -> str:
        if self.setting is not None:
            return f"{self.variant}, {self.setting.title}, seed {self.seed}"
        return f"{self.variant}, seed {self.seed}"

    @property
    def run_id(self) -> str:
        """SLUG/seed-N, the run's name on a worker's command line."""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.path)

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    def analysis(self, name: str) -> Path:
        return self.path / "analysis" / f"{name}.json"

    def attempt(self) -> dict[str, Any]:
        """How the last attempt went; empty if there was none."""
        return read_if_sound(self.path / "attempt.json", Attempt) or {}

    def record_attempt(self, **values: Any) -> None:
        with explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / "attempt.json", {**self.attempt(), **values})

    def result(self) -> dict[str, Any] | None:
        """The content of result.json, if it is of the current config, and has all test sets and analyses by the code
        that measures now."""
        result = read_if_sound(self.path / "result.json", Result)
        if (
            result is None
            or result.get("config_digest") != digest(self.experiment)
            or set(self.tests) - set(result["tests"])
            or any(result.get("code", {}).get(code, now) != now for code, now in self.measured_by.items())
        ):
            return None
        return result if all(self.analysis(name).is_file() for name in self.analyses) else None

    def trained_by(self) -> dict[str, str]:
        """The digest of each custom code that its training used last."""
        return self.folder.code.digests(training_addresses(self.experiment))

    def is_finished(self) -> bool:
        """Whether nothing is left to do: there is a result, and so are the records that it was made from."""
        if (result := self.result()) is None:
            return False
        tests = [result["tests"][split] for split in self.tests]
        files = [inside(self.path, scores["file"], self.path / "result.json") for scores in tests]
        records = [(read_if_sound(file, Record), scores) for file, scores in zip(files, tests, strict=True)]
        return all(record is not None and not difference(record, scores) for record, scores in records)

    def has_diverged(self) -> bool:
        """Whether its training diverged, which it would do again."""
        return self.attempt().get("state") == "diverged" and self.result() is None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Locks the run; waits while another process has it. The kernel releases the lock of a killed process."""
        with contextlib.ExitStack() as stack:
            with explained(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(self.path / LOCK))
            yield


# The runs that one process trains.
Job = Sequence[SweepRun]


def digest(experiment: ExperimentConfig) -> str:
    """Identifies a run's result by the options that affect it and are not at their defaults."""
    values = {
        option.path: value
        for option in schema.options(ExperimentConfig)
        if option.affects not in ("environment", "computation")
        and (value := schema.value_at(experiment, option.path)) != option.default
    }
    return json_sha256(values)[:16]


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
