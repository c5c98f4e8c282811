"""How the runs of a sweep stand, from their files alone: a table, and a line for each change.

The states of a run: waiting, running, measuring, finished; queued (on a cluster), stopped (it can be resumed),
interrupted (its process is gone), failed (it is tried again), diverged (it would diverge again).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from transformer_jax.errors import padded, terminal_width
from transformer_jax.files import remote
from transformer_jax.runs.folder import LAST_STEP
from transformer_jax.runs.metrics import duration, newest_metrics
from transformer_jax.runs.state import is_held
from transformer_jax.sweeps.run import LOCK, SweepRun

SECONDS_BETWEEN_LOOKS = 1.0
UNFINISHED = ("running", "measuring", "queued", "waiting", "stopped", "interrupted")
BAD = ("diverged", "failed")
STATES = ("finished", *UNFINISHED, *BAD)  # in the order of the summary


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """The state and progress of one run."""

    run: SweepRun
    state: str
    step: int = 0
    steps: int = 0
    loss: float | None = None  # of training; of validation when finished
    bleu: float | None = None  # of validation; of the first test set when finished
    score: float | None = None  # the same by the sweep's primary metric
    seconds_left: float | None = None
    error: str = ""
    host: str = ""  # where it was tried last
    age: float | None = None  # seconds since the last line of its metrics, or since it was started after that
    test_set: str | None = None  # the first one, when finished

    def to_json(self) -> dict[str, Any]:
        """As `status SWEEP --json` prints it."""
        facts = {name: value for name, value in vars(self).items() if name not in ("run", "age")}
        kind = "compared" if self.run.setting is None else "tuning"
        run = {"run": self.run.run_id, "variant": self.run.variant, "seed": self.run.seed, "kind": kind}
        commit = self.run.folder.versions().get("commit")
        return {**run, **facts, "seconds_since_step": self.age, "commit": commit}

    def of_job(self, is_in_queue: bool | None) -> RunStatus:
        """The status given whether the run's SLURM job is queued or running; None is unknown."""
        if is_in_queue is False and self.state in ("running", "measuring"):  # its node died, for example
            return dataclasses.replace(self, state="interrupted", error="its job is over")
        return self


def state_of(path: Path, attempt: Mapping[str, Any]) -> tuple[str, str]:
    """The state of an unfinished run, from its folder and its attempt.json, and the reason if there is one."""
    state, error = attempt.get("state"), str(attempt.get("error") or "").strip()
    if state in ("failed", "diverged"):
        return state, error or "no error was recorded"
    if state == "running":
        is_alive = remote.is_renewed(path.parents[2] / ".lock")  # the sweep's, if that is in a bucket
        if is_alive is None:  # on another machine the lock may not be visible
            is_alive = attempt.get("host") != socket.gethostname() or is_held(path / LOCK)
        if not is_alive:
            return "interrupted", "its process is gone"
    # Finished without a valid result: the sweep asks for more than it did then.
    return (state, error) if state in ("running", "stopped") else ("waiting", "")


def status_of(run: SweepRun) -> RunStatus:
    result, attempt = run.result() if run.is_finished() else None, run.attempt()
    host = attempt.get("host", "")
    if result is not None:
        steps, loss, bleu, score = result["steps"], result["valid"].get("loss"), None, None
        name, test = next(iter(result["tests"].items()), (None, None))  # a run that tunes has none
        if test is not None:
            bleu, score = test["bleu"], tested(test, run.primary)
        return RunStatus(run, "finished", steps, steps, loss, bleu, score, host=host, test_set=name)
    state, error = state_of(run.path, attempt)
    metric = "valid_perplexity" if run.primary == "perplexity" else run.primary
    age = None
    with contextlib.suppress(KeyError, TypeError, ValueError):
        age = time.time() - datetime.datetime.fromisoformat(attempt["started"]).timestamp()
    try:
        silent = time.time() - run.folder.metrics.stat().st_mtime
        latest, trained = latest_values(run.folder.metrics, ("step", "loss", "bleu", metric))
    except OSError:
        latest, trained = {}, []
    else:
        age = silent if age is None else min(age, silent)
    steps = run.folder.versions().get(LAST_STEP) or run.experiment.train.steps
    step = latest.get("step", 0)
    if state == "running" and step >= steps:
        state = "measuring"
    left = None
    if state == "running" and trained:  # at the pace of the last line
        last, before = trained[0], trained[1]["step"] if len(trained) > 1 else 0
        left = last["seconds"] / max(last["step"] - before, 1) * (steps - last["step"])
    loss, bleu, score = (latest.get(name) for name in ("loss", "bleu", metric))
    return RunStatus(run, state, step, steps, loss, bleu, score, left, error, host, age)


