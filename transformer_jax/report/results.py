"""A sweep's folder as it stands: what was planned, and how far each run is.

Nothing in the folder is trusted. A damaged file invalidates only the run it belongs to and is reported as a problem.
"""

import contextlib
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.data.prepared import texts_path
from transformer_jax.errors import BadInput
from transformer_jax.files.record import read_record
from transformer_jax.runs.folder import RunFolder
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.records import translations
from transformer_jax.schema import flattened
from transformer_jax.sweeps.run import mismatch, state_of

FORMAT = 1
# How many characters of a failure's last lines are shown.
LONGEST_REASON = 400
# No meaningful count or score comes near these limits; beyond them, arithmetic breaks down.
LARGEST = 1e200
MOST_NGRAMS = 1e9
# Pictures that an analysis may leave.
MEDIA = {".png": "image/png", ".svg": "image/svg+xml"}


class Exact(NamedTuple):
    """Which translations of a test set equal their references."""

    right_N: np.ndarray  # 0 or 1
    clusters_N: np.ndarray  # the number of each example's cluster
    groups: Mapping[str, Mapping[str, tuple[int, int]]]  # label -> value -> right and total


class Measured(NamedTuple):
    """The scores of one run on one test set."""

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
    exact: Exact | None = None  # records of earlier versions have none
    cut: int = 0  # translations that reached the maximum length
    unknown: int = 0  # tokens of the references that are <unk>


@dataclasses.dataclass(frozen=True)
class RunResult:
    """One seed of a variant, in whatever state it is."""

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
    notes: Sequence[str] = ()  # that more than one version of its code was used
    is_untuned: bool = False  # at the variant's own learning rate, beside a run with the tuned one

    @property
    def name(self) -> str:
        return f"{self.variant}, seed {self.seed}" + (", untuned" if self.is_untuned else "")

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    def number(self, name: str) -> float | None:
        """A number of result.json."""
        return number(self.result.get(name))

    @property
    def seconds(self) -> float | None:
        """Its share of the training time, as `sweeps.run.seconds_of`."""
        seconds = self.number("train_seconds")
        return None if seconds is None else seconds / max(self.number("together") or 1, 1)


@dataclasses.dataclass(frozen=True)
class VariantResult:
    """A variant as planned, and its runs."""

    name: str
    slug: str
    changes: Mapping[str, Any]
    group: str
    note: str
    published: Mapping[str, float]
    baseline: str  # "" if it is not compared
    runs: Sequence[RunResult]
    untuned: Sequence[RunResult] = ()  # at its own learning rate: the same runs if no other was better

    @property
    def finished(self) -> list[RunResult]:
        return [run for run in self.runs if run.finished]

    def mean(self, name: str) -> float | None:
        """The mean over finished runs of a number of result.json."""
        values = [value for run in self.finished if (value := run.number(name)) is not None]
        return float(np.mean(values)) if values else None


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """Everything that a report is made from."""

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
    problems: Sequence[str]  # one line for each damaged file

    @property
    def runs(self) -> list[RunResult]:
        return [run for variant in self.variants for run in variant.runs]

    @property
    def all_runs(self) -> list[RunResult]:
        """Also those beside the compared ones, at the variants' own learning rates."""
        return self.runs + [run for variant in self.variants for run in variant.untuned if run.is_untuned]

    def published(self, name: str, key: str) -> tuple[float, float] | None:
        """The published scores of a variant and of its baseline, if there are both."""
        variants = {variant.name: variant for variant in self.variants}
        pair = [variants[which].published.get(key) for which in (name, variants[name].baseline)]
        return None if pair[0] is None or pair[1] is None else (pair[0], pair[1])


