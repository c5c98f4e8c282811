"""A sweep's folder, which explains itself, and the folder of each of its runs. What is finished is told by files alone.

SWEEP/sweep.json                  the definition: base, variants, seeds
SWEEP/data/KEY/                   prepared data, shared by all runs that ask for the same
SWEEP/runs/SLUG/seed-N/           a run as `train` makes it, and: log.txt, attempt.json (how the last try went),
                                  translations/, analysis/, and result.json, written last: the run is finished
SWEEP/runs/SLUG/tune-FACTOR/      a try of a learning rate
SWEEP/tuned.json                  which learning rate each variant was found to do best with
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.prepare import recipe_of
from transformer_jax.errors import BadInput
from transformer_jax.files import paths
from transformer_jax.files.atomic import explained, publish_json
from transformer_jax.files.record import read_record
from transformer_jax.runs.evaluations import difference
from transformer_jax.runs.folder import RunFolder, refuse_patterns
from transformer_jax.sweeps import spec
from transformer_jax.sweeps.spec import Definition

# Options that have always been part of the name of prepared data, though its recipe has them too.
IN_NAMES_OF_DATA = ("valid_size", "test_size", "target_tokenizer_file")
SHOWN_DIFFERENCES = 12


@dataclasses.dataclass(frozen=True)
class SweepRun:
    """One run of a sweep: a variant with a seed, or with a learning rate that is tried."""

    path: Path
    variant: str
    seed: int
    experiment: ExperimentConfig
    tests: tuple[str, ...] = ()
    analyses: tuple[str, ...] = ()
    factor: float | None = None  # of the learning rate that is tried

    @property
    def name(self) -> str:
        return f"{self.variant}, " + (f"seed {self.seed}" if self.factor is None else f"rate x {self.factor:g}")

    @property
    def address(self) -> str:
        """SLUG/seed-N: what a worker is told."""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.path)

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @functools.cached_property
    def digest(self) -> str:
        return digest(self.experiment)

    def attempt(self) -> dict[str, Any]:
        """How the last try went; empty where there was none."""
        return read_json(self.path / "attempt.json") or {}

    def note_attempt(self, **values: Any) -> None:
        publish_json(self.path / "attempt.json", {**self.attempt(), **values})

    def result(self) -> dict[str, Any] | None:
        """What came out of it, if it is finished: trained as the sweep says now, and measured on all it is to be."""
        result = read_json(self.path / "result.json")
        if result is None or not self._is_of(result) or set(self.tests) - set(result["tests"]):
            return None
        return result if all(self.analysis(name).is_file() for name in self.analyses) else None

    def is_finished(self) -> bool:
        """Whether nothing is left to do: there is a result, and the records that it was made from are still there."""
        result = self.result()
        if result is None:
            return False
        for split in self.tests:
            record = read_json(self.path / result["tests"][split].get("file", f"translations/{split}.latest.json"))
            try:
                if record is None or strayed(record, result, split):
                    return False
            except (KeyError, TypeError):  # no record of an evaluation
                return False
        return True

    def _is_of(self, result: Mapping[str, Any]) -> bool:
        """Whether the result is one of this config.

        A version that knew fewer options hashed fewer. The run's config.json has those that it knew; all others must
        have their defaults, with which a run is what it was before there were such options.
        """
        if (found := result.get("config_digest")) == self.digest:
            return True
        return found == digest(self.experiment, schema.flattened(read_json(self.folder.config) or {}))

    def analysis(self, name: str) -> Path:
        return self.path / "analysis" / f"{name}.json"

    def is_held(self) -> bool:
        """Whether a process is at work on it."""
        return is_held(self.path)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other processes off this run; waits for the one that has it. The kernel frees what a killed one had."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / ".worker.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class SweepFolder:
    """Where everything of one sweep lies."""

    def __init__(self, path: str | Path):
        self.path = Path(paths.expanded(path))

    @property
    def definition_file(self) -> Path:
        return self.path / "sweep.json"

    @property
    def tuned_file(self) -> Path:
        return self.path / "tuned.json"

    def load(self) -> Definition:
        """The sweep that the folder holds."""
        if not self.definition_file.is_file():
            raise BadInput(f"{self.path}: is no sweep (it has no sweep.json); transformer-jax sweep FILE.py makes one")
        return spec.from_json(self._record(), str(self.definition_file))

    def _record(self) -> dict[str, Any]:
        record = read_json(self.definition_file)
        if record is None or record.get("format") != spec.FORMAT:
            raise BadInput(f"{self.definition_file}: is no definition of a sweep that this version can read")
        return record

    @contextlib.contextmanager
    def as_it_began(self) -> Iterator[SweepFolder]:
        """This folder, and inside, the directory in which the sweep was begun, if that is still there.

        Relative paths of its definition, and of files of the user's, then mean what they meant.
        """
        began = (read_json(self.definition_file) or {}).get("directory")
        if not isinstance(began, str) or not os.path.isdir(began) or os.path.samefile(began, os.getcwd()):
            yield self
            return
        here = SweepFolder(self.path.absolute())
        with contextlib.chdir(began):
            yield here

    def merged(self, definition: Definition, together: bool = False) -> Definition:
        """The definition with what the folder has besides, or a refusal if it holds another sweep.

        Runs that train together see the same batches: a sweep that begins so has one order of the data for all seeds.
        """
        if not self.definition_file.is_file():
            self.refuse_foreign()
            return dataclasses.replace(definition, data_order=spec.SAME_FOR_ALL) if together else definition
        there = self.load()
        definition = dataclasses.replace(definition, tune=definition.tune or there.tune, data_order=there.data_order)
        found = differences(there, definition)
        if found:
            more = [f"... and {len(found) - SHOWN_DIFFERENCES} more"] if len(found) > SHOWN_DIFFERENCES else []
            raise BadInput(
                f"{self.path}: holds another sweep; use another --workdir. Variants and seeds may be added, "
                "but it differs in:\n  " + "\n  ".join([*found[:SHOWN_DIFFERENCES], *more])
            )
        seeds = tuple(dict.fromkeys([*there.seeds, *definition.seeds]))
        return dataclasses.replace(definition, seeds=seeds)

    def refuse_foreign(self) -> None:
        """Refuses a folder that holds something else than a sweep, before anything is written there."""
        with explained(self.path):
            names = {file.name for file in self.path.iterdir()} if self.path.exists() else set()
            if self.definition_file.name in names:
                self._record()
            # A launcher that was killed while it prepared data leaves its lock, and data under the names of their keys.
            elif names - {".lock", "data"} or not all(map(_is_of_data, self.path.glob("data/*"))):
                raise BadInput(f"{self.path}: is no sweep, and not empty; an empty or new directory would be right")

    def settle(self, definition: Definition) -> None:
        """Notes what this sweep is."""
        with explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            publish_json(self.definition_file, definition.to_json())

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keeps a second launcher out."""
        refuse_patterns(self.path)
        self.refuse_foreign()
        with explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / ".lock").touch()
        with open(self.path / ".lock", "r+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadInput(
                    f"{self.path}: process {lock.read().strip()} is at work on this sweep; wait, or use --status"
                ) from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            try:
                yield
            finally:
                if not self.definition_file.exists():  # refused: it leaves no trace
                    (self.path / ".lock").unlink()
                    with contextlib.suppress(OSError):
                        self.path.rmdir()

    def data(self, experiment: ExperimentConfig) -> Path:
        """Where the prepared data of a run lies: in one place for all runs that ask for the same."""
        if experiment.data.directory is not None:
            return Path(experiment.data.directory)
        return self.path / "data" / data_key(experiment)

    def tuned(self) -> dict[str, dict[str, Any]]:
        """Of each variant whose learning rate was chosen: {"factor": 2.0, "losses": {"1": 3.1, "2": 2.9}}."""
        return read_json(self.tuned_file) or {}

    def note_tuned(self, variant: str, factor: float, losses: dict[str, float | None]) -> None:
        with explained(self.path):
            publish_json(self.tuned_file, {**self.tuned(), variant: {"factor": factor, "losses": losses}})

    def runs(self, definition: Definition, variants: Sequence[str] | None = None) -> list[SweepRun]:
        """Every run of the sweep, seed by seed, so that a sweep that ends early has all variants of the first seeds."""
        tuned = self.tuned() if definition.tune else {}
        return [
            SweepRun(
                self.path / "runs" / variant.slug / f"seed-{seed}",
                variant.name,
                seed,
                definition.experiment(variant.name, seed, tuned.get(variant.name, {}).get("factor", 1.0)),
                tuple(definition.sweep.tests),
                tuple(definition.sweep.analyses),
            )
            for seed in definition.seeds
            for variant in definition.sweep.variants
            if variants is None or variant.name in variants
        ]

    def tries(self, definition: Definition, variants: Sequence[str] | None = None) -> list[SweepRun]:
        """The runs that try learning rates, of variants for which none is chosen yet."""
        tuned, seed = self.tuned(), definition.seeds[0]
        return [
            SweepRun(
                self.path / "runs" / variant.slug / f"tune-{factor:g}",
                variant.name,
                seed,
                definition.experiment(variant.name, seed, factor),
                factor=factor,
            )
            for factor in definition.tune or ()
            for variant in definition.sweep.variants
            if variant.name not in tuned and (variants is None or variant.name in variants)
        ]

    def find(self, definition: Definition, address: str) -> SweepRun:
        """The run of that address."""
        runs = [*self.runs(definition), *self.tries(definition)]
        for run in runs:
            if run.address == address:
                return run
        raise BadInput(f"{address}: {self.path} has no such run")


