"""Standard streams that never raise: a closed terminal, a pipe without a reader or a full disk does not end a run.

Every print, progress bar, warning, log record and traceback of a command goes through them. A command whose results are
on stdout calls `check_results`, so that its exit status says whether they arrived.
"""

import contextlib
import io
import os
import select
import sys
from typing import TextIO

from transformer_jax.errors import Failed

# Whether this process is a command of this package. If not, its streams and signals belong to another program.
is_command = False


class _Descriptor(io.FileIO):
    """An open file whose `write` does not raise. What could not be written is lost, and `failure` is the reason."""

    failure: OSError | None = None

    def write(self, data: "bytes | memoryview") -> int:  # type: ignore[override]
        left = memoryview(data)
        try:
            while left:
                count = super().write(left)
                if count is None:  # another program has made it non-blocking, and it has no room now
                    select.select([], [self], [])
                else:
                    left = left[count:]
        except OSError as error:
            self.failure = self.failure or error
        return len(data)


class Output(io.TextIOWrapper):
    """The replacement of a standard stream: UTF-8 whatever the locale, without a buffer."""

    def __init__(self, stream: TextIO | None):
        # No file that is opened later may get the number of a closed stream. Writing to this one is an error.
        descriptor = os.open(os.devnull, os.O_RDONLY) if stream is None else stream.fileno()
        self.descriptor = _Descriptor(descriptor, "w", closefd=False)
        super().__init__(self.descriptor, encoding="utf-8", errors="backslashreplace", write_through=True)


def use_in_this_command() -> None:
    """Replaces the standard streams of this process. Called first by each of its entry points."""
    global is_command
    is_command = True
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_WRONLY))
    sys.stdout, sys.stderr = Output(sys.stdout), Output(sys.stderr)


def check_results() -> None:
    """Raises Failed if results on stdout were lost; exits with status 1 if their reader has ended, as with `| head`."""
    sys.stdout.flush()
    failure = sys.stdout.descriptor.failure if isinstance(sys.stdout, Output) else None
    if isinstance(failure, BrokenPipeError):
        sys.exit(1)
    if failure is not None:
        raise Failed(f"stdout: {failure.strerror}: results were lost")


def tell_in_handler(line: str) -> None:
    """Writes a line to stderr from a handler of signals, which may interrupt any other output."""
    if sys.__stderr__ is None:  # it was closed before this process began
        return
    below = "\n" if os.isatty(2) else ""  # a progress bar
    with contextlib.suppress(OSError):
        os.write(2, f"{below}{line}\n".encode())
