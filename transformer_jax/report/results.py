"""The results in a sweep's folder: what was planned, and how far each run is.

Every file is parsed once, here. A run with a damaged file is "damaged", with the reason; the other runs do not suffer.
"""

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.data.prepared import texts_path
from transformer_jax.errors import BadInput
from transformer_jax.files.record import read_record
from transformer_jax.runs.folder import RunFolder
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.records import difference, translations
from transformer_jax.schema import flattened
from transformer_jax.sweeps.definition import SOURCES
from transformer_jax.sweeps.run import state_of

FORMAT = 1
# How many characters of a failure's last lines are shown.
LONGEST_REASON = 400
# No meaningful count or score comes near these limits; beyond them, arithmetic breaks down.
LARGEST = 1e200
MOST_NGRAMS = 1e9


class Exact(NamedTuple):
    """Which translations of a test set equal their references."""

    right_N: np.ndarray  # 0 or 1
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
    exact: Exact | None = None
    clusters_N: np.ndarray | None = None  # of sentences that are not independent
    cut: int = 0  # translations that reached the maximum length
    unknown: int = 0  # tokens of the references that are <unk>


@dataclasses.dataclass(frozen=True)
class RunResult:
    """One seed of a variant, in whatever state it is."""

    variant: str
    seed: int
    path: Path
    state: str = "waiting"  # finished, running, interrupted, stopped, failed, damaged, waiting
    reason: str = ""
    step: int | None = None
    result: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    measured: Mapping[str, Measured] = dataclasses.field(default_factory=dict)
    curve: Sequence[Mapping[str, Any]] = ()
    analyses: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()  # that more than one version of its code was used
    unevaluated: Sequence[str] = ()  # test splits on which a finished run has no scores yet
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
    unverified: Sequence[str]  # the published scores that nobody has compared with their source
    baseline: str  # "" if it is not compared
    runs: Sequence[RunResult]
    untuned: Sequence[RunResult] = ()  # at its own learning rate: the same runs if no other was better

    @property
    def finished(self) -> list[RunResult]:
        return [run for run in self.runs if run.finished]

    def measured(self, split: str) -> list[Measured]:
        """The scores of its finished runs on a test set."""
        return [run.measured[split] for run in self.finished if split in run.measured]

    def mean(self, name: str) -> float | None:
        """The mean over finished runs of a number of result.json."""
        values = [value for run in self.finished if (value := run.number(name)) is not None]
        return float(np.mean(values)) if values else None


@dataclasses.dataclass(frozen=True)
class Tuned:
    """How the learning rate of a variant was chosen."""

    factor: float
    losses: Mapping[str, float | None]  # None: the run failed
    cost: Mapping[str, float]
    seed: int  # of the runs on which it was chosen


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """Everything that a report is made from."""

    path: Path
    name: str
    question: str
    command: Sequence[str]  # the words after transformer-jax that define it, without --workdir
    config: Mapping[str, Any]  # the base's, nested
    base: Mapping[str, Any]  # the same: option path -> value
    baseline: str
    tests: Sequence[str]
    seeds: Sequence[int]
    vary: Sequence[str]  # what differs between seeds
    notes: Sequence[str]
    factors: Sequence[float]  # of the learning rate that were tried
    variants: Sequence[VariantResult]
    tuned: Mapping[str, Tuned]
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


def without_folders(test_set: str) -> str:
    """The name of a test set as a paper has it: "test pairs held out of train.en", whatever folder that is in."""
    return re.sub(r"((?:^|, )(?:[^/,]* of )?)[^,]*/", r"\1", test_set)


@contextlib.contextmanager
def parsing(file: Path) -> Iterator[None]:
    """Errors in the content of a file become `BadInput` with its name."""
    try:
        yield
    except BadInput:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadInput(f"{file}: is damaged ({type(error).__name__}: {error})") from None
    except OSError as error:
        raise BadInput(f"{file}: cannot be read ({type(error).__name__})") from None


