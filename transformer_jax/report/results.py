"""The results in a sweep's folder: what was planned, and how far each run is.

Every file is parsed once, here. A run with a damaged file is "damaged", with the reason; the other runs do not suffer.
"""

import contextlib
import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax import traverse_util

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import BadInput
from transformer_jax.files.paths import inside
from transformer_jax.files.record import read_if_sound, read_record, read_typed
from transformer_jax.metric_names import TAKEN, TEXTS
from transformer_jax.runs.folder import RunFolder, Versions
from transformer_jax.runs.metrics import metrics_lines
from transformer_jax.runs.records import Record, difference
from transformer_jax.sweeps.definition import SOURCES, Look, Proposal, Sweep, Tuning, Variant, fields, is_chosen
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.run import Attempt, Result
from transformer_jax.sweeps.search import chosen
from transformer_jax.sweeps.status import state_of

# What curves.csv has of a line of metrics.jsonl, before custom metrics; and what is read of it, for figures too.
IN_CURVES = ("seconds", "loss", "valid_loss", "bleu", "exact_match")
LOGGED = ("step", "valid_perplexity", *IN_CURVES)
# How many characters of a failure's last lines are shown.
LONGEST_REASON = 400
# No meaningful number comes near these limits; beyond them, arithmetic breaks down.
LARGEST = 1e200
MOST_NGRAMS = 1e9


class Measured(NamedTuple):
    """The scores of one run on one test set."""

    test_set: str
    digest: str
    words: float
    signature: str
    statistics_N10: np.ndarray
    log_probabilities_N: np.ndarray
    tokens_N: np.ndarray
    right_N: np.ndarray  # 1 where a translation equals its reference
    scores: Mapping[str, float]  # by metrics and analyses; perplexity is per token
    sentence_scores: Mapping[str, np.ndarray]  # by custom metrics and analyses that have them
    groups: Mapping[str, Mapping[str, tuple[int, int]]]  # of examples: label -> value -> right and total
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
    lines: Sequence[Mapping[str, Any]] = ()  # of metrics.jsonl
    analyses: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()  # that more than one version of its code was used
    unevaluated: Sequence[str] = ()  # test splits and analyses of which a finished run has no results yet

    @property
    def name(self) -> str:
        return f"{self.variant}, seed {self.seed}"

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    def points(self, metric: str) -> dict[int, float]:
        """The values of a metric in the course of training, by step; of several at a step the last."""
        return {line["step"]: value for line in self.lines if (value := number(line.get(metric))) is not None}

    def number(self, name: str) -> float | None:
        """A number of result.json. Runs that trained together share the time of their program."""
        found = number(self.step if name == "steps" else self.result.get(name))
        if name == "train_seconds" and found is not None:
            return found / max(self.number("together") or 1, 1)
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class VariantResult(Variant):
    """A variant as planned, and its runs."""

    baseline: str  # what it is compared with; "" if it is not compared
    same_as: str  # the variant that it repeats as a control, or ""
    runs: Sequence[RunResult]

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepResult(Sweep):
    """Everything that a report is made from: the sweep as defined, and its runs."""

    path: Path
    baseline: str
    seeds: Sequence[int]
    vary: Sequence[str]
    primary: str  # or ""
    margin: Mapping[str, float]
    tune: Sequence[float]
    command: Sequence[str]  # the words after transformer-jax that define it, without --workdir
    base: Mapping[str, Any]  # its config, nested
    options: Mapping[str, Any]  # the same: option path -> value
    variants: Sequence[VariantResult]
    tuned: Mapping[str, Tuning]  # a loss that is None: a run diverged
    proposed: Mapping[str, Sequence[Proposal]]  # the settings that a custom function has proposed for each variant
    looks: Sequence[Look]  # one for each report with other seeds than the one before
    problems: Sequence[str]  # one line for each damaged file
    decimals: int | None = None  # of scores and differences in texts and tables

    @property
    def runs(self) -> list[RunResult]:
        return [run for variant in self.variants for run in variant.runs]

    @property
    def compared_seeds(self) -> list[int]:
        """The seeds that are finished for every variant with a finished run."""
        finished = [{run.seed for run in variant.finished} for variant in self.variants if variant.finished]
        return sorted(set.intersection(*finished)) if finished else []

    @property
    def finished_seeds(self) -> list[int]:
        """The seeds that are finished for any variant."""
        return sorted({run.seed for variant in self.variants for run in variant.finished})

    def added_seeds(self) -> Iterator[tuple[list[int], list[int]]]:
        """For each report the seeds that all variants had, and those that all or some have only now, if any."""
        compared, finished, is_known = set(self.compared_seeds), set(self.finished_seeds), True
        for look in self.looks:
            compared, finished = compared.difference(look["compared"]), finished.difference(look.get("finished", ()))
            is_known = is_known and "finished" in look
            if new := (compared | finished) if is_known else compared:
                yield look["compared"], sorted(new)

    def baseline_of(self, compared: Collection[str]) -> str:
        """The variants that these are compared with."""
        baselines = {variant.baseline for variant in self.variants if variant.baseline and variant.name in compared}
        return self.baseline if baselines == {self.baseline} else "its baseline"


