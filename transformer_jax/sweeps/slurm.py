"""Runs on a SLURM cluster, by way of submitit: an array of jobs that save and queue again when their time is up."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import BadInput, Failed
from transformer_jax.files.atomic import publish_json
from transformer_jax.processes.signals import StopSignals
from transformer_jax.sweeps.folder import SweepFolder, SweepRun, read_json
from transformer_jax.sweeps.process import PYTHON, Outcome, WorkerProcess, last_lines
from transformer_jax.sweeps.status import Display

SECONDS_BETWEEN_LOOKS = 2.0
# A job is queued again whenever its time is up; it ends when its runs do.
TIMES_QUEUED = 1000
# States of squeue in which a job will do nothing more; those in which it was not the job that ended it, and all.
BROKEN = {"F", "TO", "NF", "OOM", "BF", "DL"}
OVER = BROKEN | {"CD", "CA", "PR"}


# What sbatch's options look like; and submitit's own, which are lines of the script, or ours to set.
SBATCH_OPTION = re.compile(r"[a-z][a-z0-9_-]*")
NO_OPTIONS = ("setup", "teardown", "srun_args", "use_srun", "map_count", "additional_parameters", "stderr_to_stdout")


class SlurmTask:
    """What a job does: it starts a worker, and has it save when SLURM says that its time is up."""

    def __init__(self, sweep: Path, addresses: Sequence[str]):
        self.sweep, self.addresses = sweep, list(addresses)

    def __call__(self) -> dict[str, Any]:
        with SweepFolder(self.sweep).as_it_began() as sweep, unheard(signal.SIGUSR1, signal.SIGUSR2):
            definition = sweep.load()
            self.worker = WorkerProcess(sweep, [sweep.find(definition, address) for address in self.addresses])
        return {address: outcome._asdict() for address, outcome in self.worker.outcomes().items()}

    def checkpoint(self) -> Any:
        """Called by submitit in the midst of `__call__`, before the job is queued again."""
        from submitit.helpers import DelayedSubmission

        self.worker.ask_to_stop()
        # Without reaping it: `__call__`, which was interrupted, may be waiting for it too.
        os.waitid(os.P_PID, self.worker.process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(SlurmTask(self.sweep, self.addresses))


@contextlib.contextmanager
def unheard(*numbers: signal.Signals) -> Iterator[None]:
    """A process started inside never hears these: SLURM sends them to every process of a job, meaning submitit's."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclasses.dataclass(frozen=True)
class Slurm:
    """How jobs are submitted."""

    parameters: Mapping[str, str]  # of sbatch or submitit, by name
    minutes: int
    at_a_time: int | None = None  # jobs of the array
    detach: bool = False

    def __post_init__(self) -> None:
        """Names and values come to stand in a script that a shell runs: each in a line of its own, and in no other."""
        for name, value in self.parameters.items():
            if not SBATCH_OPTION.fullmatch(name) or name.replace("-", "_") in NO_OPTIONS:
                raise BadInput(f"--slurm-option={name!r}: is the name of no option of sbatch")
            refuse_line_ends(f"--slurm-option={name}", value)

    def executor(self, folder: Path) -> Any:
        """Refuses what submitit would not understand."""
        refuse_line_ends("--workdir", str(folder))
        try:
            from submitit import SlurmExecutor
            from submitit.slurm.slurm import _get_default_parameters
        except ImportError:
            raise BadInput("--slurm needs submitit: pip install 'transformer_jax[slurm]'") from None
        if shutil.which("sbatch") is None:
            raise BadInput("--slurm: there is no sbatch on this machine; leave --slurm out to run the sweep here")
        own: dict[str, Any] = {"time": self.minutes, "job_name": "transformer-jax", "stderr_to_stdout": True}
        if self.at_a_time is not None:
            own["array_parallelism"] = self.at_a_time
        others: dict[str, str] = {}
        for name, value in self.parameters.items():
            known = name.replace("-", "_") in _get_default_parameters()
            (own if known else others)[name.replace("-", "_") if known else name] = number_or_text(value)
        # submitit starts `python -m submitit...` in the directory where the sweep was launched.
        executor = SlurmExecutor(folder, max_num_timeout=TIMES_QUEUED, python=shlex.join(PYTHON))
        executor.update_parameters(**own, **({"additional_parameters": others} if others else {}))
        return executor


def refuse_line_ends(what: str, text: str) -> None:
    """A comment of the script ends where its line does, quoted or not; what followed would be a command."""
    if not text.isprintable():
        raise BadInput(f"{what} = {text!r}: has characters that cannot be printed")


def number_or_text(text: str) -> Any:
    return int(text) if text.isdecimal() else text