def load_sweep(folder: str | Path) -> SweepResult:
    """The sweep in a folder; `BadInput` if there is none."""
    path = Path(folder)
    file = path / "sweep.json"
    if not path.is_dir():
        raise BadInput(f"{path}: there is no such folder; transformer-jax sweep --workdir={path} makes one")
    if not file.is_file():
        raise BadInput(f"{path}: is not a sweep (it has no sweep.json); transformer-jax sweep makes one")
    definition, problems = read_record(file), []
    if (found := definition.get("format")) != FORMAT:
        raise BadInput(f"{file}: has format {found!r}; this version reads format {FORMAT}")
    tuned: dict[str, Tuned] = {}
    try:
        tuned = _tuned(path / "tuned.json")
    except BadInput as problem:
        problems.append(str(problem))
    with parsing(file):
        tests, seeds = [str(split) for split in definition["tests"]], [int(seed) for seed in definition["seeds"]]
        if not tests or not seeds or not definition["variants"]:
            raise ValueError("no variants, seeds or tests")
        variants = [
            _variant(path, facts, definition, tests, seeds, tuned, problems) for facts in definition["variants"]
        ]
        return SweepResult(
            path=path,
            name=str(definition["name"]),
            question=str(definition["question"]),
            command=_command(definition, seeds),
            config=dict(definition["base"]),
            base=flattened(definition["base"]),
            baseline=str(definition["baseline"]),
            tests=tests,
            seeds=seeds,
            vary=[source for source in SOURCES if source in definition["vary"]],
            notes=[str(note) for note in definition["notes"]],
            factors=[float(factor) for factor in definition["tune"] or ()],
            variants=variants,
            tuned=tuned,
            problems=problems,
        )


def _command(definition: Mapping[str, Any], seeds: Sequence[int]) -> list[str]:
    """What sweep.json records; sweeps of 1.0.0 have less of it."""
    some = ["sweep", definition["file"], f"--scale={definition['scale']}", f"--seeds={','.join(map(str, seeds))},"]
    return [str(word) for word in definition.get("command", some)]


def texts(run: RunResult, split: str) -> list[tuple[str, str]]:
    """Sources and references of a test set, from the run's prepared data; empty if that is gone."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError, BadInput):
        given = read_record(run.path / "config.json")["data"]["directory"]
        file = texts_path(Path(given) if given else run.path / "data", split)
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
        return [(str(record["source"]), str(record["target"])) for record in records]
    return []


def hypotheses(measured: Measured) -> list[str]:
    """The translations beside a record; empty if they are gone or their number differs from the record's."""
    lines = translations(measured.file, read_record(measured.file))
    return lines if lines is not None and len(lines) == len(measured.tokens_N) else []


def _tuned(file: Path) -> dict[str, Tuned]:
    """The chosen factor of each variant that has one."""
    found: dict[str, Tuned] = {}
    with parsing(file):
        for name, facts in (read_record(file) if file.exists() else {}).items():
            if facts.get("factor") is not None:
                losses = {str(factor): number(loss) for factor, loss in facts["losses"].items()}
                cost = {str(key): float(value) for key, value in facts.get("cost", {}).items()}
                found[name] = Tuned(float(facts["factor"]), losses, cost, int(facts["seed"]))
    return found


def _variant(
    path: Path,
    facts: Mapping[str, Any],
    definition: Mapping[str, Any],
    tests: Sequence[str],
    seeds: Sequence[int],
    tuned: Mapping[str, Tuned],
    problems: list[str],
) -> VariantResult:
    name, slug = str(facts["name"]), str(facts["slug"])

    def runs(folder: str) -> list[RunResult]:
        found = [run_result(path / "runs" / slug / folder.format(seed), name, seed, tests) for seed in seeds]
        problems.extend(problem for _, reasons in found for problem in reasons)
        return [run for run, _ in found]

    compared = runs("seed-{}")
    untuned: list[RunResult] = []
    if definition.get("untuned") and name in tuned:
        others = () if tuned[name].factor == 1 else runs("untuned-seed-{}")
        untuned = [dataclasses.replace(run, is_untuned=True) for run in others] or compared
    baseline = facts.get("baseline") or definition["baseline"]
    return VariantResult(
        name=name,
        slug=slug,
        changes=dict(facts["changes"]),
        group=str(facts["group"]),
        note=str(facts["note"]),
        published={str(key): float(value) for key, value in facts["published"].items()},
        unverified=[str(key) for key in facts.get("unverified", ())],
        baseline="" if baseline == name else str(baseline),
        runs=compared,
        untuned=untuned,
    )


