"""Progress of long work on stderr: a bar on a terminal, otherwise a plain line now and then."""

import collections
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from transformer_jax.errors import visible
from transformer_jax.files.paths import as_typed, no_links

SECONDS_BETWEEN_LINES = 30.0
# Lines that wait until a log can be written.
LINES_KEPT = 1000

_log: Callable[[str], None] | None = None


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

    text = "\n".join(map(visible, as_typed(line).split("\n")))
    if _log is not None:
        _log(text)
    tqdm.write(text, file=sys.stderr)  # above a progress bar, if there is one
    sys.stderr.flush()


@contextlib.contextmanager
def logged(path: Path, after: Path) -> Iterator[None]:
    """Appends messages, and the error that ends this, to a file as soon as the file `after` exists.

    Errors of writing are ignored.
    """
    global _log
    waiting = collections.deque[str](maxlen=LINES_KEPT)

    def append(text: str) -> None:
        waiting.append(text)
        with contextlib.suppress(OSError):
            if after.is_file():
                path.parent.mkdir(exist_ok=True)
                with open(path, "a", encoding="utf-8", opener=no_links) as file:
                    file.write("\n".join([*waiting, ""]))
                waiting.clear()

    _log = append
    try:
        yield
    except Exception as error:
        append(f"{type(error).__name__}: {visible(str(error))}")
        raise
    finally:
        _log = None
