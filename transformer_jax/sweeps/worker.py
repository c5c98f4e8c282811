"""A worker process of a sweep: trains runs, one or several together, evaluates them, and reports how each of them went.

    python -P -m transformer_jax.sweeps.worker SWEEP SLUG/seed-N [SLUG/seed-N ...]

A JSON object for each run goes to stdout; everything else goes to stderr, which the launcher stores as the run's
log.txt.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from transformer_jax.data.prepare import prepare
from transformer_jax.errors import BadInput, Diverged, Failed
from transformer_jax.extension import UserCodeError
from transformer_jax.files.atomic import explained
from transformer_jax.files.progress import tell
from transformer_jax.processes.hardware import keep_freed_memory
from transformer_jax.shipped import PACKAGE
from transformer_jax.sweeps import provenance
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.run import SweepRun, is_held, now
from transformer_jax.sweeps.spec import ResolvedSweep
from transformer_jax.training.train import Ending

BAD_INPUT = 2
# Lines of a traceback that are kept as the reason of a failure.
KEPT_LINES = 8


class Stopped(BaseException):
    """This process was asked to stop. Like KeyboardInterrupt, it is not caught by `except Exception`."""


class Worker:
    """The runs of one process; `report` is the file descriptor of the file that the launcher reads."""

    def __init__(self, sweep: SweepFolder, definition: ResolvedSweep, runs: Sequence[SweepRun], report: int):
        self.sweep, self.definition, self.runs, self.report = sweep, definition, runs, report
        self.stopping = False
        self.failed: set[str] = set()  # ids of runs, those that diverged included

    def work(self) -> int:
        """Trains and evaluates all runs; returns the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._raise)
        with contextlib.ExitStack() as locks:
            try:
                if unfinished := self._lock(locks):
                    self._train_and_evaluate(unfinished)
            except Stopped:
                for run in self.runs:
                    if run.result() is None and run.run_id not in self.failed:
                        self.record(run, "stopped")
        return 1 if self.failed else 0

    def stop_when_stdin_ends(self) -> None:
        """In another thread: when the launcher closes the pipe (the kernel does if it dies), training saves and ends.

        Anything else is abandoned.
        """
        while os.read(0, 4096):
            pass
        self.stopping = True
        os.kill(os.getpid(), signal.SIGTERM)

    def _raise(self, number: int, frame: object) -> NoReturn:
        self.stopping = True
        raise Stopped

    def _lock(self, locks: contextlib.ExitStack) -> list[SweepRun]:
        """Waits until no other process works on these runs; returns those that are not finished then."""
        unfinished = []
        for run in sorted(self.runs, key=lambda run: run.run_id):  # always in this order, to prevent a deadlock
            with self._failing(run):
                if is_held(run.path):
                    tell(f"{run.name}: another process is working on it; waiting")
                with explained(run.path):
                    locks.enter_context(run.held())
                if run.is_finished():
                    self.record(run, "finished")
                    continue
                if run.result() is not None:  # its records are of another evaluation now: evaluate it again
                    (run.path / "result.json").unlink()
                tries = run.attempt().get("tries", 0) + 1
                self.record(run, "running", tries=tries, started=now(), ended=None, error=None)
                unfinished.append(run)
        return unfinished

    def _train_and_evaluate(self, runs: list[SweepRun]) -> None:
        from transformer_jax.processes.compilation import CompileWatch

        ready, watch = [], CompileWatch()
        for run in runs:
            with self._failing(run):
                provenance.refuse_edited(run, self.definition)
                self._link_data(run)
                ready.append(run)
        trained = self._trained(ready) if len(ready) < 2 else self._trained_together(ready)
        if trained is None:
            for run in ready:
                self._train_and_evaluate([run])
            return
        for run in trained:
            if self.stopping:
                raise Stopped
            with self._failing(run):
                from transformer_jax.sweeps.measure import finish

                finish(run, self.definition, len(ready), watch)
                self.record(run, "finished")

    def _link_data(self, run: SweepRun) -> None:
        """Prepares the data, or waits for the process that does, and links it into the run's folder."""
        shared = self.sweep.data(run.experiment)
        prepare(run.experiment, shared)
        link = run.path / "data"
        if run.experiment.data.directory is None and not link.exists():
            with explained(run.path):
                link.unlink(missing_ok=True)  # a dangling link
                link.symlink_to(os.path.relpath(shared, run.path), target_is_directory=True)

    def _trained(self, runs: list[SweepRun]) -> list[SweepRun]:
        """Trains at most one run; returns it if its training is complete."""
        from transformer_jax.experiment import train_run
        from transformer_jax.sweeps.measure import labels_of

        endings, accept = [], self.definition.accept_changed_code
        for run in runs:
            with self._failing(run):
                labels = labels_of(run, self.definition)
                endings = [train_run(run.experiment, run.path, accept_changed_code=accept, labels=labels)]
        return self._complete(runs, endings)

    def _trained_together(self, runs: list[SweepRun]) -> list[SweepRun] | None:
        """Trains several runs in one program; None if an error, perhaps of one run's folder, has ended all of them."""
        from transformer_jax.experiment import train_runs_together
        from transformer_jax.sweeps.measure import labels_of

        experiments, paths = [run.experiment for run in runs], [run.path for run in runs]
        labels = [labels_of(run, self.definition) for run in runs]
        try:
            endings = train_runs_together(experiments, paths, self.definition.accept_changed_code, labels)
        except Exception as error:
            tell(f"{len(runs)} runs cannot train together: {reason_of(error)}; each of them trains apart")
            return None
        return self._complete(runs, endings)

    def _complete(self, runs: Sequence[SweepRun], endings: Sequence[Ending]) -> list[SweepRun]:
        """Records the runs that diverged or were stopped; returns the others."""
        complete = []
        for run, ending in zip(runs, endings, strict=False):  # no endings after an exception
            if ending.diverged:
                self.fail(run, Diverged(ending.why))
            elif ending.final:
                complete.append(run)
            else:
                self.record(run, "stopped", error=ending.why)
        return complete

    def record(self, run: SweepRun, state: str, **values: object) -> None:
        """Records the state of a run in its folder, and reports it to the launcher."""
        if state != "running":
            values = {"ended": now(), **values}
            line = {"run": run.run_id, "state": state, "error": values.get("error")}
            with contextlib.suppress(OSError):  # the launcher may be gone
                os.write(self.report, (json.dumps(line) + "\n").encode())
        with explained(run.path):
            run.record_attempt(state=state, host=socket.gethostname(), pid=os.getpid(), **values)

    def fail(self, run: SweepRun, error: Exception) -> None:
        self.failed.add(run.run_id)
        state, reason = "diverged" if isinstance(error, Diverged) else "failed", reason_of(error)
        tell(f"{run.name}: {state}: {reason}")
        with contextlib.suppress(OSError, BadInput, Failed):  # the disk may be what failed
            self.record(run, state, error=reason)

    @contextlib.contextmanager
    def _failing(self, *runs: SweepRun) -> Iterator[None]:
        """An exception inside is a failure of these runs, not of the process."""
        try:
            yield
        except Exception as error:
            for run in runs:
                self.fail(run, error)