def run_result(path: Path, variant: str, seed: int, tests: Sequence[str]) -> tuple[RunResult, list[str]]:
    """What is in a run's folder, and a line for each damaged file; the run is damaged if one of them has scores."""
    run = RunResult(variant, seed, path)
    if not path.is_dir():
        return run, []
    problems: list[str] = []
    try:
        run = _with_scores(run, tests)
    except BadInput as problem:
        problems.append(str(problem))
        run = dataclasses.replace(run, state="damaged", reason=str(problem))
    with contextlib.suppress(BadInput):
        curve = read_metrics(path / "metrics.jsonl")
        run = dataclasses.replace(run, curve=curve, step=run.step or (curve[-1]["step"] if curve else None))
    try:
        run = dataclasses.replace(run, versions=_read(path / "versions.json"), notes=RunFolder(path).notes())
    except BadInput as problem:
        problems.append(str(problem))
    analyses: dict[str, Mapping[str, Any]] = {}
    for file in sorted((path / "analysis").glob("*.json")):
        try:
            analyses[file.stem] = _read(file)
        except BadInput as problem:
            problems.append(str(problem))
    return dataclasses.replace(run, analyses=analyses), problems


def _with_scores(run: RunResult, tests: Sequence[str]) -> RunResult:
    """The run with its state and the scores of a finished one."""
    path = run.path
    attempt, result = _read(path / "attempt.json"), _read(path / "result.json")
    if not result:
        state, reason = state_of(path, attempt)
        return dataclasses.replace(run, state=state, reason=reason[-LONGEST_REASON:])
    with parsing(path / "result.json"):
        step, files = int(result["steps"]), {split: str(facts["file"]) for split, facts in result["tests"].items()}
        result |= {key: {str(n): str(v) for n, v in (result.get(key) or {}).items()} for key in ("versions", "code")}
    measured = {split: _measured(path / files[split], result, split) for split in tests if split in files}
    unevaluated = [split for split in tests if split not in files]
    return dataclasses.replace(
        run, state="finished", step=step, result=result, measured=measured, unevaluated=unevaluated
    )


def _measured(file: Path, result: Mapping[str, Any], split: str) -> Measured:
    """The record of a test set; `BadInput` if it is damaged or not the one that the result was made from."""
    record = read_record(file)
    with parsing(file):
        if strays := difference(record, result["tests"][split]):
            raise BadInput(f"{file}: {strays}; the sweep's command evaluates that run again")
        sentences = record["sentences"]
        clusters = sentences.get("clusters")
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
            exact=_exact(record),
            clusters_N=None if clusters is None else np.array(clusters),
            cut=int(record.get("cut_translations", 0)),
            unknown=int(record.get("unknown_tokens", 0)),
        )
        _check(measured)
    return measured


def _check(measured: Measured) -> None:
    """ValueError for lists of different lengths, and for numbers that cannot be."""
    count = measured.tokens_N.size
    lists = [measured.log_probabilities_N, measured.tokens_N, measured.clusters_N]
    lists.append(measured.exact.right_N if measured.exact else None)
    shapes = {array.shape for array in lists if array is not None}
    if not count or shapes != {(count,)} or measured.statistics_N10.shape != (count, 10):
        raise ValueError(f"its lists of sentences differ in length: {shapes}")
    counts = np.concatenate([measured.statistics_N10.ravel(), measured.tokens_N, [measured.words]])
    scores = [measured.bleu, measured.perplexity, *measured.log_probabilities_N]
    possible = (counts >= 0).all() and (counts < MOST_NGRAMS).all() and measured.words > 0
    if not possible or not np.isfinite(scores).all() or np.abs(measured.log_probabilities_N).max() >= LARGEST:
        raise ValueError(f"impossible numbers: NaN, or counts below 0 or above {MOST_NGRAMS:g}")


def _exact(record: Mapping[str, Any]) -> Exact | None:
    if "exact_match" not in record["sentences"]:
        return None
    right_N = np.array(record["sentences"]["exact_match"], np.float64)
    groups = {
        str(label): {str(value): (int(found["right"]), int(found["total"])) for value, found in by_value.items()}
        for label, by_value in record["exact_match"].get("groups", {}).items()
    }
    counted = [pair for by_value in groups.values() for pair in by_value.values()]
    if not np.isin(right_N, (0, 1)).all() or not all(0 <= right <= total > 0 for right, total in counted):
        raise ValueError("impossible numbers in exact_match")
    return Exact(right_N, groups)


def _read(file: Path) -> dict[str, Any]:
    """A JSON object; empty if there is no such file."""
    with parsing(file):
        return read_record(file) if file.exists() else {}
