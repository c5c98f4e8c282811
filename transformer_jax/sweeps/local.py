"""Runs on this machine: worker processes, each with its share of the cores or GPUs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.state import Job, Outcome, SweepRun, outcome_of

# Without -P, `python -m` imports from the current directory first: a copy of the package that lies there, or a file
# called random.py, would be run in place of what is installed.
PYTHON = (sys.executable, "-P")
# Lines of the log that are shown if a process ends without reporting why.
LAST_LINES = 8
# The part of a GPU's memory that the processes sharing it may use in all.
SHARED_MEMORY = 0.9


class WorkerProcess:
    """A process that trains some runs, as its launcher sees it. Closing its stdin asks it to stop."""

    def __init__(self, sweep: SweepFolder, runs: Sequence[SweepRun], environment: Mapping[str, str] | None = None):
        self.runs = tuple(runs)
        first = runs[0]
        first.path.mkdir(parents=True, exist_ok=True)
        for run in runs[1:]:
            run.path.mkdir(parents=True, exist_ok=True)
            run.log.write_text(f"trained together with {first.name}: see {os.path.relpath(first.log, run.path)}\n")
        run_ids = [run.run_id for run in runs]
        with open(first.log, "ab") as log:
            self.process = subprocess.Popen(
                [*PYTHON, "-m", "transformer_jax.sweeps.worker", "--until-stdin-ends", sweep.path, *run_ids],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
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

    def outcomes(self) -> list[Outcome]:
        """The outcome of each run; waits for the end."""
        status = self.process.wait()
        self.ask_to_stop()  # closes the pipe
        if status == -signal.SIGTERM:  # asked to stop before it had a handler for the signal
            unrecorded = Outcome("stopped")
        else:
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            unrecorded = Outcome("failed", f"the process {how}; its last lines:\n{last_lines(self.runs[0].log)}")
        return [
            # An older attempt tells nothing of a process that ended before it could begin.
            outcome_of(run, unrecorded) if run.attempt().get("pid") == self.process.pid else unrecorded
            for run in self.runs
        ]


def last_lines(log: Path) -> str:
    lines = log.read_text(errors="replace").rstrip().splitlines() if log.is_file() else ["(no log)"]
    return "\n".join(lines[-LAST_LINES:])


class Slot(NamedTuple):
    """What one process may use of the machine."""

    cores: tuple[int, ...] = ()  # empty = all
    environment: Mapping[str, str] = MappingProxyType({})


def slots(jobs: int | None, cores_of_a_run: int | None = None) -> list[Slot]:
    """The machine in `jobs` shares; by default one for each GPU, or a single one without GPUs.

    GPUs are divided evenly; with more processes than GPUs, several share one, and its memory. All processes get the
    same number of cores, on which the last digits of results depend: `cores_of_a_run` if it is given, and they share
    cores if there are too few.
    """
    devices = gpus()
    jobs = jobs or max(len(devices), 1)
    if devices:
        return [_gpu_slot(devices, jobs, number) for number in range(jobs)]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not cores:
        return [Slot() for _ in range(jobs)]
    each = min(cores_of_a_run or max(len(cores) // jobs, 1), len(cores))
    return [Slot(tuple(cores[(job * each + n) % len(cores)] for n in range(each))) for job in range(jobs)]


def _gpu_slot(devices: Sequence[str], jobs: int, number: int) -> Slot:
    count = len(devices)
    if jobs <= count:
        own = devices[number * count // jobs : (number + 1) * count // jobs]
        return Slot((), {"CUDA_VISIBLE_DEVICES": ",".join(own)})
    fraction = f"{SHARED_MEMORY / -(-jobs // count):.3f}"
    memory = {"XLA_PYTHON_CLIENT_MEM_FRACTION": os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", fraction)}
    return Slot((), {"CUDA_VISIBLE_DEVICES": devices[number % count], **memory})


def gpus() -> list[str]:
    """The NVIDIA devices that JAX would use, found without JAX: this process must not take their memory."""
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


@contextlib.contextmanager
def pinned(slot: Slot) -> Iterator[None]:
    """Processes that are started inside have the cores of the slot."""
    if not slot.cores:
        yield
        return
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, slot.cores)  # of this thread; a process inherits it
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_cores)


class LocalPool:
    """Worker processes on this machine, one in each slot: a `Pool`."""

    seconds_between_polls = 0.2

    def __init__(self, sweep: SweepFolder, slots: Sequence[Slot]):
        self.sweep, self.free = sweep, list(slots)
        self.busy: list[tuple[WorkerProcess, Slot]] = []
        self.not_started: list[tuple[SweepRun, Outcome]] = []

    def start(self, jobs: Sequence[Job]) -> list[Job]:
        pending = list(jobs)
        while pending and self.free:
            job = pending.pop(0)
            try:
                with pinned(self.free[0]):
                    process = WorkerProcess(self.sweep, job, self.free[0].environment)
                self.busy.append((process, self.free.pop(0)))
            except OSError as error:
                if len(job) > 1:  # one run's folder stands in the way of the others
                    pending += [[run] for run in job]
                    continue
                error_text = f"{job[0].path}: no process could be started in it: {error}"
                self.not_started.append((job[0], Outcome("failed", error_text)))
        return pending

    def is_busy(self) -> bool:
        return bool(self.busy or self.not_started)

    def ended(self) -> Iterator[tuple[SweepRun, Outcome]]:
        yield from self.not_started
        self.not_started = []
        for process, slot in list(self.busy):
            if process.has_ended():
                self.busy.remove((process, slot))
                self.free.append(slot)
                yield from zip(process.runs, process.outcomes(), strict=True)

    def stop(self) -> None:
        for process, _ in self.busy:
            process.ask_to_stop()
