"""The standard streams of a command: open, and in UTF-8 whatever the locale, like all files that are written."""

import contextlib
import io
import os
import sys

from transformer_jax.errors import BadInput


def prepare() -> None:
    """Prepares the streams for one command; raises BadInput if stdout is closed (`>&-`), so that output is not lost."""
    fill_closed_descriptors()
    if sys.stderr is None:  # closed with 2>&-: print() would use stdout instead
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What UTF-8 cannot represent (half of a surrogate pair) is escaped.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if sys.stdout is None:
        raise BadInput("stdout: is closed; redirect it to a file, or to /dev/null if the output is not needed")


def fill_closed_descriptors() -> None:
    """Opens /dev/null in place of closed standard streams: otherwise the next file gets that number, and what a library
    prints is written into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number


def discard_output() -> None:
    """Redirects stdout to /dev/null: at exit Python flushes its buffer again, and would report the same error twice."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
