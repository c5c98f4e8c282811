"""Standard input, output and error of a command: open, in UTF-8, and a write that fails is never lost in silence.

What is printed is UTF-8 whatever the locale or PYTHONIOENCODING says, as the files are that this package writes.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from transformer_jax.errors import BadInput, Failed
from transformer_jax.files.atomic import NO_ROOM


class NobodyReads(Exception):
    """The reader of our output is gone (`| head`): there is nobody to tell."""


class Output:
    """stdout: output that cannot be written ends the command."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            raise self._failure(error) from None

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise self._failure(error) from None

    def _failure(self, error: OSError) -> Exception:
        discard(self._stream)
        if isinstance(error, BrokenPipeError):
            return NobodyReads()
        reason = NO_ROOM.get(error.errno or 0, error.strerror)
        return Failed(f"stdout: {reason}; the output is incomplete")


class Messages:
    """stderr: the work does not depend on whether its messages arrive, but the exit status tells if they did not."""

    def __init__(self, stream: TextIO):
        self._stream, self._failed = stream, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._tolerant():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._tolerant():
            self._stream.flush()

    @contextlib.contextmanager
    def _tolerant(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            discard(self._stream)
            raise NobodyReads from None
        except OSError:
            self._failed = True  # with Python's usual buffer the next message tries again to write this one

    def finish(self) -> None:
        """Raises Failed if a message could not be written."""
        self.flush()
        if self._failed:
            discard(self._stream)
            self._failed = False
            raise Failed("stderr: messages could not be written")


@contextlib.contextmanager
def ready() -> Iterator[None]:
    """Prepares the standard streams for one command."""
    fill_closed_descriptors()
    before = sys.stdout, sys.stderr
    if before[1] is None:  # closed with 2>&-: print() would take stdout instead
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # What UTF-8 cannot hold either (half of a surrogate pair) is written as an escape.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if before[0] is not None:
        sys.stdout = cast(TextIO, Output(sys.stdout))
    sys.stderr = cast(TextIO, Messages(sys.stderr))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def require_stdout() -> None:
    """Refuses a closed stdout (`>&-`), to which Python prints without a word."""
    if sys.stdout is None:
        raise BadInput("stdout: is closed; redirect it to a file, or to /dev/null if the output is not needed")


def finish() -> None:
    """Writes what is still to be written; raises if that fails."""
    if sys.stdout is not None:
        sys.stdout.flush()
    if isinstance(sys.stderr, Messages):
        sys.stderr.finish()


def fill_closed_descriptors() -> None:
    """Opens /dev/null in place of closed standard streams: else the next file takes that number, and what a library
    prints goes into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free


def discard(stream: TextIO) -> None:
    """Sends what a stream still holds nowhere: Python writes it at exit once more, and would complain again."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