def number(value: Any) -> float | None:
    """A usable number of a JSON file, or None."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST < value < LARGEST
    return float(value) if fits else None


def without_folders(test_set: str) -> str:
    """The name of a test set as a paper has it: "test pairs held out of train.en", whatever folder that is in."""
    return re.sub(r"((?:^|, )(?:[^/,]* of )?)[^,]*/", r"\1", test_set)


@contextlib.contextmanager
def parsing(file: Path, problems: list[str] | None = None) -> Iterator[None]:
    """Errors in the content of a file become `BadInput` with its name, or a line of `problems`."""
    try:
        yield
    except (BadInput, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, OSError) as error:
        is_told = isinstance(error, BadInput)
        problem = error if is_told else BadInput(f"{file}: is damaged ({type(error).__name__}: {error})")
        if problems is None:
            raise problem from None
        problems.append(str(problem))


def load_sweep(folder: str | Path) -> SweepResult:
    """The sweep in a folder; `BadInput` if there is none, or if a file about all of its runs is damaged."""
    sweep = SweepFolder(folder)
    path, definition, tuned, problems = sweep.path, sweep.stored(), sweep.tuned(), list[str]()
    if definition.get("search") and not all("setting" in facts for facts in tuned.values()):
        raise BadInput(f"{path / 'tuned.json'}: is damaged: a variant has no setting")
    with parsing(sweep.definition_file):
        published = [facts["published"].get("perplexity", 1.0) for facts in definition["variants"]]
        if min([*definition["margin"].values(), *published]) <= 0:
            raise ValueError("margins and published perplexities must be positive")
        for weights in definition.get("contrasts", {}).values():
            if not min(weights.values()) < 0 < max(weights.values()):
                raise ValueError("contrasts must have weights above and below 0")
        known = {
            "path": path,
            "vary": [source for source in SOURCES if source in definition["vary"]],
            "primary": definition["primary"] or "",
            "tune": definition["tune"] or (),
            "command": definition["command"],
            "options": _options(definition["base"]),
            "variants": [_variant(path, facts, definition, tuned, problems) for facts in _asked_for(path, definition)],
            "tuned": tuned,
            "proposed": sweep.proposed(),
            "looks": sweep.looks(),
            "problems": problems,
        }
        return SweepResult(**{**fields(Sweep, definition), **known})


def _options(base: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config by path. Some options are mappings themselves."""
    known = {option.path for option in schema.options(ExperimentConfig)}
    return traverse_util.flatten_dict(base, sep=".", is_leaf=lambda path, _: ".".join(path) in known)