def reason_of(error: Exception) -> str:
    """Why a run failed: the message if the cause is known, otherwise the end of the traceback."""
    if isinstance(error, UserCodeError):
        return f"{error}\n{_last_lines(error.traceback)}"
    if isinstance(error, (BadInput, Failed)):
        return str(error)
    return _last_lines("".join(traceback.format_exception(error)))


def _last_lines(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-KEPT_LINES:])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("runs", nargs="+", metavar="SLUG/seed-N")
    parser.add_argument("--until-stdin-ends", action="store_true", help="save and stop when stdin is closed")
    parser.add_argument("--package", type=Path, help="where the launcher imports transformer_jax from")
    options = parser.parse_args(arguments)
    if options.package is not None and options.package.resolve() != PACKAGE.resolve():
        print(
            f"error: this process imports transformer_jax from {PACKAGE.resolve()}, and the sweep's launcher from "
            f"{options.package}: install the right one (pip install), or put its parent into PYTHONPATH",
            file=sys.stderr,
        )
        return BAD_INPUT
    report = os.dup(1)
    os.dup2(2, 1)  # stdout is for the report alone: from now on what anything prints goes to stderr
    keep_freed_memory()  # must come before any thread is started
    with SweepFolder(options.sweep).in_original_directory() as sweep:
        definition = sweep.load()
        worker = Worker(sweep, definition, [sweep.find(definition, run_id) for run_id in options.runs], report)
        if options.until_stdin_ends:
            threading.Thread(target=worker.stop_when_stdin_ends, daemon=True).start()
        return worker.work()


if __name__ == "__main__":
    sys.exit(main())
