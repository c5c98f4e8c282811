"""A worker process as its launcher sees it. Closing its stdin asks it to stop; its stdout reports how its runs went."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from transformer_jax.shipped import PACKAGE
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.run import Job, SweepRun

# Without -P, `python -m` imports from the current directory first: a copy of the package that lies there, or a file
# called random.py, would be run in place of what is installed, and of what the launcher runs.
PYTHON = (sys.executable, "-P")
# Lines of the log that are shown if a process ends without reporting why.
LAST_LINES = 8


class Outcome(NamedTuple):
    """How a run went in one process."""

    state: str  # finished, failed, diverged, stopped
    error: str = ""


class Pool(Protocol):
    """Where jobs run: processes of this machine, or the jobs of a cluster."""

    seconds_between_polls: float

    def start(self, jobs: Sequence[Job]) -> list[Job]:
        """Starts as many jobs as there is room for; returns those that have to wait."""

    def is_busy(self) -> bool:
        """Whether there is anything to wait for."""

    def ended(self) -> Iterator[tuple[SweepRun, Outcome]]:
        """The runs that have ended since the last call."""

    def stop(self) -> None:
        """Asks all jobs to save and end."""


class WorkerProcess:
    """One process that trains some runs."""

    def __init__(self, sweep: SweepFolder, runs: Sequence[SweepRun], environment: Mapping[str, str] | None = None):
        self.runs = tuple(runs)
        first = runs[0]
        first.path.mkdir(parents=True, exist_ok=True)
        for run in runs[1:]:
            run.path.mkdir(parents=True, exist_ok=True)
            run.log.write_text(f"trained together with {first.name}: see {os.path.relpath(first.log, run.path)}\n")
        worker = [*PYTHON, "-m", "transformer_jax.sweeps.worker", f"--package={PACKAGE.resolve()}"]
        # A file, because a pipe that nobody reads yet blocks its writer when it is full.
        self.report = tempfile.TemporaryFile()  # noqa: SIM115
        with open(first.log, "ab") as log:
            self.process = subprocess.Popen(
                [*worker, "--until-stdin-ends", sweep.path, *(run.run_id for run in runs)],
                stdin=subprocess.PIPE,
                stdout=self.report,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl-C reaches the launcher alone, which then asks its workers
            )

    def ask_to_stop(self) -> None:
        """Has it save and end. The same happens when this process dies, which closes the pipe."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def outcomes(self) -> dict[str, Outcome]:
        """The outcome of each run, by its id; waits for the end. A run that was not reported has failed."""
        status = self.process.wait()
        self.ask_to_stop()  # closes the pipe
        with self.report:
            self.report.seek(0)
            lines = self.report.read().decode(errors="replace").splitlines()
        reported = {}
        for text in lines:
            with contextlib.suppress(ValueError, KeyError):
                line = json.loads(text)
                reported[line["run"]] = Outcome(line["state"], line["error"] or "")
        if status == -signal.SIGTERM:  # asked to stop before it had a handler for the signal
            missing = Outcome("stopped")
        else:
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            missing = Outcome("failed", f"the process {how}; its last lines:\n{last_lines(self.runs[0].log)}")
        return {run.run_id: reported.get(run.run_id, missing) for run in self.runs}


def last_lines(log: Path) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(text.rstrip().splitlines()[-LAST_LINES:])
