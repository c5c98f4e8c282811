"""Progress of long work on stderr: a bar on a terminal, otherwise a plain line now and then."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from transformer_jax.errors import visible

SECONDS_BETWEEN_LINES = 30.0


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

    tqdm.write("\n".join(map(visible, line.split("\n"))), file=sys.stderr)  # above a progress bar, if there is one
    sys.stderr.flush()
