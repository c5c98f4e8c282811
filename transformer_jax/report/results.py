"""A sweep's folder as it stands: what was planned, and what each run came to. Reads files, and believes none of them.

What is damaged harms only the run it belongs to, and is named in a line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.data.prepared import texts_path
from transformer_jax.errors import BadInput
from transformer_jax.files.record import read_record
from transformer_jax.runs.evaluations import translations
from transformer_jax.runs.folder import RunFolder
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.schema import flattened
from transformer_jax.sweeps.folder import is_held, strayed

FORMAT = 1
# How many characters of a failure's last lines are shown.
REASON = 400
# No count or score that means anything comes near; beyond, arithmetic breaks down.
LARGEST = 1e200
MOST_NGRAMS = 1e9
PICTURES = (".png", ".svg")


class Measured(NamedTuple):
    """One run on one test set."""

    test_set: str
    digest: str
    bleu: float
    perplexity: float  # per token
    words: float
    signature: str
    statistics_N10: np.ndarray
    log_probabilities_N: np.ndarray
    tokens_N: np.ndarray
    file: Path


@dataclasses.dataclass(frozen=True)
class RunResult:
    """A seed of a variant, in whatever state it is."""

    variant: str
    seed: int
    path: Path
    state: str  # finished, running, interrupted, stopped, failed, damaged, waiting
    reason: str = ""
    step: int | None = None
    result: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    measured: Mapping[str, Measured] = dataclasses.field(default_factory=dict)
    curve: Sequence[Mapping[str, Any]] = ()
    analyses: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    pictures: Sequence[Path] = ()
    versions: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()  # that it was made by more than one version of its code

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    def number(self, name: str) -> float | None:
        """A figure of result.json."""
        return number(self.result.get(name))


@dataclasses.dataclass(frozen=True)
class VariantResult:
    """A variant as it was planned, and its runs."""

    name: str
    slug: str
    changes: Mapping[str, Any]
    group: str
    note: str
    published: Mapping[str, float]
    baseline: str  # "" where it is compared with none
    runs: Sequence[RunResult]

    @property
    def finished(self) -> list[RunResult]:
        return [run for run in self.runs if run.finished]

    def values(self, name: str) -> list[float]:
        """A figure of result.json, of every finished run that has it."""
        return [value for run in self.finished if (value := run.number(name)) is not None]


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """Everything a report is made of."""

    path: Path
    name: str
    question: str
    definition: Mapping[str, Any]
    base: Mapping[str, Any]  # option path -> value
    baseline: str
    tests: Sequence[str]
    seeds: Sequence[int]
    notes: Sequence[str]
    variants: Sequence[VariantResult]
    tuned: Mapping[str, Any]
    problems: Sequence[str]  # files that are damaged, a line each

    @property
    def runs(self) -> list[RunResult]:
        return [run for variant in self.variants for run in variant.runs]


def number(value: Any) -> float | None:
    """A number of a JSON file, or None where it is none that one can go on with."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST < value < LARGEST
    return float(value) if fits else None


def listed(value: Any) -> list[Any]:
    """A list of a JSON file; none where it is something else."""
    return value if isinstance(value, list) else []


def load_sweep(folder: str | Path) -> SweepResult:
    """The sweep in a folder; refused if there is none."""
    path = Path(folder)
    if not path.is_dir():
        raise BadInput(f"{path}: there is no such folder; transformer-jax sweep --workdir={path} makes one")
    definition = _definition(path)
    problems: list[str] = []
    seeds, tests = definition["seeds"], definition["tests"]
    tuned = _json(path / "tuned.json", problems) if (path / "tuned.json").is_file() else {}
    variants = [_variant(path, facts, definition, problems) for facts in definition["variants"]]
    return SweepResult(
        path=path,
        name=str(definition.get("name", path.name)),
        question=str(definition.get("question", "")),
        definition=definition,
        base=flattened(definition.get("base", {})),
        baseline=str(definition.get("baseline", "")),
        tests=tests,
        seeds=seeds,
        notes=[str(note) for note in listed(definition.get("notes"))],
        variants=variants,
        tuned=tuned or {},
        problems=problems,
    )


