"""Progress of long work on stderr: a bar on a terminal, otherwise a plain line now and then."""

import collections
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from transformer_jax.errors import visible

SECONDS_BETWEEN_LINES = 30.0
# Lines that wait until a log can be written.
LINES_KEPT = 1000

_log: "Log | None" = None


@contextlib.contextmanager
def counting(label: str, unit: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A function to call with the units of work done. Work that ends before the first line is due prints nothing."""
    from tqdm import tqdm  # here: --help needs no package but jax, flax and numpy

    done, due = 0, time.monotonic() + SECONDS_BETWEEN_LINES

    def advance(amount: int) -> None:
        nonlocal done, due
        done += amount
        if bar is not None:
            bar.update(amount)
        elif time.monotonic() >= due:
            due = time.monotonic() + SECONDS_BETWEEN_LINES
            of_all = f" of {total:,}" if total else ""
            print(f"{label}: {done:,}{of_all} {unit}", file=sys.stderr, flush=True)

    bar = tqdm(desc=label, unit=f" {unit}", total=total, leave=False) if sys.stderr.isatty() else None
    try:
        yield advance
    finally:
        if bar is not None:
            bar.close()


def tell(line: str) -> None:
    """Prints a line or a table on stderr; stdout is for results."""
    from tqdm import tqdm

    text = "\n".join(map(visible, line.split("\n")))
    if _log is not None:
        _log.write(text)
    tqdm.write(text, file=sys.stderr)  # above a progress bar, if there is one
    sys.stderr.flush()


class Log:
    """A file to which lines are appended once there is another file, `after`. Errors are ignored."""

    def __init__(self, path: Path, after: Path):
        self._path, self._after = path, after
        self._lines = collections.deque[str](maxlen=LINES_KEPT)

    def write(self, text: str) -> None:
        self._lines.append(text)
        with contextlib.suppress(OSError):
            if self._after.is_file():
                self._path.parent.mkdir(exist_ok=True)
                with open(self._path, "a", encoding="utf-8") as file:
                    file.write("\n".join([*self._lines, ""]))
                self._lines.clear()


@contextlib.contextmanager
def logged(path: Path, after: Path) -> Iterator[None]:
    """What is told inside, and the error that ends it, is also appended to this file."""
    global _log
    _log = log = Log(path, after)
    try:
        yield
    except Exception as error:
        log.write(f"{type(error).__name__}: {visible(str(error))}")
        raise
    finally:
        _log = None
