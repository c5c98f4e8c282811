"""Runs on a SLURM cluster, through submitit: an array of jobs that save and requeue when their time is up."""

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

    def __init__(self, sweep: Path, addresses: Sequence[str]):
        self.sweep, self.addresses = sweep, list(addresses)

    def __call__(self) -> dict[str, Any]:
        with SweepFolder(self.sweep).in_original_directory() as sweep, ignored(signal.SIGUSR1, signal.SIGUSR2):
            definition = sweep.load()
            self.worker = WorkerProcess(sweep, [sweep.find(definition, address) for address in self.addresses])
        return {address: outcome._asdict() for address, outcome in self.worker.outcomes().items()}

    def checkpoint(self) -> Any:
        """Called by submitit in the middle of `__call__`, before the job is requeued."""
        from submitit.helpers import DelayedSubmission

        self.worker.ask_to_stop()
        # WNOWAIT: `__call__`, which was interrupted, may be waiting for the process too.
        os.waitid(os.P_PID, self.worker.process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(SlurmTask(self.sweep, self.addresses))


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
    """The jobs of a sweep on a cluster."""

    seconds_between_polls = 2.0

    def __init__(self, sweep: SweepFolder, slurm: Slurm, display: Display):
        self.sweep, self.slurm, self.display = sweep, slurm, display
        self.folder = sweep.path.absolute() / "slurm"
        self.runs = {run.address: run for run in display.runs}
        self.jobs = self._of_these_runs(in_flight(sweep))
        self.stopping = False

    def _of_these_runs(self, jobs: Mapping[str, list[str]]) -> dict[str, list[str]]:
        return {job: addresses for job, addresses in jobs.items() if not self.runs.keys().isdisjoint(addresses)}

    def start(self, jobs: Sequence[Job]) -> list[Job]:
        """Submits all that is not submitted yet, as one array."""
        submitted = {address for addresses in self.jobs.values() for address in addresses}
        new = [addresses for job in jobs if (addresses := [r.address for r in job if r.address not in submitted])]
        if new:
            self.folder.mkdir(exist_ok=True)
            tasks = [SlurmTask(self.sweep.path.absolute(), addresses) for addresses in new]
            try:
                ids = [job.job_id for job in self.slurm.executor(self.folder).submit_array(tasks)]
            except Exception as error:  # of submitit's own types, with sbatch's message
                raise Failed(f"sbatch did not accept the jobs: {str(error).strip()}") from None
            added = dict(zip(ids, new, strict=True))
            write_json(self.folder / "jobs.json", {**in_flight(self.sweep), **added})
            for job, addresses in added.items():
                self.display.print(f"job {job}: {', '.join(addresses)}")
            self.jobs |= added
        self.display.pending |= {address: "queued" for addresses in self.jobs.values() for address in addresses}
        return []

    def is_busy(self) -> bool:
        return bool(self.jobs) and not self.slurm.detach

    def ended(self) -> Iterator[tuple[SweepRun, Outcome]]:
        if self.slurm.detach:
            return
        known = with_states(self.sweep)
        alive = {job: addresses for job, (addresses, state) in known.items() if state not in OVER}
        self.jobs = self._of_these_runs(alive)
        for job in known.keys() - alive.keys():
            addresses, state = known[job]
            for run in (self.runs[address] for address in addresses if address in self.runs):
                yield run, self._outcome(run, job, state in BROKEN)
        if known:
            write_json(self.folder / "jobs.json", alive)

    def _outcome(self, run: SweepRun, job: str, broke: bool) -> Outcome:
        """How a run went whose job is over; if the job broke, its worker could not report it."""
        if run.result() is not None:
            return Outcome("finished")
        attempt = run.attempt()
        state = attempt.get("state")
        if state == "failed" or (state == "stopped" and not broke):
            return Outcome(state, attempt.get("error") or "")
        error = f"job {job} ended without a result; its last lines:\n{last_lines(self.folder / f'{job}_0_log.out')}"
        return Outcome("stopped" if self.stopping else "failed", error)

    def stop(self) -> None:
        """SLURM asks the jobs to end, and kills them half a minute later; they save meanwhile."""
        self.stopping = True
        subprocess.run(["scancel", *self.jobs], capture_output=True)


def in_flight(sweep: SweepFolder) -> dict[str, list[str]]:
    """The jobs of a sweep that are queued or running, with the addresses of their runs."""
    return {job: addresses for job, (addresses, state) in with_states(sweep).items() if state not in OVER}


def with_states(sweep: SweepFolder) -> dict[str, tuple[list[str], str]]:
    """The jobs of a sweep, with the addresses of their runs and their states; one that squeue has forgotten ended."""
    jobs = read_json(sweep.path / "slurm" / "jobs.json") or {}
    states = job_states() if jobs else {}
    return {job: (addresses, states.get(job, "CD")) for job, addresses in jobs.items()}


def job_states() -> dict[str, str]:
    """The states of the user's jobs, in squeue's abbreviations; it forgets a job minutes after its end."""
    command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i %t", "--user", getpass.getuser()]
    listed = subprocess.run(command, capture_output=True, text=True)
    if listed.returncode != 0:
        raise Failed(f"squeue does not answer: {listed.stderr.strip()}")
    return dict(line.split() for line in listed.stdout.splitlines())
