"""Standard input, output and error of a command: always open, in UTF-8, and a write that fails is always reported.

Output is UTF-8 whatever the locale or PYTHONIOENCODING, like the files that this package writes.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO, cast

from transformer_jax.errors import BadInput, Failed
from transformer_jax.files.atomic import NO_ROOM


class ReaderGone(Exception):
    """The reader of our output is gone (`| head`), so there is nobody to report to."""


class Output:
    """A standard stream. Output that cannot be written ends the command; of messages, the exit status shows it."""

    def __init__(self, stream: TextIO, is_stdout: bool):
        self._stream, self._is_stdout = stream, is_stdout
        self.failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._reported(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._reported(self._stream.flush)

    def _reported(self, act: Callable[[], object]) -> None:
        try:
            act()
        except BrokenPipeError:
            discard(self)
            raise ReaderGone from None
        except OSError as error:
            self.failed = True  # Python's buffer keeps the text, and the next write tries again
            if self._is_stdout:
                discard(self)
                reason = NO_ROOM.get(error.errno or 0, error.strerror)
                raise Failed(f"stdout: {reason}; the output is incomplete") from None


@contextlib.contextmanager
def ready() -> Iterator[None]:
    """Prepares the standard streams for one command."""
    fill_closed_descriptors()
    before = sys.stdout, sys.stderr
    if before[1] is None:  # closed with 2>&-: print() would use stdout instead
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # What UTF-8 cannot represent (half of a surrogate pair) is escaped.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if before[0] is not None:
        sys.stdout = cast(TextIO, Output(sys.stdout, is_stdout=True))
    sys.stderr = cast(TextIO, Output(sys.stderr, is_stdout=False))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def require_stdout() -> None:
    """Refuses a closed stdout (`>&-`), where Python discards output silently."""
    if sys.stdout is None:
        raise BadInput("stdout: is closed; redirect it to a file, or to /dev/null if the output is not needed")


def finish() -> None:
    """Flushes the streams; raises if that fails, or if a message could not be written."""
    if sys.stdout is not None:
        sys.stdout.flush()
    messages = cast(Any, sys.stderr)
    messages.flush()
    if isinstance(messages, Output) and messages.failed:
        discard(messages)
        messages.failed = False
        raise Failed("stderr: messages could not be written")


def fill_closed_descriptors() -> None:
    """Opens /dev/null in place of closed standard streams: otherwise the next file gets that number, and what a library
    prints is written into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number


def discard(stream: Output) -> None:
    """Redirects a stream to /dev/null: at exit Python flushes its buffer again, and would report the error twice."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