def strayed(record: Mapping[str, Any], result: Mapping[str, Any], split: str) -> str:
    """What a record is of, where it is not the one that result.json was made from; empty if it is."""
    told = result["tests"][split]
    if "test_set_sha256" in told:
        return difference(record, told)
    # Earlier versions noted only the scores.
    if found := difference(record, {"steps": [result["steps"]]} if "steps" in result else {}):
        return found
    score, noted = record["measures"]["bleu"]["score"], told.get("bleu")
    return "" if score == noted else f"has BLEU {score}, and result.json {noted}"


def _is_of_data(path: Path) -> bool:
    """Whether it has the name of prepared data, unfinished perhaps, or of its lock."""
    return re.fullmatch(r"[0-9a-f]{12}(\.partial|\.lock)?", path.name) is not None


def is_held(run: Path) -> bool:
    """Whether a process is at work on the run in this folder."""
    try:
        with open(run / ".worker.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def digest(experiment: ExperimentConfig, recorded: Mapping[str, Any] | None = None) -> str:
    """Of all options that affect the results of a run.

    Options that affect only how they are computed count as their defaults. `recorded` are the options of a run by an
    earlier version, which hashed the values of these as well, and no options that it did not know.
    """
    values = {}
    for option in schema.options(ExperimentConfig):
        if option.affects == "environment":
            continue
        value = schema.value_at(experiment, option.path)
        if option.affects == "computation":
            value = (recorded or {}).get(option.path, option.default)
        if recorded is None or option.path in recorded or value != option.default:
            values[option.path] = value
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def data_key(experiment: ExperimentConfig) -> str:
    """Names prepared data by what the config asks for; `prepare` itself compares the text."""
    corpus = {
        option.path: schema.value_at(experiment.data, option.path)
        for option in schema.options(type(experiment.data))
        if option.affects == "corpus" or option.path in IN_NAMES_OF_DATA
    }
    recipe = recipe_of(experiment, corpus)
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:12]


