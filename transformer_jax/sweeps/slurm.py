"""Runs on a SLURM cluster, through submitit: an array of jobs that save and requeue when their time is up."""

from __future__ import annotations

import collections
import dataclasses
import getpass
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from transformer_jax.errors import EXIT_UNFINISHED, BadInput, Failed
from transformer_jax.extras import require
from transformer_jax.files.atomic import write_json
from transformer_jax.files.progress import tell
from transformer_jax.files.record import read_if_sound
from transformer_jax.sweeps import shielded
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.local import PYTHON, WorkerProcess, last_lines
from transformer_jax.sweeps.run import Attempt, Job, SweepRun, now
from transformer_jax.sweeps.status import Progress

# A job is over after this number of answers of squeue without it; the seconds between them before jobs are submitted.
ABSENT, SECONDS_TO_SETTLE = 3, 5.0
# Seconds before each further attempt to queue a job again, which is killed soon; the last has none after it.
SECONDS_TO_REQUEUE = (1.0, 3.0, 6.0, 0.0)
# States of squeue in which a job does nothing more: those where it did not end by itself, and all.
BROKEN = {"F", "TO", "NF", "OOM", "BF", "DL"}
OVER = BROKEN | {"CD", "CA", "PR"}
# A job that is not cancelled: it runs, and perhaps SLURM is signaling it.
RUNNING = {"R", "SI"}
# The states of runs on which a worker does not work any more.
ENDED = {"finished", "failed", "diverged"}  # a stopped one may be queued again
SBATCH_OPTION = re.compile(r"[a-z][a-z0-9_-]*")


class SlurmTask:
    """A job: starts a worker, has it save when SLURM signals, and queues the job again if runs are left then."""

    def __init__(self, sweep: Path, run_ids: Sequence[str]):
        self.sweep, self.run_ids = sweep, list(run_ids)
        self.worker: WorkerProcess | None = None

    def __call__(self) -> None:
        """Ends with the exit status of the worker. submitit starts it with the signals blocked (shielded.py)."""
        if signal.sigpending():  # SLURM has signaled already
            requeue()
            sys.exit(EXIT_UNFINISHED)
        with SweepFolder(self.sweep).in_original_directory() as sweep:
            runs = sweep.by_id(sweep.load())
            self.worker = WorkerProcess(sweep, [runs[run_id] for run_id in self.run_ids])
        for number in shielded.SIGNALS:
            signal.signal(number, self._stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, shielded.SIGNALS)
        status = self.worker.conclude()
        if any(run.attempt().get("state") == "stopped" for run in self.worker.runs):
            requeue()
        sys.exit(status if status >= 0 else 128 - status)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        assert self.worker is not None
        self.worker.ask_to_stop()


def requeue() -> None:
    """Queues the job of this process again, unless it was cancelled. SLURM then ends this process."""
    number = os.environ["SLURM_JOB_ID"]
    if "SLURM_ARRAY_TASK_ID" in os.environ:
        number = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    for seconds in SECONDS_TO_REQUEUE:  # many jobs may reach their limit at once
        try:
            if job_states("--jobs", number).get(number) in RUNNING:
                tell(f"job {number} is queued again")
                subprocess.run(["scontrol", "requeue", number], check=True)
            return
        except (NoAnswer, subprocess.CalledProcessError):
            if not seconds:
                raise
            time.sleep(seconds)


@dataclasses.dataclass(frozen=True)
class Slurm:
    """How jobs are submitted."""

    parameters: Mapping[str, str]  # of sbatch, by name
    minutes: int
    at_a_time: int | None = None  # jobs of the array
    detach: bool = False

    def executor(self, folder: Path) -> Any:
        """The submitit executor; raises an error without SLURM."""
        for name, value in {"workdir": str(folder), **self.parameters}.items():
            if not SBATCH_OPTION.fullmatch(name) or not value.isprintable():  # they are lines of a shell script
                raise BadInput(f"--slurm: {f'{name}={value}'!r}: must be an option of sbatch, on one line")
        require("--slurm", "slurm")
        if shutil.which("sbatch") is None:
            raise BadInput("--slurm: there is no sbatch on this machine; without --slurm the sweep runs here")
        from submitit import SlurmExecutor

        # submitit starts `python -u -m submitit...` in the directory where the sweep was launched.
        executor = SlurmExecutor(folder, python=shlex.join([*PYTHON, shielded.__file__]))
        executor.update_parameters(
            time=self.minutes,
            job_name="transformer-jax",
            stderr_to_stdout=True,
            additional_parameters={name.replace("-", "_"): value or True for name, value in self.parameters.items()},
            **({} if self.at_a_time is None else {"array_parallelism": self.at_a_time}),
        )
        return executor


class NoAnswer(Failed):
    """squeue is not here, or does not answer now."""


