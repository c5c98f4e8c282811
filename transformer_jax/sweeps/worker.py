"""A worker process of a sweep: trains runs, one or several together, and evaluates them.

    python -P -m transformer_jax.sweeps.worker SWEEP SLUG/seed-N [SLUG/seed-N ...]

It saves and stops when its stdin is closed. How each run went is in its attempt.json. The launcher stores what is
printed as the run's log.txt.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import NoReturn

from transformer_jax.data.prepare import prepare
from transformer_jax.errors import BadInput, Diverged, Failed
from transformer_jax.experiment import train_runs_together
from transformer_jax.extension import UserCodeError
from transformer_jax.files.atomic import explained
from transformer_jax.files.progress import tell
from transformer_jax.processes.compilation import CompileWatch
from transformer_jax.processes.hardware import keep_freed_memory
from transformer_jax.runs.tracking import Labels
from transformer_jax.sweeps import provenance
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.measure import finish
from transformer_jax.sweeps.run import SweepRun, now
from transformer_jax.sweeps.spec import ResolvedSweep

# Lines of a traceback that are kept as the reason of a failure.
KEPT_LINES = 8


class Stopped(BaseException):
    """This process was asked to stop. Like KeyboardInterrupt, it is not caught by `except Exception`."""


class Worker:
    """The runs of one process."""

    def __init__(self, sweep: SweepFolder, definition: ResolvedSweep, runs: Sequence[SweepRun]):
        self.sweep, self.definition, self.runs = sweep, definition, runs
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
                        self._record(run, "stopped")
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
                locks.enter_context(run.held())
                if run.is_finished():
                    self._record(run, "finished")
                    continue
                if run.result() is not None:  # its records are of another evaluation now: evaluate it again
                    (run.path / "result.json").unlink()
                tries = run.attempt().get("tries", 0) + 1
                self._record(run, "running", tries=tries, started=now(), ended=None, error=None)
                unfinished.append(run)
        return unfinished

    def _train_and_evaluate(self, runs: Sequence[SweepRun]) -> None:
        """Trains runs, together if there are several, and evaluates them."""
        ready, watch = [], CompileWatch()
        for run in runs:
            with self._failing(run):
                provenance.refuse_edited(run, self.definition)
                self._link_data(run)
                ready.append(run)
        if not ready:
            return
        try:
            endings = train_runs_together(
                [run.experiment for run in ready],
                [run.path for run in ready],
                self.definition.accept_changed_code,
                [Labels(self.definition.sweep.name, run.variant, run.name) for run in ready],
            )
        except Exception as error:  # perhaps of one run's folder
            if len(ready) == 1:
                self._fail(ready[0], error)
                return
            tell(f"{len(ready)} runs cannot train together: {reason_of(error)}; each of them trains apart")
            for run in ready:
                self._train_and_evaluate([run])
            return
        trained = []
        for run, ending in zip(ready, endings, strict=True):
            if ending.diverged:
                self._fail(run, Diverged(ending.why))
            elif not ending.final:
                self._record(run, "stopped", error=ending.why, asked=self.stopping)
            else:
                trained.append(run)
        for run in trained:
            if self.stopping:
                raise Stopped
            with self._failing(run):
                finish(run, self.definition, len(ready), watch)
                self._record(run, "finished")

    def _link_data(self, run: SweepRun) -> None:
        """Prepares the data, or waits for the process that does, and links it into the run's folder."""
        shared = self.sweep.data(run.experiment)
        prepare(run.experiment, shared)
        link = run.path / "data"
        if run.experiment.data.directory is None and not link.exists():
            with explained(run.path):
                link.unlink(missing_ok=True)  # a dangling link
                link.symlink_to(os.path.relpath(shared, run.path), target_is_directory=True)

    def _record(self, run: SweepRun, state: str, **values: object) -> None:
        """Records the state of a run in its folder."""
        if state != "running":
            values = {"ended": now(), **values}
        run.record_attempt(state=state, host=socket.gethostname(), pid=os.getpid(), **values)

    def _fail(self, run: SweepRun, error: Exception) -> None:
        self.failed.add(run.run_id)
        state, reason = "diverged" if isinstance(error, Diverged) else "failed", reason_of(error)
        tell(f"{run.name}: {state}: {reason}")
        with contextlib.suppress(OSError, BadInput, Failed):  # the disk may be what failed
            self._record(run, state, error=reason)

    @contextlib.contextmanager
    def _failing(self, run: SweepRun) -> Iterator[None]:
        """An exception inside is a failure of this run, not of the process."""
        try:
            yield
        except Exception as error:
            self._fail(run, error)


def reason_of(error: Exception) -> str:
    """Why a run failed: the message if the cause is known, the end of the traceback if code is the cause."""
    is_known = isinstance(error, (BadInput, Failed))
    if isinstance(error, UserCodeError):
        trace = error.traceback
    else:
        trace = "" if is_known else "".join(traceback.format_exception(error))
    return "\n".join([*[str(error)] * is_known, *trace.rstrip().splitlines()[-KEPT_LINES:]])


def main() -> int:
    path, *run_ids = sys.argv[1:]
    keep_freed_memory()  # must come before any thread is started
    with SweepFolder(path).in_original_directory() as sweep:
        definition = sweep.load()
        worker = Worker(sweep, definition, [sweep.find(definition, run_id) for run_id in run_ids])
        threading.Thread(target=worker.stop_when_stdin_ends, daemon=True).start()
        return worker.work()


if __name__ == "__main__":
    sys.exit(main())