def texts(sweep: SweepResult, run: RunResult, split: str) -> list[tuple[str, str]]:
    """Sources and references of a test set, from the data that the run was prepared with; none where that is gone."""
    given = flattened(_json(run.path / "config.json", []) or {}).get("data.directory")
    started_in = str(run.versions.get("directory") or "")  # earlier versions recorded paths as they were given
    for place in (run.path / "data", *([Path(started_in, given)] if isinstance(given, str) else [])):
        file = texts_path(place, split)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            records = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
            return [(str(record["source"]), str(record["target"])) for record in records]
    return []


def hypotheses(measured: Measured) -> list[str]:
    """The translations beside a record; none where they are gone or are not as many as the record says."""
    lines = translations(measured.file, _json(measured.file, []) or {})
    return lines if lines is not None and len(lines) == len(measured.tokens_N) else []


def _definition(path: Path) -> dict[str, Any]:
    """sweep.json, checked as far as a report leans on it."""
    file = path / "sweep.json"
    if not file.is_file():
        raise BadInput(f"{path}: is no sweep (it has no sweep.json); transformer-jax sweep makes one")
    problems: list[str] = []
    definition = _json(file, problems)
    if definition is None:
        raise BadInput(problems[0])
    if definition.get("format") != FORMAT:
        found = definition.get("format")
        raise BadInput(f"{file}: is of format {found!r}, and this version reads {FORMAT}; use the version that made it")
    wanted = {"variants": dict, "seeds": int, "tests": str}
    for key, kind in wanted.items():
        values = definition.get(key)
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
            raise BadInput(f"{file}: {key!r} must be a list of {kind.__name__}s: the file is damaged")
        if not values:
            raise BadInput(f"{file}: {key!r} is empty: there is nothing to report")
    for facts in definition["variants"]:
        if not isinstance(facts.get("name"), str) or not isinstance(facts.get("slug"), str):
            raise BadInput(f"{file}: a variant has no 'name' or no 'slug': the file is damaged")
    if not isinstance(definition.get("base", {}), dict):
        raise BadInput(f"{file}: 'base' must be a config: the file is damaged")
    return definition


def _variant(path: Path, facts: Mapping[str, Any], definition: Mapping[str, Any], problems: list[str]) -> VariantResult:
    name, slug = facts["name"], facts["slug"]
    published = facts["published"] if isinstance(facts.get("published"), dict) else {}
    baseline = facts.get("baseline") or definition.get("baseline") or ""
    return VariantResult(
        name=name,
        slug=slug,
        changes=facts["changes"] if isinstance(facts.get("changes"), dict) else {},
        group=str(facts.get("group") or ""),
        note=str(facts.get("note") or ""),
        published={key: value for key, value in published.items() if number(value) is not None},
        baseline="" if baseline == name else str(baseline),
        runs=[
            _run(path / "runs" / slug / f"seed-{seed}", name, seed, definition["tests"], problems)
            for seed in definition["seeds"]
        ],
    )


def _run(path: Path, variant: str, seed: int, tests: Sequence[str], problems: list[str]) -> RunResult:
    """A run's folder; what is wrong with it goes to `problems`."""
    if not path.is_dir():
        return RunResult(variant, seed, path, "waiting")
    found: list[str] = []
    attempt = (_json(path / "attempt.json", found) if (path / "attempt.json").is_file() else None) or {}
    curve = read_metrics(path / "metrics.jsonl") if (path / "metrics.jsonl").is_file() else []
    result = _json(path / "result.json", found) if (path / "result.json").is_file() else None
    measured: dict[str, Measured] = {}
    if result is not None:
        state, reason = "finished", ""
        for split in tests:
            if (record := _measured(path, result, split, found)) is not None:
                measured[split] = record
    else:
        state, reason = _state(path, attempt)
    if found:
        problems += found
        state, reason = "damaged", found[0]
    analyses = {file.stem: content for file in _files(path, (".json",)) if (content := _json(file, problems))}
    step = number((result or {}).get("steps")) or (curve[-1]["step"] if curve else None)
    return RunResult(
        variant=variant,
        seed=seed,
        path=path,
        state=state,
        reason=reason,
        step=None if step is None else int(step),
        result=result or {},
        measured=measured,
        curve=curve,
        analyses=analyses,
        pictures=_files(path, PICTURES),
        versions=(_json(path / "versions.json", problems) if (path / "versions.json").is_file() else None) or {},
        notes=_notes(path, problems),
    )


