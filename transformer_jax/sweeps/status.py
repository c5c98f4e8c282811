"""Where every run of a sweep stands, told by its files: a table that lives on a terminal, and plain lines elsewhere."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from transformer_jax.runs.metrics import duration, read_metrics
from transformer_jax.sweeps.folder import SweepRun
from transformer_jax.sweeps.process import Outcome

SECONDS_BETWEEN_TABLES = 1.0
# In the order in which they are told.
STATES = ("finished", "running", "measuring", "queued", "waiting", "stopped", "interrupted", "failed")


@dataclasses.dataclass(frozen=True)
class Standing:
    """Of one run, at a glance."""

    state: str
    step: int = 0
    steps: int = 0
    loss: float | None = None  # of training, and of validation once it is finished
    bleu: float | None = None  # of validation while it trains; of the first test once it is finished
    left: float | None = None  # seconds
    error: str = ""

    @property
    def share(self) -> float:
        return 1.0 if self.state == "finished" else min(self.step / max(self.steps, 1), 1.0)


def standing_of(run: SweepRun, outcome: Outcome | None = None) -> Standing:
    """Reads it off the run's files; `outcome` is what is known besides, and counts where files could not be written."""
    result, steps = run.result(), run.folder.last_step() or run.experiment.train.steps
    if result is not None:
        tested = [test["bleu"] for test in result["tests"].values()]
        valid = result["valid"].get("loss")
        return Standing("finished", result["steps"], result["steps"], valid, tested[0] if tested else None)
    attempt, lines = run.attempt(), _metrics(run)
    state, error = attempt.get("state", "waiting"), attempt.get("error") or ""
    if outcome is not None and outcome.state in ("failed", "stopped"):
        state, error = outcome.state, outcome.error
    if state == "finished":
        state = "waiting"  # as another definition had it: there is more to be measured now
    if state == "running" and attempt.get("host") == socket.gethostname() and not run.is_held():
        state = "interrupted"
    trained = [line for line in lines if "loss" in line]
    step = lines[-1]["step"] if lines else 0
    if state == "running" and step >= steps:
        state = "measuring"
    return Standing(
        state,
        step,
        steps,
        loss=trained[-1]["loss"] if trained else None,
        bleu=next((line["bleu"] for line in reversed(lines) if "bleu" in line), None),
        left=_seconds_left(trained, steps) if state == "running" else None,
        error=error,
    )


def _metrics(run: SweepRun) -> list[dict[str, Any]]:
    try:
        return read_metrics(run.folder.metrics)
    except OSError:
        return []


def _seconds_left(trained: Sequence[Mapping[str, Any]], steps: int) -> float | None:
    """At the pace of the last line; the first counts the compiling."""
    if not trained:
        return None
    last, before = trained[-1], trained[-2]["step"] if len(trained) > 1 else 0
    return last["seconds"] / max(last["step"] - before, 1) * (steps - last["step"])


