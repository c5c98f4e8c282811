"""One process of a sweep: trains runs, one or several together, measures them, and tells how each of them went.

    python -P -m transformer_jax.sweeps.worker SWEEP SLUG/seed-N [SLUG/seed-N ...]

A JSON object for each run goes to stdout; everything else goes to stderr, which a launcher keeps as the run's log.txt.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from transformer_jax.data.prepare import prepare
from transformer_jax.errors import BadInput, Failed
from transformer_jax.extension import UserCodeError
from transformer_jax.files.atomic import explained
from transformer_jax.files.progress import tell
from transformer_jax.processes.hardware import keep_freed_memory
from transformer_jax.shipped import PACKAGE
from transformer_jax.sweeps import provenance
from transformer_jax.sweeps.folder import SweepFolder, SweepRun, now
from transformer_jax.sweeps.spec import Definition
from transformer_jax.training.ending import Ending

BAD_INPUT = 2
# Lines of a traceback that are kept as the reason of a failure.
KEPT_LINES = 8


class Stopped(BaseException):
    """Asked to end. Like KeyboardInterrupt, no `except Exception` in between may swallow it."""


class Worker:
    """The runs of one process, and what it says of them."""

    def __init__(self, sweep: SweepFolder, definition: Definition, runs: Sequence[SweepRun], report: int):
        self.sweep, self.definition, self.report = sweep, definition, report
        self.runs = runs
        self.stopping = False
        self.failed = 0

    def work(self) -> int:
        """All of it; the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._raise)
        with contextlib.ExitStack() as stack:
            try:
                todo = self._hold(stack)
                if todo:
                    self._train_and_measure(todo)
            except Stopped:
                for run in self.runs:
                    if run.result() is None:
                        self.note(run, "stopped")
        return 1 if self.failed else 0

    def stop(self) -> None:
        """From another thread: training saves and ends, whatever else is under way is left."""
        self.stopping = True
        os.kill(os.getpid(), signal.SIGTERM)

    def _raise(self, number: int, frame: object) -> NoReturn:
        self.stopping = True
        raise Stopped

    def _hold(self, stack: contextlib.ExitStack) -> list[SweepRun]:
        """Waits until no other process is at work on these runs; those that are not finished then."""
        todo = []
        for run in sorted(self.runs, key=lambda run: run.address):  # in one order, so that no two wait for each other
            try:
                if run.is_held():
                    tell(f"{run.name}: another process is at work on it; waiting")
                with explained(run.path):
                    stack.enter_context(run.held())
                if run.is_finished():
                    self.note(run, "finished")
                    continue
                if run.result() is not None:  # its records are those of another evaluation now: it is measured again
                    (run.path / "result.json").unlink()
                tries = run.attempt().get("tries", 0) + 1
                self.note(run, "running", tries=tries, started=now(), ended=None, error=None)
                todo.append(run)
            except Exception as error:
                self.fail(run, error)
        return todo

    def _train_and_measure(self, runs: list[SweepRun]) -> None:
        ready = []
        for run in runs:
            try:
                provenance.refuse_edited(run, self.definition)
                self._link_data(run)
                ready.append(run)
            except Exception as error:
                self.fail(run, error)
        for run in self._trained(ready) if ready else []:
            if self.stopping:
                raise Stopped
            try:
                from transformer_jax.sweeps.measure import finish

                finish(run, self.definition, len(ready))
                self.note(run, "finished")
            except Exception as error:
                self.fail(run, error)

    def _link_data(self, run: SweepRun) -> None:
        """Makes the prepared data, or waits for the process that does, and puts it where the run looks for it."""
        shared = self.sweep.data(run.experiment)
        prepare(run.experiment, shared)
        place = run.path / "data"
        if run.experiment.data.directory is None and not place.exists():
            with explained(run.path):
                place.unlink(missing_ok=True)  # a link to where nothing is any more
                place.symlink_to(os.path.relpath(shared, run.path), target_is_directory=True)

    def _trained(self, runs: list[SweepRun]) -> list[SweepRun]:
        """Those that came to the end of their training."""
        from transformer_jax.experiment import train_run, train_runs_together

        accept = self.definition.accept_changed_code
        try:
            if len(runs) == 1:
                why = train_run(runs[0].experiment, runs[0].path, accept_changed_code=accept)
                endings = [Ending(why, why.startswith("finished"))]
            else:
                endings = train_runs_together([run.experiment for run in runs], [run.path for run in runs], accept)
        except Exception as error:
            for run in runs:
                self.fail(run, error)
            return []
        for run, ending in zip(runs, endings, strict=True):
            if ending.failed:
                self.fail(run, Failed(ending.why))
            elif not ending.final:
                self.note(run, "stopped", error=ending.why)
        return [run for run, ending in zip(runs, endings, strict=True) if ending.final and not ending.failed]

    def note(self, run: SweepRun, state: str, **values: object) -> None:
        """Says where a run stands, in its folder, and to who started this process."""
        if state != "running":
            values = {"ended": now(), **values}
            line = {"run": run.address, "state": state, "error": values.get("error")}
            with contextlib.suppress(OSError):  # nobody may be listening any more
                os.write(self.report, (json.dumps(line) + "\n").encode())
        with explained(run.path):
            run.note_attempt(state=state, host=socket.gethostname(), pid=os.getpid(), **values)

    def fail(self, run: SweepRun, error: Exception) -> None:
        self.failed += 1
        reason = told(error)
        tell(f"{run.name}: failed: {reason}")
        with contextlib.suppress(OSError, BadInput):  # the disk may be what failed
            self.note(run, "failed", error=reason)


def told(error: Exception) -> str:
    """Why a run failed: a line where the cause is known, the end of the traceback where it is not."""
    if isinstance(error, UserCodeError):
        return f"{error}\n{_last_lines(error.traceback)}"
    if isinstance(error, (BadInput, Failed)):
        return str(error)
    return _last_lines("".join(traceback.format_exception(error)))


def _last_lines(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-KEPT_LINES:])


def stop_when_stdin_ends(worker: Worker) -> None:
    """The other end of stdin is the launcher's: it closes the pipe to have us stop, and the kernel does if it dies."""
    while os.read(0, 4096):
        pass
    worker.stop()


def own_stdout() -> int:
    """Keeps stdout for the report alone: what anything prints from now on goes to stderr."""
    report = os.dup(1)
    os.dup2(2, 1)
    return report


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("runs", nargs="+", metavar="SLUG/seed-N")
    parser.add_argument("--until-stdin-ends", action="store_true", help="save and stop when stdin is closed")
    parser.add_argument("--package", type=Path, help="where the launcher imports transformer_jax from")
    chosen = parser.parse_args(arguments)
    if chosen.package is not None and chosen.package.resolve() != PACKAGE.resolve():
        print(
            f"error: this process imports transformer_jax from {PACKAGE.resolve()}, and the sweep's launcher from "
            f"{chosen.package}: install the one that is wanted (pip install), or put its parent into PYTHONPATH",
            file=sys.stderr,
        )
        return BAD_INPUT
    report = own_stdout()
    keep_freed_memory()  # here, where no thread has begun
    with SweepFolder(chosen.sweep).as_it_began() as sweep:
        definition = sweep.load()
        worker = Worker(sweep, definition, [sweep.find(definition, address) for address in chosen.runs], report)
        if chosen.until_stdin_ends:
            threading.Thread(target=stop_when_stdin_ends, args=[worker], daemon=True).start()
        return worker.work()


if __name__ == "__main__":
    sys.exit(main())
