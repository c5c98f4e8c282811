"""Runs on a SLURM cluster, through submitit: an array of jobs that save and requeue when their time is up."""

from __future__ import annotations

import collections
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
from transformer_jax.extras import require
from transformer_jax.files.atomic import write_json
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.process import PYTHON, Outcome, WorkerProcess, last_lines
from transformer_jax.sweeps.run import Job, SweepRun, read_json
from transformer_jax.sweeps.status import Display

# So many answers of squeue without a job mean that it is over; and the seconds between them before jobs are submitted.
ABSENT, SECONDS_TO_SETTLE = 3, 5.0
# A job is requeued whenever its time is up; it ends when its runs do.
MAX_REQUEUES = 1000
# States of squeue in which a job does nothing more: those where it did not end by itself, and all.
BROKEN = {"F", "TO", "NF", "OOM", "BF", "DL"}
OVER = BROKEN | {"CD", "CA", "PR"}
# The options of sbatch; and those of submitit that are lines of the script, or set here.
SBATCH_OPTION = re.compile(r"[a-z][a-z0-9_-]*")
NO_OPTIONS = ("setup", "teardown", "srun_args", "use_srun", "map_count", "additional_parameters", "stderr_to_stdout")


class SlurmTask:
    """What a job does: it starts a worker, and has it save when SLURM signals that the time is up."""

    def __init__(self, sweep: Path, run_ids: Sequence[str]):
        self.sweep, self.run_ids = sweep, list(run_ids)

    def __call__(self) -> dict[str, Any]:
        with SweepFolder(self.sweep).in_original_directory() as sweep, ignored(signal.SIGUSR1, signal.SIGUSR2):
            definition = sweep.load()
            self.worker = WorkerProcess(sweep, [sweep.find(definition, run_id) for run_id in self.run_ids])
        return {run_id: outcome._asdict() for run_id, outcome in self.worker.outcomes().items()}

    def checkpoint(self) -> Any:
        """Called by submitit in the middle of `__call__`, before the job is requeued."""
        from submitit.helpers import DelayedSubmission

        self.worker.ask_to_stop()
        # WNOWAIT: `__call__`, which was interrupted, may be waiting for the process too.
        os.waitid(os.P_PID, self.worker.process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(SlurmTask(self.sweep, self.run_ids))


@contextlib.contextmanager
def ignored(*numbers: signal.Signals) -> Iterator[None]:
    """A process started inside ignores these signals, which SLURM sends to all processes of a job for submitit."""
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
        """Names and values are written into a shell script: each must stay on its line."""
        for name, value in self.parameters.items():
            if not SBATCH_OPTION.fullmatch(name) or name.replace("-", "_") in NO_OPTIONS:
                raise BadInput(f"--slurm-option={name!r}: is not the name of an option of sbatch")
            refuse_unprintable(f"--slurm-option={name}", value)

    def executor(self, folder: Path) -> Any:
        """The submitit executor; refused if there is no SLURM, or submitit does not accept the options."""
        refuse_unprintable("--workdir", str(folder))
        require("--slurm", "slurm")
        from submitit import SlurmExecutor
        from submitit.slurm.slurm import _get_default_parameters

        if shutil.which("sbatch") is None:
            raise BadInput("--slurm: there is no sbatch on this machine; without --slurm the sweep runs here")
        known: dict[str, Any] = {"time": self.minutes, "job_name": "transformer-jax", "stderr_to_stdout": True}
        if self.at_a_time is not None:
            known["array_parallelism"] = self.at_a_time
        others: dict[str, Any] = {}
        for name, text in self.parameters.items():
            value = int(text) if text.isdecimal() else text
            if (python_name := name.replace("-", "_")) in _get_default_parameters():
                known[python_name] = value
            else:
                others[name] = value
        # submitit starts `python -m submitit...` in the directory where the sweep was launched.
        executor = SlurmExecutor(folder, max_num_timeout=MAX_REQUEUES, python=shlex.join(PYTHON))
        executor.update_parameters(**known, **({"additional_parameters": others} if others else {}))
        return executor


def refuse_unprintable(what: str, text: str) -> None:
    """A comment of the script ends where its line does, quoted or not; the rest would be a command."""
    if not text.isprintable():
        raise BadInput(f"{what} = {text!r}: has characters that cannot be printed")


class SlurmPool:
    """The jobs of a sweep on a cluster: a `Pool`."""

    seconds_between_polls = 30.0

    def __init__(self, sweep: SweepFolder, slurm: Slurm, display: Display):
        self.sweep, self.slurm, self.display = sweep, slurm, display
        self.folder = sweep.path.absolute() / "slurm"
        self.runs = {run.run_id: run for run in display.runs}
        self.watch = JobWatch(sweep)
        self.watch.settle()
        self.stopping = False

    def _jobs(self) -> dict[str, list[str]]:
        """The jobs in flight that have runs of this launch."""
        jobs = self.watch.jobs
        return {job: run_ids for job, run_ids in jobs.items() if not self.runs.keys().isdisjoint(run_ids)}

    def start(self, jobs: Sequence[Job]) -> list[Job]:
        """Submits all that is not submitted yet, as one array."""
        submitted = {run_id for run_ids in self.watch.jobs.values() for run_id in run_ids}
        new = [run_ids for job in jobs if (run_ids := [r.run_id for r in job if r.run_id not in submitted])]
        if new:
            self.folder.mkdir(exist_ok=True)
            tasks = [SlurmTask(self.sweep.path.absolute(), run_ids) for run_ids in new]
            try:
                job_ids = [job.job_id for job in self.slurm.executor(self.folder).submit_array(tasks)]
            except Exception as error:  # of submitit's own types, with sbatch's message
                message = "\n  ".join(str(error).strip().splitlines())
                raise Failed(f"sbatch did not accept the jobs: {message}") from None
            self.watch.add(dict(zip(job_ids, new, strict=True)))
            for job, run_ids in zip(job_ids, new, strict=True):
                self.display.print(f"job {job}: {', '.join(run_ids)}")
        self.display.pending |= {run_id: "queued" for run_ids in self._jobs().values() for run_id in run_ids}
        return []

    def is_busy(self) -> bool:
        return bool(self._jobs()) and not self.slurm.detach

    def ended(self) -> Iterator[tuple[SweepRun, Outcome]]:
        if self.slurm.detach:
            return
        try:
            over = self.watch.look()
        except NoAnswer as problem:
            self.display.print_once(f"{problem}; asking again every {self.seconds_between_polls:.0f} s")
            return
        for job, (run_ids, state) in over.items():
            for run in (self.runs[run_id] for run_id in run_ids if run_id in self.runs):
                yield run, self._outcome(run, job, state in BROKEN)

    def _outcome(self, run: SweepRun, job: str, broke: bool) -> Outcome:
        """How a run went whose job is over; if the job broke, its worker could not report it."""
        if run.result() is not None:
            return Outcome("finished")
        attempt = run.attempt()
        state = attempt.get("state")
        if state in ("failed", "diverged") or (state == "stopped" and not broke):
            return Outcome(state, attempt.get("error") or "")
        error = f"job {job} ended without a result; its last lines:\n{last_lines(self.folder / f'{job}_0_log.out')}"
        return Outcome("stopped" if self.stopping else "failed", error)

    def stop(self) -> None:
        """SLURM asks the jobs to end, and kills them half a minute later; they save meanwhile."""
        self.stopping = True
        subprocess.run(["scancel", *self._jobs()], capture_output=True)


class NoAnswer(Failed):
    """squeue is not here, or does not answer now."""


class JobWatch:
    """The jobs of a sweep that are queued or running, in SWEEP/slurm/jobs.json, with the ids of their runs.

    A job is over if squeue says so, or if squeue, which forgets jobs minutes after their end, does not list it. The
    latter must be confirmed by its runs, which have ended, or by `ABSENT` answers: one answer may be incomplete.
    """

    def __init__(self, sweep: SweepFolder):
        self.sweep = sweep
        self.file = sweep.path / "slurm" / "jobs.json"
        self.jobs: dict[str, list[str]] = read_json(self.file) or {}
        self.absent = collections.Counter[str]()

    def add(self, jobs: Mapping[str, list[str]]) -> None:
        self.jobs |= jobs
        write_json(self.file, self.jobs)

    def look(self) -> dict[str, tuple[list[str], str]]:
        """Asks squeue; returns the jobs that have ended since, each with its runs and its state."""
        if not self.jobs:
            return {}
        states, over = job_states(), {}
        for job, run_ids in self.jobs.items():
            self.absent[job] = 0 if job in states else self.absent[job] + 1
            has_ended = self.absent[job] and all(map(self._has_ended, run_ids))
            if states.get(job) in OVER or has_ended or self.absent[job] >= ABSENT:
                over[job] = run_ids, states.get(job, "CD")
        self.jobs = {job: run_ids for job, run_ids in self.jobs.items() if job not in over}
        if over:
            write_json(self.file, self.jobs)
        return over

    def settle(self) -> None:
        """Looks until it is known of every job whether it is over."""
        self.look()
        while any(self.absent[job] for job in self.jobs):
            time.sleep(SECONDS_TO_SETTLE)
            self.look()

    def _has_ended(self, run_id: str) -> bool:
        attempt = read_json(self.sweep.path / "runs" / run_id / "attempt.json") or {}
        return attempt.get("state") in ("finished", "failed", "diverged", "stopped")


def job_states() -> dict[str, str]:
    """The states of the user's jobs, in squeue's abbreviations; it forgets a job minutes after its end."""
    command = ["squeue", "--array", "--states=all", "--format=%i %t", "--user", getpass.getuser()]
    try:
        answer = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise NoAnswer(f"squeue cannot be run here: {error.strerror}") from None
    header, *lines = answer.stdout.splitlines() or [""]
    if answer.returncode != 0 or not header.startswith("JOBID"):
        reason = answer.stderr.strip().partition("\n")[0] or "its answer is empty"
        raise NoAnswer(f"squeue does not answer: {reason}")
    return dict(line.split() for line in lines)


def in_queue(sweep: SweepFolder) -> dict[str, bool]:
    """Of each run that was submitted, whether its job is queued or running."""
    jobs = read_json(sweep.path / "slurm" / "jobs.json") or {}
    states = job_states() if jobs else {}
    return {run_id: states.get(job, "CD") not in OVER for job, run_ids in jobs.items() for run_id in run_ids}
