"""Progress of long work on stderr: a bar on a terminal, otherwise a plain line now and then."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm import tqdm

from transformer_jax.errors import visible

SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """Counts units of work. Work that finishes before the first line is due prints nothing."""

    def __init__(self, label: str, unit: str, total: int | None = None):
        self._label, self._unit, self._total = label, unit, total
        self._done = 0
        self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
        self._bar = tqdm(desc=label, unit=f" {unit}", total=total, leave=False) if sys.stderr.isatty() else None

    def advance(self, amount: int) -> None:
        self._done += amount
        if self._bar is not None:
            self._bar.update(amount)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            of_all = f" of {self._total:,}" if self._total else ""
            print(f"{self._label}: {self._done:,}{of_all} {self._unit}", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def tell(line: str) -> None:
    """Prints a line or a table on stderr; stdout is for results."""
    tqdm.write("\n".join(map(visible, line.split("\n"))), file=sys.stderr)  # above a progress bar, if there is one
    sys.stderr.flush()
