"""Runs on this machine: worker processes, each with its share of the cores or GPUs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_jax.files.atomic import explained
from transformer_jax.files.paths import no_links
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.run import Job, SweepRun, now

# Without -P, `python -m` imports from the current directory first: a copy of the package that lies there, or a file
# called random.py, would be run in place of what is installed.
PYTHON = (sys.executable, "-P")
# Lines of the log that are shown if a process ends without reporting why.
LAST_LINES = 8
# The part of a GPU's memory that the processes sharing it may use in all.
SHARED_MEMORY = 0.9
# Where the driver of TPUs has an entry for each chip; and what libtpu must be told for each number of chips.
DEVICES = Path("/dev")
BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}


class WorkerProcess:
    """A process that trains some runs, as its launcher sees it. Closing its stdin asks it to stop."""

    def __init__(self, sweep: SweepFolder, runs: Sequence[SweepRun]):
        self.runs, first = tuple(runs), runs[0]
        with explained(sweep.path):
            for run in runs:
                run.path.mkdir(parents=True, exist_ok=True)
            for run in runs[1:]:
                place = os.path.relpath(first.log, run.path)
                with open(run.log, "ab", opener=no_links) as log:
                    log.write(f"trained together with {first.name}: see {place}\n".encode())
            with open(first.log, "ab", opener=no_links) as log:
                self.process = subprocess.Popen(
                    [*PYTHON, "-m", "transformer_jax.sweeps.worker", sweep.path, *(run.run_id for run in runs)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C reaches the launcher alone, which then asks its workers
                )

    def ask_to_stop(self) -> None:
        """Has it save and end. The same happens when this process dies, which closes the pipe."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def conclude(self) -> int:
        """Waits for the end, and records it for the runs for which the process could not; returns the exit status."""
        status = self.process.wait()
        self.ask_to_stop()  # closes the pipe
        state, error = "stopped", ""  # by SIGTERM before it had a handler for the signal
        if status != -signal.SIGTERM:
            names = {number.value: number.name for number in signal.Signals}  # real-time signals have none
            killed = f"was killed by {names.get(-status, f'signal {-status}')}"
            how = killed if status < 0 else f"ended with status {status}"
            state, error = "failed", f"the process {how}; its last lines:\n{last_lines(self.runs[0].log)}"
        for run in self.runs:
            attempt = run.attempt()
            # An older attempt tells nothing of a process that ended before it could begin.
            if attempt.get("pid") != self.process.pid or attempt.get("state") == "running":
                run.record_attempt(state=state, error=error, ended=now())
        return status


def last_lines(log: Path) -> str:
    lines = log.read_text(errors="replace").rstrip().splitlines() if log.is_file() else ["(no log)"]
    return "\n".join(lines[-LAST_LINES:])


class Slot(NamedTuple):
    """The share of the machine that one process may use."""

    cores: tuple[int, ...] = ()  # empty = all
    environment: Mapping[str, str] = {}


def slots(jobs: int | None) -> list[Slot]:
    """The machine in `jobs` shares; by default one for each GPU or TPU chip, or a single one without them.

    All get the same number of GPUs; with more processes than GPUs, several share one, and its memory. A TPU chip
    belongs to one process. On CPUs all processes get the same number of cores, on which the last digits of results
    depend, and share cores if there are too few.
    """
    if chips := tpu_chips():
        return _tpu_slots(chips, jobs or len(chips))
    devices = gpus()
    jobs = jobs or max(len(devices), 1)
    if devices:
        return [_gpu_slot(devices, jobs, number) for number in range(jobs)]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not cores:
        return [Slot()] * jobs
    each = max(len(cores) // jobs, 1)
    return [Slot(tuple(cores[(job * each + n) % len(cores)] for n in range(each))) for job in range(jobs)]


def _gpu_slot(devices: Sequence[str], jobs: int, number: int) -> Slot:
    count = len(devices)
    if jobs <= count:
        each = count // jobs
        own = devices[number * each : (number + 1) * each]
        return Slot((), {"CUDA_VISIBLE_DEVICES": ",".join(own)})
    fraction = f"{SHARED_MEMORY / -(-jobs // count):.3f}"
    memory = {"XLA_PYTHON_CLIENT_MEM_FRACTION": os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", fraction)}
    return Slot((), {"CUDA_VISIBLE_DEVICES": devices[number % count], **memory})


def _tpu_slots(chips: Sequence[str], jobs: int) -> list[Slot]:
    """A slot for each of the jobs, at most one per chip, with equally many chips each; libtpu takes 1, 2, 4 or 8."""
    each = max(count for count in BOUNDS if count <= max(len(chips) // jobs, 1))
    bounds = {"TPU_CHIPS_PER_PROCESS_BOUNDS": BOUNDS[each], "TPU_PROCESS_BOUNDS": "1,1,1"}
    firsts = range(0, min(jobs, len(chips)) * each, each)
    return [Slot((), {"TPU_VISIBLE_CHIPS": ",".join(chips[first : first + each]), **bounds}) for first in firsts]


def tpu_chips() -> list[str]:
    """The TPU chips that JAX would use, found without JAX: only one process can open a chip."""
    if os.environ.get("JAX_PLATFORMS", "tpu") != "tpu" or importlib.util.find_spec("libtpu") is None:
        return []
    if "TPU_VISIBLE_CHIPS" in os.environ:
        return [chip for chip in os.environ["TPU_VISIBLE_CHIPS"].split(",") if chip]
    entries = [*DEVICES.glob("accel[0-9]*"), *DEVICES.glob("vfio/[0-9]*")]
    return [str(number) for number in range(len(entries))]


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
def confined(slot: Slot) -> Iterator[None]:
    """This thread, and the processes that it starts inside, have only what the slot has."""
    cores: Iterable[int] = ()
    before = {name: os.environ.get(name) for name in slot.environment}
    os.environ.update(slot.environment)
    if slot.cores:
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, slot.cores)
    try:
        yield
    finally:
        if slot.cores:
            os.sched_setaffinity(0, cores)
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})


class LocalPool:
    """Worker processes on this machine, one in each slot."""

    seconds_between_polls = 0.2

    def __init__(self, sweep: SweepFolder, slots: Sequence[Slot]):
        self.sweep, self.free = sweep, list(slots)
        self.busy: list[tuple[WorkerProcess, Slot]] = []

    def start(self, jobs: Sequence[Job]) -> list[Job]:
        pending = list(jobs)
        while pending and self.free:
            slot = self.free.pop(0)
            with confined(slot):
                self.busy.append((WorkerProcess(self.sweep, pending.pop(0)), slot))
        return pending

    def is_busy(self) -> bool:
        return bool(self.busy)

    def ended(self) -> Iterator[SweepRun]:
        for process, slot in list(self.busy):
            if process.process.poll() is not None:
                self.busy.remove((process, slot))
                self.free.append(slot)
                self.sweep.refuse_removed()
                process.conclude()
                yield from process.runs

    def stop(self) -> None:
        for process, _ in self.busy:
            process.ask_to_stop()