def number(value: Any) -> float | None:
    """A usable number of a JSON file, or None."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST < value < LARGEST
    return float(value) if fits else None


def listed(value: Any) -> list[Any]:
    """A list of a JSON file; empty if the value is something else."""
    return value if isinstance(value, list) else []


def json_object(value: Any) -> dict[str, Any]:
    """An object of a JSON file; empty if the value is something else."""
    return value if isinstance(value, dict) else {}


def without_folders(test_set: str) -> str:
    """The name of a test set as a paper has it: "test pairs held out of train.en", whatever folder that is in."""
    return re.sub(r"((?:^|, )(?:[^/,]* of )?)[^,]*/", r"\1", test_set)


def load_sweep(folder: str | Path) -> SweepResult:
    """The sweep in a folder; `BadInput` if there is none."""
    path = Path(folder)
    if not path.is_dir():
        raise BadInput(f"{path}: there is no such folder; transformer-jax sweep --workdir={path} makes one")
    definition = _definition(path)
    problems: list[str] = []
    return SweepResult(
        path=path,
        name=str(definition.get("name", path.name)),
        question=str(definition.get("question", "")),
        definition=definition,
        base=flattened(definition.get("base", {})),
        baseline=str(definition.get("baseline", "")),
        tests=definition["tests"],
        seeds=definition["seeds"],
        notes=[str(note) for note in listed(definition.get("notes"))],
        tuned=(tuned := _json(path / "tuned.json", problems)),
        variants=[_variant(path, facts, definition, tuned, problems) for facts in definition["variants"]],
        problems=problems,
    )


def texts(run: RunResult, split: str) -> list[tuple[str, str]]:
    """Sources and references of a test set, from the run's prepared data; empty if that is gone."""
    given = flattened(_json(run.path / "config.json", [])).get("data.directory")
    file = texts_path(Path(given) if isinstance(given, str) else run.path / "data", split)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
        return [(str(record["source"]), str(record["target"])) for record in records]
    return []


def hypotheses(measured: Measured) -> list[str]:
    """The translations beside a record; empty if they are gone or their number differs from the record's."""
    lines = translations(measured.file, _json(measured.file, []))
    return lines if lines is not None and len(lines) == len(measured.tokens_N) else []


def _definition(path: Path) -> dict[str, Any]:
    """sweep.json, with the values that a report depends on checked."""
    file = path / "sweep.json"
    if not file.is_file():
        raise BadInput(f"{path}: is not a sweep (it has no sweep.json); transformer-jax sweep makes one")
    definition = _read(file)
    if (found := definition.get("format")) != FORMAT:
        raise BadInput(
            f"{file}: has format {found!r}, but this version reads format {FORMAT}; use the version that wrote it"
        )
    for key, kind in {"variants": dict, "seeds": int, "tests": str}.items():
        values = definition.get(key)
        if not isinstance(values, list) or not values or not all(isinstance(value, kind) for value in values):
            raise BadInput(f"{file}: {key!r} must be a list of {kind.__name__}s, not empty: the file is damaged")
    if not all(isinstance(facts.get(key), str) for facts in definition["variants"] for key in ("name", "slug")):
        raise BadInput(f"{file}: a variant has no 'name' or no 'slug': the file is damaged")
    if not isinstance(definition.get("base", {}), dict):
        raise BadInput(f"{file}: 'base' must be a config: the file is damaged")
    return definition


def _variant(
    path: Path, facts: Mapping[str, Any], definition: Mapping[str, Any], tuned: Mapping[str, Any], problems: list[str]
) -> VariantResult:
    name, slug = facts["name"], facts["slug"]

    def runs(folder: str) -> list[RunResult]:
        places = [(path / "runs" / slug / folder.format(seed), seed) for seed in definition["seeds"]]
        return [_run(place, name, seed, definition["tests"], problems) for place, seed in places]

    compared, factor = runs("seed-{}"), number(json_object(tuned.get(name)).get("factor"))
    untuned: list[RunResult] = []
    if definition.get("untuned") is True and factor is not None:
        others = () if factor == 1 else runs("untuned-seed-{}")
        untuned = [dataclasses.replace(run, is_untuned=True) for run in others] or compared
    baseline = facts.get("baseline") or definition.get("baseline") or ""
    return VariantResult(
        name=name,
        slug=slug,
        changes=json_object(facts.get("changes")),
        group=str(facts.get("group") or ""),
        note=str(facts.get("note") or ""),
        published={
            key: value for key, value in json_object(facts.get("published")).items() if number(value) is not None
        },
        baseline="" if baseline == name else str(baseline),
        runs=compared,
        untuned=untuned,
    )


def _run(path: Path, variant: str, seed: int, tests: Sequence[str], problems: list[str]) -> RunResult:
    """A run's folder; its damaged files are added to `problems`."""
    if not path.is_dir():
        return RunResult(variant, seed, path, "waiting")
    found: list[str] = []
    attempt, result = _json(path / "attempt.json", found), _json(path / "result.json", found)
    curve = read_metrics(path / "metrics.jsonl")
    measured: dict[str, Measured] = {}
    if (path / "result.json").is_file() and not found:
        state, reason = "finished", ""
        for split in tests:
            try:
                if (scores := _measured(path, result, split)) is not None:
                    measured[split] = scores
            except BadInput as problem:
                found.append(str(problem))
    else:
        state, reason = state_of(path, attempt)
        reason = reason[-LONGEST_REASON:]
    if found:
        problems += found
        state, reason = "damaged", found[0]
    notes: list[str] = []
    try:
        notes = RunFolder(path).notes()
    except BadInput as problem:
        problems.append(str(problem))
    step = number(result.get("steps")) or (curve[-1]["step"] if curve else None)
    left = sorted((path / "analysis").iterdir()) if (path / "analysis").is_dir() else []
    return RunResult(
        variant=variant,
        seed=seed,
        path=path,
        state=state,
        reason=reason,
        step=None if step is None else int(step),
        result=result,
        measured=measured,
        curve=curve,
        analyses={f.stem: content for f in left if f.suffix == ".json" and (content := _json(f, problems))},
        pictures=[file for file in left if file.suffix in MEDIA],
        versions=_json(path / "versions.json", problems),
        notes=notes,
    )


