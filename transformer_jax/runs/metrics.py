"""metrics.jsonl, written and read: a line of JSON for each interval and each validation of a run; and TensorBoard."""

import contextlib
import json
import math
from pathlib import Path
from typing import Any

from transformer_jax.errors import BadInput, Failed
from transformer_jax.files.atomic import explained
from transformer_jax.runs.tracking import Tracking


class Metrics:
    """Appends lines to metrics.jsonl. Of several processes only the first writes, and has a tracker."""

    def __init__(self, path: Path, tensorboard: bool, writes: bool = True, tracking: Tracking | None = None):
        self._path, self._writes, self._board, self._tracking = path, writes, None, tracking
        if writes and tensorboard:
            from tensorboardX import SummaryWriter  # here, because it loads slowly

            self._board = SummaryWriter(str(path.parent / "tensorboard"))

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._tracking is not None:
            self._tracking.finish()
        if self._board is None:
            return
        try:
            with explained(self._path.parent / "tensorboard"):
                self._board.close()
        except (OSError, BadInput, Failed):
            if kind is None:  # otherwise the first error is reported
                raise

    def write(self, step: int, values: dict[str, Any]) -> None:
        if not self._writes:
            return
        # JSON has no NaN and no infinity: a mean over nothing is null.
        line = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        with explained(self._path), open(self._path, "a") as file:
            file.write(json.dumps({"step": step, **line}) + "\n")
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._board.add_scalar(name, value, step)
        if self._tracking is not None:
            self._tracking.log(step, values)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, without a last line that a killed process left unfinished; none without a file."""
    if not path.is_file():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        with contextlib.suppress(ValueError, RecursionError):
            line = json.loads(text)
            if (
                isinstance(line, dict)
                and isinstance(line.get("step"), int)
                and all(value is None or isinstance(value, (int, float)) for value in line.values())
            ):
                lines.append(line)
    return lines


def duration(seconds: float) -> str:
    """Seconds in a readable form: 45 s, 12 min, 3 h 20 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def count_text(count: float, form: str = "#.3g", space: str = " ") -> str:
    """A count in short, with the same number of digits as others beside it: 63.1 M, 37.0 k, 3.3e18."""
    if abs(count) >= 1e15:
        return f"{count:.2g}".replace("e+", "e")
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= size:
            return f"{count / size:{form}}".removesuffix(".") + f"{space}{letter}"
    return f"{count:g}"
