"""Commands as processes of their own, started in milliseconds: children of one process that has imported everything.

The parent never touches a device, so that forking it is safe.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

from tests.chaos.tally import Violation, check
from transformer_jax import cli
from transformer_jax.errors import EXIT_UNFINISHED
from transformer_jax.files import output

# A child that takes longer hangs: also on a very busy machine the slowest command takes a fraction of it.
PATIENCE = 1200.0
NEVER = ("Traceback", "This is a bug", "Exception ignored", "was never awaited", "Fatal Python error")


class Ended(NamedTuple):
    """How a child ended: its exit status, or minus the signal that killed it, and what it wrote."""

    status: int
    out: bytes
    err: str

    @property
    def complaints(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith(("error:", "failed:"))]

    @property
    def warned(self) -> bool:
        return "warning:" in self.err

    def checked(self) -> Ended:
        """Itself, if it ended as a command may end that was not killed."""
        for word in NEVER:
            begin = max(0, self.err.find(word) - 1500)
            check(word not in self.err, f"{word} in what it said:\n{self.err[begin : begin + 3000]}{_report(self.err)}")
        check(self.status in (0, 1, 2, EXIT_UNFINISHED), f"status {self.status}: {self.err[-3000:]}")
        check(self.status != 2 or bool(self.complaints), f"status 2 without an error:\n{self.err[-1000:]}")
        return self


class Child:
    """A function at work in a process of its own."""

    def __init__(self, work: Callable[[], Any], before: Callable[[], Any] | None = None, stdin: bytes = b""):
        self._out, self._err, self._in = (tempfile.TemporaryFile() for _ in range(3))  # noqa: SIM115
        self._in.write(stdin)
        self._in.seek(0)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        self._status: int | None = None
        if not self.pid:
            _live(work, before, (self._in, self._out, self._err))

    def alive(self) -> bool:
        if self._status is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if found else None
        return self._status is None

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.alive():
                os.kill(self.pid, number)

    def end(self, patience: float = PATIENCE) -> Ended:
        """How it ended. It hangs if it computes for less than a second in so many seconds."""
        used, since = 0.0, time.monotonic()
        while self.alive():
            if self._computed() > used + 1:
                used, since = self._computed(), time.monotonic()
            if time.monotonic() > since + patience:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                self._status = -signal.SIGKILL
                raise Violation(f"hung for {patience:g} s:\n{self._read(self._err)[-2000:]!r}")
            time.sleep(0.01)
        assert self._status is not None
        return Ended(self._status, self._read(self._out), self._read(self._err).decode(errors="replace"))

    def _computed(self) -> float:
        """Seconds that it has computed for."""
        with contextlib.suppress(OSError, IndexError):
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def _read(self, file: IO[bytes]) -> bytes:
        file.seek(0)
        return file.read()


def command(arguments: Sequence[str], before: Callable[[], Any] | None = None, stdin: bytes = b"") -> Child:
    return Child(lambda: cli.main(list(arguments)), before, stdin)


def run(arguments: Sequence[str], before: Callable[[], Any] | None = None, stdin: bytes = b"") -> Ended:
    """A command to its end, which must be a decent one."""
    return command(arguments, before, stdin).end().checked()


def answer(work: Callable[[], str]) -> str:
    """What a function returns that needs a process of its own."""
    ended = Child(lambda: print(work(), end="")).end()
    check(ended.status == 0, ended.err[-3000:])
    return ended.out.decode()


def _live(work: Callable[[], Any], before: Callable[[], Any] | None, streams: Sequence[IO[bytes]]) -> NoReturn:
    """The child's whole life; nothing of the parent's is cleaned up in it."""
    status = 70
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream.fileno(), number)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGINT, cli.interrupt)
        output.is_command = True
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
        faulthandler.enable(file=sys.stderr)
        if before is not None:
            before()
        status = work() or 0
    except SystemExit as ending:  # --help
        status = ending.code if isinstance(ending.code, int) else 0
    except KeyboardInterrupt:
        status = 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _report(err: str) -> str:
    """The traceback that a command left in a file."""
    found = re.search(r"The traceback is in (\S+)", err)
    return "\n" + Path(found[1]).read_text()[-3000:] if found and Path(found[1]).is_file() else ""