def _measured(path: Path, result: Mapping[str, Any], split: str) -> Measured | None:
    """The record of a test set; None if there is none yet, `BadInput` if it is damaged or of something else."""
    tests = result.get("tests")
    if isinstance(tests, dict) and split not in tests:
        return None  # the sweep was given this split later
    name = json_object(json_object(tests).get(split)).get("file")
    file = path / (name if isinstance(name, str) else f"translations/{split}.latest.json")
    record = _read(file)
    try:
        sentences = record["sentences"]
        measured = Measured(
            test_set=without_folders(str(record["test_set"])),
            digest=str(record["test_set_sha256"]),
            bleu=float(record["measures"]["bleu"]["score"]),
            perplexity=float(record["perplexity"]["per_token"]),
            words=float(record["perplexity"]["words"]),
            signature=str(record["measures"]["bleu"].get("signature", "")),
            statistics_N10=np.array(sentences["bleu_statistics"], np.float64),
            log_probabilities_N=np.array(sentences["log_probabilities"], np.float64),
            tokens_N=np.array(sentences["tokens"], np.float64),
            file=file,
            exact=_exact(record, len(sentences["tokens"])),
            cut=int(record.get("cut_translations", 0)),
            unknown=int(record.get("unknown_tokens", 0)),
        )
        strays = mismatch(record, result, split) if isinstance(tests, dict) else ""
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"{file}: is not a complete record of an evaluation ({type(error).__name__}: {error})") from None
    if strays:
        raise BadInput(f"{file}: {strays}; the sweep's command evaluates that run again")
    shapes = [array.shape for array in measured[6:9]]
    if measured.tokens_N.ndim != 1 or shapes != [(*shapes[2], 10), shapes[2], shapes[2]] or not measured.tokens_N.size:
        raise BadInput(f"{file}: its lists of sentences differ in length: {shapes}")
    counts = np.concatenate([measured.statistics_N10.ravel(), measured.tokens_N, [measured.words]])
    scores = [measured.bleu, measured.perplexity, *measured.log_probabilities_N]
    possible = (counts >= 0).all() and (counts < MOST_NGRAMS).all() and measured.words > 0
    if not possible or not np.isfinite(scores).all() or np.abs(measured.log_probabilities_N).max() >= LARGEST:
        raise BadInput(f"{file}: has impossible numbers: NaN, or counts below 0 or above {MOST_NGRAMS:g}")
    return measured


def _exact(record: Mapping[str, Any], count: int) -> Exact | None:
    """The exact matches of `count` examples, as far as the record has them; ValueError if they are impossible."""
    sentences = record["sentences"]
    if "exact_match" not in sentences:
        return None
    right, clusters = (np.array(sentences.get(key, range(count))) for key in ("exact_match", "clusters"))
    groups = {
        str(label): {str(value): (int(found["right"]), int(found["total"])) for value, found in by_value.items()}
        for label, by_value in record["exact_match"].get("groups", {}).items()
    }
    counted = [pair for by_value in groups.values() for pair in by_value.values()]
    if right.shape != (count,) or clusters.shape != (count,) or not np.isin(right, (0, 1)).all():
        raise ValueError("exact_match")
    if not all(0 <= right <= total > 0 for right, total in counted):
        raise ValueError("groups")
    return Exact(right.astype(np.float64), clusters, groups)


def _json(file: Path, problems: list[str]) -> dict[str, Any]:
    """A JSON object; empty if there is no such file, or if it is damaged, which is added to `problems`."""
    try:
        return _read(file) if file.exists() else {}
    except BadInput as problem:
        problems.append(str(problem))
        return {}


def _read(file: Path) -> dict[str, Any]:
    try:
        return read_record(file)
    except OSError as error:
        raise BadInput(f"{file}: cannot be read ({type(error).__name__})") from None