def _asked_for(path: Path, definition: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The variants without those that --only left out, unless they have runs or others are compared with them."""
    variants, only = definition["variants"], definition["only"]
    if only is None:
        return variants
    asked = [
        facts
        for facts in variants
        if is_chosen(facts["name"], only) or inside(path / "runs", facts["slug"], path).is_dir()
    ]
    needed = {facts["name"] for facts in asked}
    needed |= {facts[key] or definition["baseline"] for facts in asked for key in ("baseline", "same_as")}
    return [facts for facts in variants if facts["name"] in needed]


def _variant(
    path: Path,
    facts: Mapping[str, Any],
    definition: Mapping[str, Any],
    tuned: Mapping[str, Tuning],
    problems: list[str],
) -> VariantResult:
    name, folder = facts["name"], inside(path / "runs", facts["slug"], path)
    baseline = facts["baseline"] or definition["baseline"]
    known = {"baseline": "" if baseline == name else baseline, "same_as": facts["same_as"] or ""}
    # A control has the changes and the setting of the variant that it repeats.
    twin = facts["same_as"] or name
    known["changes"] = {each["name"]: each["changes"] for each in definition["variants"]}[twin]
    prefix = chosen(tuned.get(twin)).prefix
    runs = [_run(folder / f"{prefix}seed-{seed}", name, seed, definition, problems) for seed in definition["seeds"]]
    if twin not in tuned and not any(run.path.is_dir() for run in runs):
        slugs = {each["name"]: each["slug"] for each in definition["variants"]}
        runs = [dataclasses.replace(run, **_failed_tuning(inside(path / "runs", slugs[twin], path))) for run in runs]
    return VariantResult(**{**fields(Variant, facts), **known}, runs=runs)


def _failed_tuning(folder: Path) -> dict[str, Any]:
    """The state of a variant's runs that never start, because all that should choose its setting have failed."""
    attempts = [read_if_sound(file, Attempt) or {} for file in sorted(folder.glob("tuning-*/attempt.json"))]
    if not attempts or any(attempt.get("state") not in ("failed", "diverged") for attempt in attempts):
        return {}
    return {"state": attempts[0]["state"], "reason": f"while its setting was chosen: {attempts[0].get('error')}"}


def _run(path: Path, variant: str, seed: int, definition: Mapping[str, Any], problems: list[str]) -> RunResult:
    """The contents of a run's folder. A damaged file is a problem, and the run is damaged if that file has scores."""
    run, tests = RunResult(variant, seed, path), definition["tests"]
    if not path.is_dir():
        return run
    try:
        run = _with_scores(run, tests)
    except BadInput as problem:
        problems.append(str(problem))
        run = dataclasses.replace(run, state="damaged", reason=str(problem))
    lines = _lines(path / "metrics.jsonl", problems)
    run = dataclasses.replace(run, lines=lines, step=run.step or (lines[-1]["step"] if lines else None))
    versions, notes, analyses = {}, [], {}
    with parsing(path / "versions.json", problems):
        versions, notes = _read(path / "versions.json", Versions), RunFolder(path).notes()
    for file in sorted((path / "analysis").glob("*.json")):
        with parsing(file, problems):
            analyses[file.stem] = read_record(file)
            measured = _with_score(run, tests[0], file.stem, analyses[file.stem])
            run = dataclasses.replace(run, measured=measured)
    if run.finished:
        missing = [name for name in definition["analyses"] if not (path / "analysis" / f"{name}.json").is_file()]
        run = dataclasses.replace(run, unevaluated=[*run.unevaluated, *missing])
    return dataclasses.replace(run, versions=versions, notes=notes, analyses=analyses)


def _with_score(run: RunResult, test: str, name: str, analysis: Mapping[str, Any]) -> Mapping[str, Measured]:
    """The scores of a run with the score of an analysis, which is compared like a metric on the main test set."""
    if test not in run.measured or analysis.get("score") is None:
        return run.measured
    known, score = run.measured[test], number(analysis["score"])
    if score is None:
        raise ValueError("its score is not a finite number")
    known = known._replace(scores={**known.scores, name: score})
    if analysis.get("scores") is not None:
        scores_N = np.array(analysis["scores"], np.float64)
        if scores_N.shape != known.tokens_N.shape or not np.isfinite(scores_N).all():
            raise ValueError(f"its scores are not one finite number for each of {len(known.tokens_N)} sentences")
        known = known._replace(sentence_scores={**known.sentence_scores, name: scores_N})
    return {**run.measured, test: known}


def _lines(file: Path, problems: list[str]) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, with what is read of them."""
    lines: list[dict[str, Any]] = []
    with parsing(file, problems):
        for line in metrics_lines(file, problems):
            custom = {name: value for name, value in line.items() if name not in (*TAKEN, *LOGGED)}
            lines.append({name: line[name] for name in LOGGED if name in line} | custom)
    return lines


def _with_scores(run: RunResult, tests: Sequence[str]) -> RunResult:
    """The run with its state and the scores of a finished one."""
    path = run.path
    attempt, result = _read(path / "attempt.json", Attempt), _read(path / "result.json", Result)
    if not result:
        state, reason = state_of(path, attempt)
        return dataclasses.replace(run, state=state, reason=reason[-LONGEST_REASON:])
    with parsing(path / "result.json"):
        step = result["steps"]
        files = {n: inside(path, facts["file"], path / "result.json") for n, facts in result["tests"].items()}
        result |= {key: {str(n): str(v) for n, v in (result.get(key) or {}).items()} for key in ("versions", "code")}
    measured = {split: _measured(files[split], result, split) for split in tests if split in files}
    unevaluated = [split for split in tests if split not in files]
    return dataclasses.replace(
        run, state="finished", step=step, result=result, measured=measured, unevaluated=unevaluated
    )


def _measured(file: Path, result: Mapping[str, Any], split: str) -> Measured:
    """The record of a test set; `BadInput` if it is damaged or not the one that the result was made from."""
    record: Any = read_typed(file, Record)
    with parsing(file):
        if stray := difference(record, result["tests"][split]):
            raise BadInput(f"{file}: {stray}; the sweep's command evaluates that run again")
        sentences, measures, perplexity = record["sentences"], record["measures"], record["perplexity"]
        groups = record["exact_match"].get("groups", {})
        right_N = np.array(sentences["exact_match"], np.float64)
        # Of custom metrics the sweep's: others may have been added by hand to some of its runs.
        metrics = {*TEXTS, *result["tests"][split].get("custom_metrics", measures)}
        scores = {name: measure["score"] for name, measure in measures.items() if name in metrics}
        scores |= {"perplexity": perplexity["per_token"], "exact_match": 100 * float(right_N.mean())}
        measured = Measured(
            test_set=without_folders(record["test_set"]),
            digest=record["test_set_sha256"],
            words=perplexity["words"],
            signature=measures["bleu"].get("signature", ""),
            statistics_N10=np.array(sentences["bleu_statistics"], np.float64),
            log_probabilities_N=np.array(sentences["log_probabilities"], np.float64),
            tokens_N=np.array(sentences["tokens"], np.float64),
            right_N=right_N,
            scores=scores,
            sentence_scores={
                name: np.array(each, np.float64)
                for name, each in record.get("sentence_scores", {}).items()
                if name in metrics
            },
            groups={
                label: {value: (int(found["right"]), int(found["total"])) for value, found in by_value.items()}
                for label, by_value in groups.items()
            },
            clusters_N=np.array(sentences["clusters"]) if "clusters" in sentences else None,
            cut=record.get("cut_translations", 0),
            unknown=record.get("unknown_tokens", 0),
        )
        lists = [measured.log_probabilities_N, measured.tokens_N, measured.statistics_N10[:, 0], measured.right_N]
        lists += [*measured.sentence_scores.values(), *([] if measured.clusters_N is None else [measured.clusters_N])]
        counts_N = np.concatenate([measured.statistics_N10.ravel(), measured.tokens_N, [measured.words]])
        finite = [np.array([*scores.values()]), measured.log_probabilities_N, *measured.sentence_scores.values()]
        is_possible = counts_N.min() >= 0 and counts_N.max() < MOST_NGRAMS and np.isfinite(np.concatenate(finite)).all()
        if len({array.shape for array in lists}) > 1 or not measured.words or not is_possible:
            raise ValueError("its lists of sentences differ in length, or it has impossible numbers")
        return measured


def _read(file: Path, kind: Any) -> dict[str, Any]:
    """A record of a type; empty if there is no such file."""
    with parsing(file):
        return read_typed(file, kind) if file.exists() else {}