class Display:
    """Shows where runs stand, once or while they run."""

    def __init__(self, runs: Sequence[SweepRun], stream: IO[str] | None = None):
        self.runs, self.stream = runs, stream or sys.stdout
        self.live = self.stream.isatty()
        self.outcomes: dict[str, Outcome] = {}
        # "waiting" or "queued", of runs that are still to be begun, however an earlier try of theirs went.
        self.ahead: dict[str, str] = {}
        self._finished: dict[str, Standing] = {}
        self._shown: dict[str, str] = {}
        self._drawn_lines, self._next, self._begin = 0, 0.0, time.monotonic()
        self._share_before: float | None = None

    def standings(self) -> dict[str, Standing]:
        return {run.address: self._finished.get(run.address) or self._standing(run) for run in self.runs}

    def _standing(self, run: SweepRun) -> Standing:
        standing = standing_of(run, self.outcomes.get(run.address))
        if standing.state == "finished":
            self._finished[run.address] = standing  # and will not change
        elif standing.state not in ("running", "measuring") and run.address in self.ahead:
            return dataclasses.replace(standing, state=self.ahead[run.address], error="")
        return standing

    def refresh(self, now: bool = False) -> None:
        """Brings what is shown up to date, about once a second."""
        if not now and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SECONDS_BETWEEN_TABLES
        standings = self.standings()
        if self.live:
            self._draw(standings)
        else:
            self._tell_changes(standings)

    def close(self) -> dict[str, Standing]:
        """The last word: the whole table, however long it is."""
        standings = self.standings()
        self.tell(f"\n{table(self.runs, standings)}" if not self.live else table(self.runs, standings))
        return standings

    def tell(self, line: str) -> None:
        """A line that stays."""
        self._erase()
        print(line, file=self.stream, flush=True)

    def _tell_changes(self, standings: Mapping[str, Standing]) -> None:
        for run in self.runs:
            standing = standings[run.address]
            before = self._shown.get(run.address, "waiting")
            if standing.state != before:
                at = datetime.datetime.now().strftime("%H:%M:%S")
                print(f"{at}  {run.name}: {described(standing)}", file=self.stream, flush=True)
            self._shown[run.address] = standing.state

    def _draw(self, standings: Mapping[str, Standing]) -> None:
        size = shutil.get_terminal_size()
        lines = table(self.runs, standings, most=max(size.lines - 3, 3)).splitlines()
        lines.append(self._summary(standings))
        self._erase()
        print("\n".join(line[: size.columns - 1] for line in lines), file=self.stream, flush=True)
        self._drawn_lines = len(lines)

    def _erase(self) -> None:
        if self._drawn_lines:
            self.stream.write(f"\x1b[{self._drawn_lines}F\x1b[J")
            self._drawn_lines = 0

    def _summary(self, standings: Mapping[str, Standing]) -> str:
        share = sum(standing.share for standing in standings.values()) / max(len(standings), 1)
        if self._share_before is None:
            self._share_before = share
        elapsed = time.monotonic() - self._begin
        made = share - self._share_before
        left = f"; about {duration(elapsed / made * (1 - share))} left" if made > 0.01 else ""
        return f"{counts(standings)}; {duration(elapsed)} so far{left}"


def counts(standings: Mapping[str, Standing]) -> str:
    """ "3 finished, 2 running, 4 waiting"."""
    counted = collections.Counter(standing.state for standing in standings.values())
    return ", ".join(f"{counted[state]} {state}" for state in STATES if counted[state])


def described(standing: Standing) -> str:
    """A run's state and what belongs to it."""
    parts = []
    if standing.state not in ("waiting", "queued", "failed") and standing.step and standing.state != "finished":
        parts.append(f"step {standing.step:,} of {standing.steps:,}")
    if standing.state == "finished" and standing.loss is not None:
        parts.append(f"valid loss {standing.loss:.3f}")
    if standing.state == "finished" and standing.bleu is not None:
        parts.append(f"BLEU {standing.bleu:.2f}")
    if standing.error:
        parts.append(standing.error.splitlines()[0] if standing.error else "")
    return standing.state + (": " + ", ".join(parts) if parts else "")


def table(runs: Sequence[SweepRun], standings: Mapping[str, Standing], most: int | None = None) -> str:
    """A line a run. Where there is room for `most` lines only, what is under way goes first."""
    shown = list(runs)
    if most is not None and len(shown) > most:
        rank = {
            state: number for number, state in enumerate(("running", "measuring", "failed", "interrupted", "stopped"))
        }
        shown = sorted(shown, key=lambda run: rank.get(standings[run.address].state, len(rank)))[:most]
        shown.sort(key=list(runs).index)
    width = max(len(run.name) for run in runs)
    lines = [f"{'run':<{width}}  {'state':<11} {'step':>15} {'loss':>7} {'BLEU':>6}  left"]
    for run in shown:
        at = standings[run.address]
        step = f"{at.step:,}/{at.steps:,}" if at.step else ""
        loss = "" if at.loss is None else f"{at.loss:.3f}"
        bleu = "" if at.bleu is None else f"{at.bleu:.2f}"
        left = "" if at.left is None else duration(at.left)
        lines.append(f"{run.name:<{width}}  {at.state:<11} {step:>15} {loss:>7} {bleu:>6}  {left}".rstrip())
    return "\n".join(lines)


def failure(run: SweepRun, standing: Standing) -> str:
    """That a run failed, with the last that was heard of it."""
    reason = standing.error.replace("\n", "\n    ")
    return f"{run.name} failed:\n    {reason}\n    its log: {run.log}"
