"""metrics.jsonl, written and read: a line of JSON for each interval and each validation of a run; and its best scores.

Scores by different criteria cannot be compared. A run that is resumed with another criterion begins a new best.
"""

import datetime
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax import schema
from transformer_jax.config import DecodeConfig, TrainConfig
from transformer_jax.extension import file_of, read_code
from transformer_jax.files.atomic import explained, patiently, sync_directory
from transformer_jax.files.digests import json_sha256
from transformer_jax.files.paths import no_links
from transformer_jax.metric_names import TRANSLATIONS
from transformer_jax.runs.tracking import Expendable, Tracking

# Options of decoding on which scores of validation translations depend.
MEASURED_WITH = tuple(
    option.path for option in schema.options(DecodeConfig) if option.affects in ("translation", "stopping")
)
# The longest line of metrics, and what is read of the end of a file, in bytes.
LONGEST_LINE, END_BYTES = 1 << 16, 1 << 20
# Seconds; a damaged file may have any number.
LONGEST_DURATION = 1e12


class MetricsFile:
    """Appends lines to metrics.jsonl, and reports them to TensorBoard and a tracker. Only the first process writes."""

    def __init__(self, path: Path, tensorboard: bool, writes: bool = True, tracking: Tracking | None = None):
        self._path, self._tensorboard, self._writes = path, tensorboard, writes
        self._trackers: list[Tracking | Expendable] = [tracking] if tracking else []

    def __enter__(self) -> "MetricsFile":
        return self

    def __exit__(self, *_: object) -> None:
        for tracker in self._trackers:
            tracker.finish()

    def begin(self, step: int) -> None:
        """Continues after a step: later lines are dropped, here and in TensorBoard, to be written again.

        Before step 1 there are none to keep, not even a validation of step 0.
        """
        step = step or -1
        if not self._writes:
            return
        with explained(self._path):
            cut_after(self._path, step)
        if self._tensorboard:
            from transformer_jax.runs.board import Board  # here, because it loads slowly

            board = Board(self._path.parent / "tensorboard", purge_step=step + 1)
            self._trackers.append(Expendable("tensorboard", board))

    def write(self, step: int, values: dict[str, Any]) -> None:
        if not self._writes:
            return
        # JSON has no NaN and no infinity: a mean over nothing is null.
        line = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        with explained(self._path), patiently(lambda: open(self._path, "a", opener=no_links)) as file:
            time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            file.write(json.dumps({"step": step, "time": time, **line}) + "\n")
        for tracker in self._trackers:
            tracker.log(step, values)

    def sync(self) -> None:
        """Flushes metrics.jsonl to the disk: a checkpoint that survives a power failure has all earlier lines."""
        if self._writes and self._path.is_file():
            with explained(self._path):
                patiently(lambda: sync_directory(self._path))
                patiently(lambda: sync_directory(self._path.parent))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All lines of a metrics.jsonl; none without a file. `metrics_lines` needs less memory."""
    return list(metrics_lines(path))


def metrics_lines(path: Path, problems: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """The lines of a metrics.jsonl, one after the other; none without a file.

    Their values are numbers, None, and the text of "time". Other values, and lines without a step, are left out. One
    line of `problems` says so, unless it is a last line that is still being written.
    """
    if not path.is_file():
        return
    wrong, first = 0, ""
    with open(path, "rb") as file:
        for number, raw in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), 1):
            line, problem = _parsed(raw)
            if problem and raw.endswith(b"\n"):
                wrong, first = wrong + 1, first or f"line {number:,} {problem}"
            if line is not None:
                yield line
    if wrong and problems is not None:
        problems.append(f"{path}: {first}" + (f"; {wrong:,} lines are damaged" if wrong > 1 else ""))


def newest_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The lines at the end of a metrics.jsonl as above, the newest first: those in its last `END_BYTES`."""
    if not path.is_file():
        return
    with open(path, "rb") as file:
        start = max(0, os.fstat(file.fileno()).st_size - END_BYTES)
        file.seek(start)
        if start:
            file.readline()  # the rest of a line
        found = file.readlines()
    for raw in reversed(found):
        line, _ = _parsed(raw)
        if line is not None:
            yield line


def last_lines(path: Path, step: int) -> list[dict[str, Any]]:
    """The lines of the last step in a metrics.jsonl that is not after `step`."""
    found: list[dict[str, Any]] = []
    for line in metrics_lines(path):
        if line["step"] <= step:
            found = [*(other for other in found if other["step"] == line["step"]), line]
    return found


def cut_after(path: Path, step: int) -> None:
    """Removes the lines of later steps from the end of a metrics.jsonl, and what a killed process left unfinished."""
    if not path.is_file():
        return
    end, is_complete = 0, True
    with open(path, "r+b", opener=no_links) as file:
        for raw in iter(lambda: file.readline(LONGEST_LINE), b""):
            line, _ = _parsed(raw)
            if line is not None and line["step"] <= step:
                end, is_complete = file.tell(), raw.endswith(b"\n")
        file.truncate(end)
        if not is_complete:
            file.seek(end)
            file.write(b"\n")