def differences(there: Definition, here: Definition) -> list[str]:
    """Why a folder's sweep is another one, a line each."""
    lines = []
    for name, old, new in (
        ("name", there.sweep.name, here.sweep.name),
        ("scale", there.scale, here.scale),
        ("tune", _told(there.tune), _told(here.tune)),
    ):
        if old != new:
            lines.append(f"{name}: {old} there, {new} here")
    for option in schema.options(ExperimentConfig):
        old, new = (schema.value_at(definition.base, option.path) for definition in (there, here))
        if old != new and option.affects not in ("computation", "environment"):
            lines.append(f"base: {option.path}: {old} there, {new} here")
    for variant in there.sweep.variants:
        if variant.name not in here.experiments:
            lines.append(f"variant {variant.name!r}: there, but not here (to leave it out, use --only)")
            continue
        old_changes, new_changes = variant.changes, here.variant(variant.name).changes
        for path in dict.fromkeys([*old_changes, *new_changes]):
            old, new = (
                _plain(changes[path]) if path in changes else "not changed" for changes in (old_changes, new_changes)
            )
            if old != new:
                lines.append(f"variant {variant.name!r}: {path}: {old} there, {new} here")
    return lines


def read_json(path: Path) -> dict[str, Any] | None:
    """What the file holds; None where there is none, or none that is whole."""
    try:
        return read_record(path)
    except (OSError, BadInput):
        return None


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _told(factors: tuple[float, ...] | None) -> str:
    return "none" if factors is None else ",".join(f"{factor:g}" for factor in factors)


def _plain(value: Any) -> Any:
    """As it comes back from JSON."""
    return json.loads(json.dumps(value, default=str))