class SlurmJobs:
    """Works off a list of jobs on a cluster; the interface of `LocalJobs`."""

    def __init__(
        self,
        sweep: SweepFolder,
        slurm: Slurm,
        display: Display,
        signals: StopSignals,
        retries: int = 0,
        fail_fast: bool = False,
    ):
        self.sweep, self.slurm, self.display, self.signals = sweep, slurm, display, signals
        self.retries, self.fail_fast = retries, fail_fast
        self.folder = sweep.path.absolute() / "slurm"
        self.runs = {run.address: run for run in display.runs}
        self.failures: dict[str, int] = {}
        self._again: list[list[SweepRun]] = []
        self.stopping = False

    def work_off(self, jobs: Sequence[Sequence[SweepRun]]) -> None:
        """Until all are done, or until there is a reason to stop; with `detach`, until they are submitted."""
        there = in_flight(self.sweep)
        taken = {address for addresses in there.values() for address in addresses}
        self.display.ahead |= dict.fromkeys(taken & set(self.runs), "queued")
        new = [[run for run in job if run.address not in taken] for job in jobs]
        self._submit([job for job in new if job])
        while not self.slurm.detach and ((alive := self._look()) or self._again):
            if not self.stopping and (self.signals.asked or (self.fail_fast and self._given_up())):
                self.stopping, self._again = True, []
                scancel(list(alive))
            if not self.stopping and self._again:
                self._submit(self._again)
            self.display.refresh()
            time.sleep(SECONDS_BETWEEN_LOOKS)
        self.display.refresh(now=True)

    def _submit(self, jobs: Sequence[Sequence[SweepRun]]) -> None:
        """As one array."""
        self._again = []
        if not jobs:
            return
        self.folder.mkdir(exist_ok=True)
        tasks = [SlurmTask(self.sweep.path.absolute(), [run.address for run in job]) for job in jobs]
        try:
            submitted = self.slurm.executor(self.folder).submit_array(tasks)
        except Exception as error:  # submitit raises errors of its own kinds; sbatch's words are in them
            raise Failed(f"sbatch took no jobs: {str(error).strip()}") from None
        mine = {job.job_id: task.addresses for job, task in zip(submitted, tasks, strict=True)}
        publish_json(self.folder / "jobs.json", {**in_flight(self.sweep), **mine})
        for job, task in zip(submitted, tasks, strict=True):
            self.display.tell(f"job {job.job_id}: {', '.join(task.addresses)}")
            for address in task.addresses:
                self.display.ahead[address] = "queued"

    def _look(self) -> dict[str, list[str]]:
        """The jobs that are still at work, or waiting; notes how those went that no longer are."""
        known = read_json(self.folder / "jobs.json") or {}
        states = job_states() if known else {}
        alive = {job: addresses for job, addresses in known.items() if is_alive(states, job)}
        for job in known.keys() - alive.keys():
            for address in known[job]:
                if address in self.runs:
                    self._note(self.runs[address], job, broke=states.get(job) in BROKEN)
        if known:
            publish_json(self.folder / "jobs.json", alive)
        return {job: mine for job, mine in alive.items() if any(address in self.runs for address in mine)}

    def _note(self, run: SweepRun, job: str, broke: bool) -> None:
        """How a run went whose job is over; one that broke was not ended by its worker."""
        self.display.ahead.pop(run.address, None)
        attempt = run.attempt()
        state, error = attempt.get("state"), attempt.get("error") or ""
        if run.result() is not None:
            return
        if state not in ("failed", "stopped") or (state == "stopped" and broke):
            state = "stopped" if self.signals.asked else "failed"
            log = self.folder / f"{job}_0_log.out"
            error = f"job {job} ended without a result; its last lines:\n{last_lines(log)}"
        self.display.outcomes[run.address] = Outcome(state, error)
        if state == "failed":
            self.failures[run.address] = self.failures.get(run.address, 0) + 1
            if self.failures[run.address] <= self.retries and not self.stopping:
                self._again.append([run])

    def _given_up(self) -> bool:
        return any(times > self.retries for times in self.failures.values())


def in_flight(sweep: SweepFolder) -> dict[str, list[str]]:
    """The jobs of a sweep that SLURM still has, waiting or at work, with the addresses of their runs."""
    jobs = read_json(sweep.path / "slurm" / "jobs.json") or {}
    states = job_states() if jobs else {}
    return {job: addresses for job, addresses in jobs.items() if is_alive(states, job)}


def job_states() -> dict[str, str]:
    """Of the user's jobs by their number, in squeue's abbreviations; it forgets them minutes after their end."""
    command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i %t", "--user", getpass.getuser()]
    listed = subprocess.run(command, capture_output=True, text=True)
    if listed.returncode != 0:
        raise Failed(f"squeue does not answer: {listed.stderr.strip()}")
    return dict(line.split() for line in listed.stdout.splitlines())


def is_alive(states: Mapping[str, str], job: str) -> bool:
    return states.get(job, "CD") not in OVER


def scancel(jobs: Sequence[str]) -> None:
    """SLURM tells them to end, and kills them half a minute later; they save meanwhile."""
    subprocess.run(["scancel", *jobs], capture_output=True)
