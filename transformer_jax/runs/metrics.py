"""What is seen of a run: metrics.jsonl, TensorBoard, and a progress line."""

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm

from transformer_jax.errors import BadInput, Failed
from transformer_jax.files.atomic import explained
from transformer_jax.files.progress import tell

# Names in metrics.jsonl that depend on the clock; all others are the same for every run of the same config.
CLOCK = ("seconds", "source_tokens_per_second", "target_tokens_per_second", "data_wait", "mfu", "memory_peak")
# Those that the progress line shows.
SHOWN = ("loss", "perplexity", "learning_rate", "target_tokens_per_second", "data_wait")


class Metrics:
    """Writes each line of metrics where it is looked for. Only the first process of several writes."""

    def __init__(self, path: Path, tensorboard: bool, writes: bool = True):
        self._path, self._writes, self._board = path, writes, None
        if writes and tensorboard:
            from tensorboardX import SummaryWriter  # here, because it loads slowly

            self._board = SummaryWriter(str(path.parent / "tensorboard"))

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._board is None:
            return
        try:
            with explained(self._path.parent / "tensorboard"):
                self._board.close()
        except (OSError, BadInput, Failed):
            if error is None:  # otherwise what went wrong first is what is told
                raise

    def write(self, step: int, values: dict[str, Any]) -> None:
        if not self._writes:
            return
        with explained(self._path), open(self._path, "a") as file:
            file.write(json.dumps({"step": step, **{name: _told(value) for name, value in values.items()}}) + "\n")
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._board.add_scalar(name, value, step)


class ProgressLine:
    """Where the run stands: a live line on a terminal, and without one a plain line at each line of metrics."""

    def __init__(self, first_step: int, last_step: int, shown: bool = True):
        self._last_step, self._shown = last_step, shown
        self._bar = None
        if shown and sys.stderr.isatty():
            self._bar = tqdm(initial=first_step, total=last_step, unit="step", dynamic_ncols=True, smoothing=0.1)
        self._reported_step, self._reported_at = first_step, time.monotonic()
        self._seconds_a_step: float | None = None

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, loss: float) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            self._bar.update()

    def tell(self, line: str) -> None:
        """A line above the live one."""
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)
        elif self._shown:
            tell(line)

    def report(self, step: int, lines: Sequence[dict[str, Any]]) -> None:
        """The state of things at a line of metrics; of several runs' lines the means, and all their tokens."""
        left = self._pace(step) * (self._last_step - step)
        mean = {name: sum(line[name] for line in lines) / len(lines) for name in SHOWN}
        self.tell(
            (f"{len(lines)} runs  " if len(lines) > 1 else "")
            + f"step {step:>7,}  loss {mean['loss']:.3f}  perplexity {mean['perplexity']:.2f}  "
            f"rate {mean['learning_rate']:.2e}  {mean['target_tokens_per_second'] * len(lines):,.0f} tokens/s  "
            f"data wait {mean['data_wait']:.0%}  left {duration(left)}"
        )

    def _pace(self, step: int) -> float:
        """Seconds a step: half those since the last report, half those before. Compiling and sleep fade away."""
        now = time.monotonic()
        pace = (now - self._reported_at) / max(step - self._reported_step, 1)
        self._reported_step, self._reported_at = step, now
        self._seconds_a_step = pace if self._seconds_a_step is None else (self._seconds_a_step + pace) / 2
        return self._seconds_a_step


def _told(value: Any) -> Any:
    """JSON knows no NaN and no infinity: a mean over nothing is null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def duration(seconds: float) -> str:
    """Seconds as a person says them: 45 s, 12 min, 3 h 20 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
