"""Runs jobs until all have ended, with retries. Where they run is the pool's business: `local.py` or `slurm.py`."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from transformer_jax.processes.signals import StopSignals
from transformer_jax.sweeps.process import Outcome
from transformer_jax.sweeps.run import SweepRun, now
from transformer_jax.sweeps.status import Display

# The runs that one process trains.
Job = Sequence[SweepRun]


class Pool(Protocol):
    """Where jobs run."""

    seconds_between_polls: float

    def start(self, jobs: Sequence[Job]) -> list[Job]:
        """Starts as many jobs as there is room for; returns those that have to wait."""

    def is_busy(self) -> bool:
        """Whether there is anything to wait for."""

    def ended(self) -> Iterable[tuple[SweepRun, Outcome]]:
        """The runs that have ended since the last call."""

    def stop(self) -> None:
        """Asks all processes to save and end."""


def run_jobs(
    pool: Pool, jobs: Sequence[Job], display: Display, signals: StopSignals, retries: int = 0, fail_fast: bool = False
) -> None:
    """Returns when all runs have ended; after a stop signal, or a failure with `fail_fast`, when all are saved."""
    waiting, failures, stopping = list(jobs), collections.Counter[str](), False
    display.pending |= {run.address: "waiting" for job in jobs for run in job}
    while waiting or pool.is_busy():
        if not stopping and (signals.asked or (fail_fast and any(count > retries for count in failures.values()))):
            stopping = True
            pool.stop()
        waiting = [] if stopping else pool.start(waiting)
        for run, outcome in pool.ended():
            display.outcomes[run.address] = outcome
            display.pending.pop(run.address, None)
            if outcome.state != "failed":
                continue
            failures[run.address] += 1
            if run.attempt().get("state") == "running":  # the process could not record the failure itself
                with contextlib.suppress(OSError):
                    run.record_attempt(state="failed", error=outcome.error, ended=now())
            if failures[run.address] <= retries and not stopping:
                display.print(f"{run.name}: failed, retrying: {outcome.error.splitlines()[0]}")
                display.pending[run.address] = "waiting"
                waiting.append([run])
        display.refresh()
        if waiting or pool.is_busy():
            time.sleep(pool.seconds_between_polls)
    display.refresh(now=True)