def latest_values(metrics: Path, names: Sequence[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The latest values of these names at the end of a metrics.jsonl, and its last two lines about training."""
    latest: dict[str, Any] = {}
    trained: list[dict[str, Any]] = []
    for line in newest_metrics(metrics):
        latest = {**{name: line[name] for name in names if name in line}, **latest}
        if len(trained) < 2 and line.get("seconds") is not None:
            trained.append(line)
        if len(trained) == 2 and latest.keys() >= {*names}:
            break
    return latest, trained


def tested(test: Mapping[str, Any], metric: str) -> float | None:
    """The score by a metric on a test set of a result.json."""
    if metric == "exact_match":
        counts = test.get("exact_match")
        return 100 * counts["right"] / counts["total"] if counts and counts["total"] else None
    scores = {**test, "perplexity": test.get("perplexity_per_token"), **test.get("custom_metrics", {})}
    return scores.get(metric)


class Progress:
    """The status of runs, and a line for each change of it."""

    def __init__(self, runs: Sequence[SweepRun], stream: IO[str] | None = None):
        self.runs, self.stream = runs, stream or sys.stdout
        # "waiting" or "queued", for runs that are still to start, whatever their last attempt came to.
        self.pending: dict[str, str] = {}
        self._finished: dict[str, RunStatus] = {}
        self._shown: dict[str, str] = {}
        self._next = 0.0

    def statuses(self) -> list[RunStatus]:
        return [self._finished.get(run.run_id) or self._status(run) for run in self.runs]

    def _status(self, run: SweepRun) -> RunStatus:
        status = status_of(run)
        if status.state == "finished":
            self._finished[run.run_id] = status  # which will not change
        elif status.state in ("running", "measuring"):
            self.pending.pop(run.run_id, None)  # how it ends is its state, before its process has ended too
        elif run.run_id in self.pending:
            return dataclasses.replace(status, state=self.pending[run.run_id], error="")
        return status

    def show_changes(self, now: bool = False) -> None:
        """Prints a line for each run whose state has changed; looks at most once a second."""
        if not now and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SECONDS_BETWEEN_LOOKS
        for status in self.statuses():
            if status.state != self._shown.get(status.run.run_id, "waiting"):
                facts = [*columns(status), status.error.partition("\n")[0]]
                self.print("  ".join([f"{datetime.datetime.now():%H:%M:%S}", *filter(None, facts)]))
            self._shown[status.run.run_id] = status.state

    def print(self, line: str) -> None:
        print(line, file=self.stream, flush=True)


def counts(statuses: Sequence[RunStatus]) -> str:
    """ "3 finished, 2 running, 4 waiting"."""
    counted = collections.Counter(status.state for status in statuses)
    return ", ".join(f"{counted[state]} {state}" for state in STATES if counted[state])


def columns(status: RunStatus) -> list[str]:
    """The name, state, step, loss, score and time left of a run."""
    of_loss, of_score = ("valid", status.test_set) if status.state == "finished" else ("train", "valid")
    return [
        status.run.name,
        status.state,
        f"{status.step:,}/{status.steps:,}" if status.step else "",
        "" if status.loss is None else f"{status.loss:.3f} {of_loss}",
        "" if status.score is None else f"{status.score:#.4g} {of_score}",
        duration(status.seconds_left) if status.seconds_left else "",
    ]


def table(statuses: Sequence[RunStatus]) -> str:
    """A line for each run, with its score by the sweep's primary metric."""
    metric = statuses[0].run.primary
    heading = ["run", "state", "step", "loss", "BLEU" if metric == "bleu" else metric, "left"]
    return aligned([heading, *map(columns, statuses)], texts=2)


def aligned(rows: Sequence[Sequence[str]], texts: int) -> str:
    """A table whose first columns, `texts` of them, are aligned left, and the others right."""
    widths = [max(map(terminal_width, column)) for column in zip(*rows, strict=True)]
    cells = [[padded(row[n], width, right=n >= texts) for n, width in enumerate(widths)] for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in cells)


def failure(status: RunStatus) -> str:
    """A run that failed or diverged, and its last error."""
    reason = status.error.replace("\n", "\n    ")
    return f"{status.run.name} {status.state}:\n    {reason}\n    its log: {status.run.log}"
