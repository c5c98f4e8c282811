"""Runs on this machine: processes of their own, each with its share of the cores or devices."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from transformer_jax.processes.signals import StopSignals
from transformer_jax.sweeps.folder import SweepFolder, SweepRun, now
from transformer_jax.sweeps.process import Outcome, WorkerProcess
from transformer_jax.sweeps.status import Display

SECONDS_BETWEEN_LOOKS = 0.2
# What processes that share a GPU may take of its memory, all together.
SHARED_MEMORY = 0.9


class Slot(NamedTuple):
    """What one process may use of the machine."""

    cores: tuple[int, ...] = ()  # none = all
    environment: Mapping[str, str] = MappingProxyType({})


def slots(jobs: int | None) -> list[Slot]:
    """The machine in `jobs` parts; by itself a part for each GPU, and without one a single part.

    Cores and GPUs are shared out evenly; with more processes than GPUs, several use one, and each takes its share of
    its memory.
    """
    devices = gpus()
    jobs = jobs or max(len(devices), 1)
    if devices:
        return [_gpu_slot(shared_out(devices, jobs, number), -(-jobs // len(devices))) for number in range(jobs)]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [Slot(tuple(shared_out(cores, jobs, number)) if cores else ()) for number in range(jobs)]


def shared_out(items: Sequence, parts: int, number: int) -> list:
    """The part of that number, of as many as evenly large ones; where there are too few items, one of them."""
    if parts > len(items):
        return [items[number % len(items)]]
    return list(items[number * len(items) // parts : (number + 1) * len(items) // parts])


def _gpu_slot(devices: Sequence[str], processes_on_each: int) -> Slot:
    environment = {"CUDA_VISIBLE_DEVICES": ",".join(devices)}
    if processes_on_each > 1 and "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ:
        environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{SHARED_MEMORY / processes_on_each:.3f}"
    return Slot((), environment)


def gpus() -> list[str]:
    """The NVIDIA devices that JAX here would use, found without loading it: this process must not take their memory."""
    plugins = ("jax_cuda13_plugin", "jax_cuda12_plugin")
    if os.environ.get("JAX_PLATFORMS") == "cpu" or not any(map(importlib.util.find_spec, plugins)):
        return []
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [device for device in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if device]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True)
    lines = listed.stdout.splitlines() if listed.returncode == 0 else []
    return [str(number) for number in range(sum(line.startswith("GPU ") for line in lines))]


class LocalJobs:
    """Works off a list of jobs, each some runs for one process; what fails does not touch the others."""

    def __init__(
        self,
        sweep: SweepFolder,
        slots: Sequence[Slot],
        display: Display,
        signals: StopSignals,
        retries: int = 0,
        fail_fast: bool = False,
    ):
        self.sweep, self.display, self.signals = sweep, display, signals
        self.retries, self.fail_fast = retries, fail_fast
        self.free = list(slots)
        self.busy: list[tuple[WorkerProcess, Slot]] = []
        self.failures: dict[str, int] = {}
        self.stopping = False

    def work_off(self, jobs: Sequence[Sequence[SweepRun]]) -> None:
        """Until all are done, or until there is a reason to stop; then every process has saved and ended."""
        waiting = [list(job) for job in jobs]
        self.display.ahead |= {run.address: "waiting" for job in waiting for run in job}
        try:
            while waiting or self.busy:
                if not self.stopping and (self.signals.asked or (self.fail_fast and self._given_up())):
                    self.stop()
                while waiting and self.free and not self.stopping:
                    waiting += self._start(waiting.pop(0))
                if self.stopping and not self.busy:
                    break
                waiting += self._ended()
                self.display.refresh()
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            for process, _ in self.busy:  # something broke here: the processes save and end by themselves
                process.ask_to_stop()
            self.display.refresh(now=True)

    def stop(self) -> None:
        """Has every process save and end."""
        self.stopping = True
        for process, _ in self.busy:
            process.ask_to_stop()

    def _given_up(self) -> bool:
        return any(times > self.retries for times in self.failures.values())

    def _start(self, job: list[SweepRun]) -> list[list[SweepRun]]:
        """Starts the job. Where one of several runs stands in the way of it, nothing starts: each run is then a job."""
        slot = self.free.pop(0)
        everywhere = os.sched_getaffinity(0) if slot.cores else set()
        try:
            if slot.cores:
                os.sched_setaffinity(0, slot.cores)  # of this thread, for the process it is about to make
            self.busy.append((WorkerProcess(self.sweep, job, slot.environment), slot))
        except OSError as error:
            self.free.append(slot)
            if len(job) > 1:
                return [[run] for run in job]
            self._note(job[0], Outcome("failed", f"{job[0].path}: no process could be started in it: {error}"))
        finally:
            if slot.cores:
                os.sched_setaffinity(0, everywhere)
        for run in job:
            self.display.ahead.pop(run.address, None)
        return []

    def _ended(self) -> list[list[SweepRun]]:
        """Takes note of the processes that have ended; what is to be tried again."""
        again = []
        for process, slot in list(self.busy):
            if not process.has_ended():
                continue
            self.busy.remove((process, slot))
            self.free.append(slot)
            for address, outcome in process.outcomes().items():
                run = next(run for run in process.runs if run.address == address)
                self._note(run, outcome)
                if outcome.state == "failed" and self.failures[address] <= self.retries and not self.stopping:
                    self.display.tell(f"{run.name}: failed, is tried again: {outcome.error.splitlines()[0]}")
                    self.display.ahead[address] = "waiting"
                    again.append([run])
        return again

    def _note(self, run: SweepRun, outcome: Outcome) -> None:
        self.display.outcomes[run.address] = outcome
        if outcome.state != "failed":
            return
        self.failures[run.address] = self.failures.get(run.address, 0) + 1
        if run.attempt().get("state") == "running":  # the process could not say so itself
            with contextlib.suppress(OSError):
                run.note_attempt(state="failed", error=outcome.error, ended=now())