# NaN is no JSON; an integer of more than 64 bits is a float.
_DECODER = json.JSONDecoder(parse_int=lambda text: int(text) if len(text) < 19 else float(text), parse_constant=str)
_NUMBERS, _INFINITE = {int, float, type(None)}, {math.inf, -math.inf}


def _parsed(raw: bytes) -> tuple[dict[str, Any] | None, str]:
    """A line, or None, and what is wrong with it."""
    try:
        text = raw.decode()
        line, end = _DECODER.raw_decode(text)  # decode would take half as long again
    except (ValueError, RecursionError):
        return None, "is not JSON"
    if text[end:].strip():
        return None, "is not JSON"
    if not isinstance(line, dict) or type(line.get("step")) is not int or line["step"] < 0:
        return None, "has no step"
    time, problem = line.pop("time", None), ""
    if not (_NUMBERS.issuperset(map(type, line.values())) and _INFINITE.isdisjoint(line.values())):
        odd = {name: value for name, value in line.items() if type(value) not in _NUMBERS or value in _INFINITE}
        name, value = next(iter(odd.items()))
        problem = f"has {name} = {json.dumps(value)[:40]}, which is not a number"
        line = {name: value for name, value in line.items() if name not in odd}
    if isinstance(time, str):
        line["time"] = time
    return line, problem


def is_validation(line: Mapping[str, Any]) -> bool:
    """Whether a line of metrics.jsonl is a validation's."""
    return "valid_loss" in line or "bleu" in line


def validations_since_best(scores: Mapping[int, float | None]) -> int:
    """How many validations ago the best one was, by scores of each step; None is a score that is not finite."""
    best, since = -math.inf, 0
    for step in sorted(scores):
        score = scores[step]
        since += 1
        if score is not None and score > best:
            best, since = score, 0
    return since


class Criterion(NamedTuple):
    """The criterion of the best checkpoint: the highest or lowest value of a metric.

    `measured` is a digest of what values of the metric depend on besides the parameters; "" if on nothing.
    The validations after the step `since` were scored by this criterion.
    """

    metric: str
    best_is: str
    measured: str = ""
    since: int = 0

    @classmethod
    def of(cls, train: TrainConfig, decode: DecodeConfig, references: str = "") -> "Criterion":
        """The criterion of a config; `references` is a digest of the validation texts."""
        metric, addresses = train.best_metric, {address.rpartition(":")[2]: address for address in decode.metrics}
        if metric not in (*TRANSLATIONS, *addresses):
            return cls(metric, train.best_value)
        address = addresses.get(metric)
        code = read_code(address).digest if address and Path(file_of(address)).is_file() else ""
        how = {"references": references, "code": code, **{name: getattr(decode, name) for name in MEASURED_WITH}}
        return cls(metric, train.best_value, json_sha256(how)[:16])

    def compares_with(self, other: "Criterion") -> bool:
        """Whether scores by the two criteria can be compared."""
        return self[:3] == other[:3]

    def after(self, before: "Criterion", step: int) -> "Criterion":
        """This criterion in a run that had another one until `step`."""
        return self._replace(since=before.since if self.compares_with(before) else step)

    def score(self, value: float | None) -> float | None:
        """The score of a value of the metric, higher being better; None if it is not finite."""
        if value is None or not math.isfinite(value):
            return None
        return value if self.best_is == "highest" else -value

    def scores(self, lines: Iterable[Mapping[str, Any]], until: float = math.inf) -> dict[int, float | None]:
        """The scores of the validations in metrics.jsonl that were scored by this criterion, by step."""
        return {
            line["step"]: self.score(line[self.metric])
            for line in lines
            if self.metric in line and is_validation(line) and self.since < line["step"] <= until
        }

    def __str__(self) -> str:
        return f"{self.best_is} {self.metric}"


def duration(seconds: float) -> str:
    """Seconds in a readable form: 45 s, 12 min, 3 h 20 min."""
    seconds = min(seconds, LONGEST_DURATION)
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def counted(count: int, noun: str) -> str:
    """1 run, 2 runs, 1,200 runs."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def count_text(count: float, form: str = "#.3g", space: str = " ") -> str:
    """A count in short, with the same number of digits as others beside it: 63.1 M, 37.0 k, 3.3e18."""
    if abs(count) >= 0.9995e15:
        return f"{count:.2g}".replace("e+", "e")
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= 0.9995 * size:  # rounded to three digits, 999,600 is 1.00 M
            return f"{count / size:{form}}".removesuffix(".") + f"{space}{letter}"
    return f"{count:g}"
