"""The job script of docs/clusters on a real SLURM: two tasks find each other, and a job that is cut short goes on.

Skipped where no SLURM answers. One node on loopback is enough: packages slurm-wlm and munge, and SLURM_CONF. Preemption
needs a partition "low" that jobs of a partition "high" preempt (PreemptMode=REQUEUE).
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import training_runs
from tests.support.many_processes import train
from tests.support.places import ROOT

JOB = ROOT / "docs/clusters/train.sbatch"
# The first checkpoint is whole at step 150, when the jobs below are cut short.
OPTIONS = ("train.log_every=10", "train.steps=300", "train.checkpoint_every=100", "train.eval_every=100")


def answer(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def why_not():
    if shutil.which("sbatch") is None:
        return "there is no SLURM here (no sbatch)"
    asked = subprocess.run(["sinfo", "--noheader"], capture_output=True, text=True)
    return "" if asked.returncode == 0 else f"SLURM does not answer: {asked.stderr.strip()}"


REASON = why_not()
PREEMPTS = not REASON and {"low", "high"} <= set(answer("sinfo", "-h", "-o", "%R").split())
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(REASON), reason=REASON)]


class Submitted:
    """A job of two tasks, and what it has written."""

    def __init__(self, workdir, *flags):
        config, *_, cache = training_runs.command(workdir)[4:7]
        self.workdir, self.log = workdir, workdir.with_suffix(".out")
        options = [cache, *(f"--config.{option}" for option in OPTIONS)]
        size = ("--ntasks=2", "--cpus-per-task=1", f"--output={self.log}", *flags)
        env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "XLA_FLAGS": ""}
        arguments = [str(JOB), config.partition("=")[2], str(workdir), *options]
        submitted = subprocess.run(["sbatch", "--parsable", *size, *arguments], env=env, capture_output=True, text=True)
        assert submitted.returncode == 0, submitted.stderr
        self.number = submitted.stdout.strip()

    def output(self):
        return self.log.read_text() if self.log.is_file() else ""

    def state(self):
        return subprocess.run(["squeue", "-h", "-o", "%t", "-j", self.number], capture_output=True, text=True).stdout

    def wait_for(self, text, times=1, seconds=600):
        """Until the log says it so often."""
        end = time.monotonic() + seconds
        while self.output().count(text) < times:
            assert time.monotonic() < end, self.output()
            if self.state().strip() == "PD":  # queued again it would wait two minutes
                subprocess.run(["scontrol", "update", f"jobid={self.number}", "StartTime=now"], capture_output=True)
            time.sleep(0.3)


@pytest.fixture
def submit(tmp_path):
    jobs = []

    def submit(*flags):
        jobs.append(Submitted(tmp_path / "run", *flags))
        return jobs[-1]

    yield submit
    for job in jobs:
        subprocess.run(["scancel", job.number], capture_output=True)


def assert_went_on(job, tmp_path):
    """It is the run of two processes that nobody disturbed, to the bit."""
    job.wait_for("finished at step 300")
    assert "2 processes, 2 devices:" in job.output()
    assert "resuming from the checkpoint of step" in job.output()
    train(tmp_path / "undisturbed", 2, *OPTIONS)
    training_runs.assert_same_run(job.workdir, tmp_path / "undisturbed")


def test_two_tasks_save_when_the_time_is_up_and_go_on(submit, tmp_path):
    job = submit()
    job.wait_for("step     150")
    subprocess.run(["scancel", "--batch", "--signal=USR1", job.number], check=True)  # as SLURM does
    job.wait_for("stopped by SIGTERM at step")
    job.wait_for("queueing again")
    assert_went_on(job, tmp_path)


@pytest.mark.skipif(not PREEMPTS, reason="no partitions low and high")
def test_a_preempted_job_goes_on(submit, tmp_path):
    job = submit("--partition=low")
    job.wait_for("step     150")
    answer("sbatch", "--parsable", "--partition=high", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    job.wait_for("processes, 2 devices:", times=2)
    assert_went_on(job, tmp_path)