def _notes(path: Path, problems: list[str]) -> list[str]:
    try:
        return RunFolder(path).notes()
    except BadInput as problem:
        problems.append(str(problem))
        return []


def _files(path: Path, suffixes: Sequence[str]) -> list[Path]:
    """What an analysis left."""
    directory = path / "analysis"
    return sorted(file for file in directory.iterdir() if file.suffix in suffixes) if directory.is_dir() else []


def _state(path: Path, attempt: Mapping[str, Any]) -> tuple[str, str]:
    """Where a run without a result stands, by what its last attempt noted."""
    state, error = attempt.get("state"), str(attempt.get("error") or "").strip()
    if state == "failed":
        return "failed", error[-REASON:] or "without a word"
    if state == "running":
        # What another machine holds cannot always be seen from here.
        held = attempt.get("host") != socket.gethostname() or is_held(path)
        return ("running", "") if held else ("interrupted", "its process is gone")
    return ("stopped", error[-REASON:]) if state in ("stopped", "finished") else ("waiting", "")


def _measured(path: Path, result: Mapping[str, Any], split: str, problems: list[str]) -> Measured | None:
    """The record of a test set, whole or not at all."""
    told = result.get("tests")
    if isinstance(told, dict) and split not in told:
        return None  # a split that the sweep has been given since
    told = told.get(split) if isinstance(told, dict) else None
    name = told.get("file") if isinstance(told, dict) else None
    file = path / (name if isinstance(name, str) else f"translations/{split}.latest.json")
    record = _json(file, problems)
    if record is None:
        return None
    try:
        sentences = record["sentences"]
        measured = Measured(
            test_set=str(record["test_set"]),
            digest=str(record["test_set_sha256"]),
            bleu=float(record["measures"]["bleu"]["score"]),
            perplexity=float(record["perplexity"]["per_token"]),
            words=float(record["perplexity"]["words"]),
            signature=str(record["measures"]["bleu"].get("signature", "")),
            statistics_N10=np.array(sentences["bleu_statistics"], np.float64),
            log_probabilities_N=np.array(sentences["log_probabilities"], np.float64),
            tokens_N=np.array(sentences["tokens"], np.float64),
            file=file,
        )
        if isinstance(told, dict) and (problem := strayed(record, result, split)):
            problems.append(f"{file}: {problem}; the sweep's command measures that run again")
            return None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problems.append(f"{file}: is no whole record of an evaluation ({type(error).__name__}: {error})")
        return None
    shapes = [array.shape for array in measured[6:9]]
    if measured.tokens_N.ndim != 1 or shapes != [(*shapes[2], 10), shapes[2], shapes[2]] or not measured.tokens_N.size:
        problems.append(f"{file}: its sentences are not as many everywhere: {shapes}")
        return None
    counts = np.concatenate([measured.statistics_N10.ravel(), measured.tokens_N, [measured.words]])
    scores = (measured.bleu, measured.perplexity)
    possible = (counts >= 0).all() and (counts < MOST_NGRAMS).all() and np.isfinite(scores).all() and measured.words > 0
    if not possible or not (abs(measured.log_probabilities_N) < LARGEST).all():
        problems.append(f"{file}: has numbers that cannot be: counts below 0 or beyond {MOST_NGRAMS:g}, or no numbers")
        return None
    return measured


def _json(file: Path, problems: list[str]) -> dict[str, Any] | None:
    """A JSON object, or None and a line in `problems`."""
    try:
        if file.exists():
            return read_record(file)
        problems.append(f"{file}: is missing")
    except BadInput as problem:
        problems.append(str(problem))
    except OSError as error:
        problems.append(f"{file}: cannot be read ({type(error).__name__})")
    return None