class SlurmPool:
    """The jobs of a sweep on a cluster. SWEEP/slurm/jobs.json has those that are queued or running."""

    seconds_between_polls = 30.0

    def __init__(self, sweep: SweepFolder, slurm: Slurm, progress: Progress):
        self.sweep, self.slurm, self.progress = sweep, slurm, progress
        self.folder = sweep.path.absolute() / "slurm"
        self.runs = {run.run_id: run for run in progress.runs}
        self.jobs = recorded_jobs(sweep)
        self.absent = collections.Counter[str]()  # answers of squeue without a job, one after the other
        self.before: dict[str, dict[str, Any]] = {}  # what earlier jobs have recorded, by the id of the run
        self.stopping = False
        self.last_problem = ""
        self._look()
        while any(self.absent[job] for job in self.jobs):  # it is not known yet whether these are over
            time.sleep(SECONDS_TO_SETTLE)
            self._look()

    def _own_jobs(self) -> dict[str, list[str]]:
        """The jobs in flight that have runs of this launch."""
        return {job: run_ids for job, run_ids in self.jobs.items() if not self.runs.keys().isdisjoint(run_ids)}

    def start(self, jobs: Sequence[Job]) -> list[Job]:
        """Submits all that is not submitted yet, as an array."""
        submitted = {run_id for run_ids in self.jobs.values() for run_id in run_ids}
        new = [run_ids for job in jobs if (run_ids := [r.run_id for r in job if r.run_id not in submitted])]
        if new:
            self._submit(new)
        self.progress.pending |= {run_id: "queued" for run_ids in self._own_jobs().values() for run_id in run_ids}
        return []

    def _submit(self, array: Sequence[list[str]]) -> None:
        """Submits an array with a job for each list of runs."""
        self.folder.mkdir(exist_ok=True)
        tasks = [SlurmTask(self.sweep.path.absolute(), run_ids) for run_ids in array]
        self.before |= {run_id: self.runs[run_id].attempt() for run_ids in array for run_id in run_ids}
        try:
            job_ids = [job.job_id for job in self.slurm.executor(self.folder).submit_array(tasks)]
        except Exception as error:  # of submitit's own types, with sbatch's message
            raise Failed(f"sbatch did not accept the jobs: {str(error).strip()}") from None
        self._record(self.jobs | dict(zip(job_ids, array, strict=True)))
        for job_id, run_ids in zip(job_ids, array, strict=True):
            self.progress.print(f"job {job_id}: {', '.join(run_ids)}")

    def is_busy(self) -> bool:
        return bool(self._own_jobs()) and not self.slurm.detach

    def ended(self) -> Iterator[SweepRun]:
        if self.slurm.detach:
            return
        try:
            over = self._look()
        except NoAnswer as problem:
            if str(problem) != self.last_problem:
                self.progress.print(f"{problem}; asking again every {self.seconds_between_polls:.0f} s")
            self.last_problem = str(problem)
            return
        for job, (run_ids, state) in over.items():
            for run in (self.runs[run_id] for run_id in run_ids if run_id in self.runs):
                recorded = self._recorded(run.run_id)
                told = recorded in ("failed", "diverged") or (recorded == "stopped" and state not in BROKEN)
                if not told and run.result() is None:  # its worker could not record how it ended
                    log = last_lines(self.folder / f"{job}_0_log.out")
                    error = f"job {job} ended without a result; its last lines:\n{log}"
                    is_stopped = self.stopping or state == "CA"
                    run.record_attempt(state="stopped" if is_stopped else "failed", error=error, ended=now())
                if state == "CA":
                    run.record_attempt(asked=True)
                yield run

    def stop(self) -> None:
        """SLURM asks the jobs to end, and kills them half a minute later; they save meanwhile."""
        self.stopping = True
        subprocess.run(["scancel", *self._own_jobs()], capture_output=True)

    def _look(self) -> dict[str, tuple[list[str], str]]:
        """Asks squeue; returns the jobs that have ended since, each with its runs and its state.

        A job is over if squeue says so, or if squeue, which forgets jobs minutes after their end, does not list it.
        The latter must be confirmed by its runs, which have ended, or by `ABSENT` answers: one may be incomplete.
        """
        states, over = job_states() if self.jobs else {}, {}
        for job, run_ids in self.jobs.items():
            self.absent[job] = 0 if job in states else self.absent[job] + 1
            has_ended = self.absent[job] and all(self._recorded(run_id) in ENDED for run_id in run_ids)
            if states.get(job) in OVER or has_ended or self.absent[job] >= ABSENT:
                over[job] = run_ids, states.get(job, "CD")
        if over:
            self._record({job: run_ids for job, run_ids in self.jobs.items() if job not in over})
        return over

    def _recorded(self, run_id: str) -> str | None:
        """The state that the last job of a run has recorded, if it has."""
        attempt = read_if_sound(self.sweep.path / "runs" / run_id / "attempt.json", Attempt) or {}
        return None if attempt == self.before.get(run_id) else attempt.get("state")

    def _record(self, jobs: dict[str, list[str]]) -> None:
        self.jobs = jobs
        write_json(self.folder / "jobs.json", jobs)


def recorded_jobs(sweep: SweepFolder) -> dict[str, list[str]]:
    """The jobs that were submitted and not seen to end, with the ids of their runs."""
    return read_if_sound(sweep.path / "slurm" / "jobs.json", dict[str, list[str]]) or {}


def job_states(*which: str) -> dict[str, str]:
    """The states of the user's jobs, in squeue's abbreviations; it forgets a job minutes after its end."""
    of_user = ("--user", getpass.getuser())
    command = ["squeue", "--array", "--states=all", "--format=%i %t", *(which or of_user)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        _header, *lines = filter(None, map(str.split, answer.stdout.splitlines()))  # ValueError: it said nothing at all
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise NoAnswer(f"squeue does not answer: {getattr(error, 'stderr', '') or error}") from None
    return {words[0]: words[1] for words in lines if len(words) == 2}


def in_queue(sweep: SweepFolder) -> dict[str, bool]:
    """Whether the job of each submitted run is queued or running."""
    jobs = recorded_jobs(sweep)
    states = job_states() if jobs else {}
    return {run_id: states.get(job, "CD") not in OVER for job, run_ids in jobs.items() for run_id in run_ids}
