"""A real SLURM: sweeps (an array, a requeue, coming back), and the job script of docs/clusters.

Skipped where none answers. One node on loopback is enough: packages slurm-wlm and munge, submitit, and SLURM_CONF.
Preemption needs partitions "low" (PreemptMode=REQUEUE) and "cancelled" (CANCEL), both with GraceTime=60, and a
partition "high" whose jobs preempt those (PreemptType=preempt/partition_prio).
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import sweep_runs, training_runs
from tests.support.many_processes import train
from tests.support.places import ROOT
from tests.support.sweep_runs import experiment_file


def answer(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def why_not() -> str:
    if shutil.which("sbatch") is None:
        return "there is no SLURM here (no sbatch)"
    return "" if answer("sinfo", "--noheader") else "SLURM does not answer"


REASON = why_not()
PREEMPTS = not REASON and {"low", "cancelled", "high"} <= set(answer("sinfo", "-h", "-o", "%R").split())
with_preemption = pytest.mark.skipif(not PREEMPTS, reason="no partitions low, cancelled and high")
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
of_sweeps = pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")
ENVIRONMENT = training_runs.environment() | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def until(condition, seconds=600):
    """Waits for it."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.3)
    return found


def preempt():
    """Submits a job that needs the whole node."""
    answer("sbatch", "--parsable", "--partition=high", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")


def facts(job):
    """What SLURM says of a job: its state, exit status and restarts."""
    shown = answer("scontrol", "show", "job", job)
    return {name: value for name, _, value in (word.partition("=") for word in shown.split())}


def start_again(job):
    """By itself a job that was requeued waits two minutes."""
    if answer("squeue", "-h", "-r", "-o", "%t", "-j", job) == "PD":
        answer("scontrol", "update", f"jobid={job}", "StartTime=now")


# Sweeps.

SLURM = ("--workdir=sweep", "--slurm", "--time-limit=10", "--slurm-option=comment=test")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("slurm")
    experiment_file(place, "Variant('h = 4', {'model.num_heads': 4, 'train.steps': 12})")
    return place


LONG = "--config.train.steps=2500"
RARE = ("--config.train.checkpoint_every=900", "--config.train.eval_every=900")


def launch(place, *arguments):
    command = sweep_runs.command(place, *SLURM, LONG, *RARE, *arguments)
    return subprocess.Popen(
        command, cwd=place, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@of_sweeps
def test_an_array_and_a_requeue_in_the_middle(place):
    launcher = launch(place, "--jobs=2")
    jobs = json.loads(until(lambda: (file := place / "sweep/slurm/jobs.json").is_file() and file.read_text()))
    assert sorted(jobs.values()) == [["base/seed-0"], ["h-=-4/seed-0"]]
    (base,) = (job for job, run_ids in jobs.items() if run_ids == ["base/seed-0"])
    assert base.endswith("_0")  # of an array
    metrics = place / "sweep/runs/base/seed-0/metrics.jsonl"
    until(lambda: metrics.is_file() and metrics.read_text())
    subprocess.run(["scancel", "--signal=USR2", base], check=True)  # as SLURM does when the time is nearly up
    until(lambda: answer("squeue", "-h", "-r", "-t", "all", "-o", "%t", "-j", base) == "PD")
    subprocess.run(["scontrol", "update", f"jobid={base}", "StartTime=now"], check=True)  # by itself it waits 2 minutes
    out, err = launcher.communicate()
    assert launcher.returncode == 0, out + err
    log = (place / "sweep/runs/base/seed-0/log.txt").read_text()
    saved = int(log.partition("stopped by SIGTERM at step ")[2].partition(";")[0].replace(",", ""))
    assert 0 < saved < 2500 and f"resuming from the checkpoint of step {saved:,}" in log
    assert json.loads((place / "sweep/runs/base/seed-0/attempt.json").read_text())["tries"] == 2
    assert json.loads((place / "sweep/runs/base/seed-0/result.json").read_text())["steps"] == 2500


@of_sweeps
def test_leaving_and_looking_in(place):
    more = ("--detach", "--seeds=2", "--only=h*")
    out, err = launch(place, *more).communicate()
    assert "left to the cluster: 1 run; when they are done" in out, err
    again, _ = launch(place, *more).communicate()
    assert "\njob " not in f"\n{again}"  # it is at work, or done
    until(lambda: (place / "sweep/runs/h-=-4/seed-1/result.json").is_file())
    command = [sys.executable, "-m", "transformer_jax", "status", "sweep"]
    looked = subprocess.run(command, cwd=place, capture_output=True, text=True)
    assert looked.stdout.splitlines()[-1] == "3 finished, 1 waiting", looked.stdout + looked.stderr


@of_sweeps
@with_preemption
@pytest.mark.parametrize("partition", ["low", "cancelled"])
@pytest.mark.parametrize("moment", ["start", "training"])
def test_a_preempted_job_of_a_sweep_is_queued_again_and_finishes(place, partition, moment):
    workdir = f"--workdir={partition}-{moment}"
    launch(place, workdir, "--detach", "--only=base", f"--partition={partition}").communicate()
    run = place / workdir.partition("=")[2] / "runs/base/seed-0"
    (job,) = json.loads((run.parents[2] / "slurm/jobs.json").read_text())
    until(lambda: answer("squeue", "-h", "-o", "%t", "-j", job) == "R")
    if moment == "training":
        until(lambda: (run / "metrics.jsonl").is_file() and (run / "metrics.jsonl").read_text())
    preempt()
    until(lambda: facts(job).get("Restarts") == "1")
    until(lambda: start_again(job) or facts(job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED"))
    assert (facts(job)["JobState"], facts(job)["ExitCode"]) == ("COMPLETED", "0:0")
    assert json.loads((run / "result.json").read_text())["steps"] == 2500
    assert ("resuming from the checkpoint of step" in (run / "log.txt").read_text()) == (moment == "training")


@of_sweeps
def test_a_worker_that_is_killed_is_a_failed_job(place):
    launch(place, "--workdir=killed", "--detach", "--only=base").communicate()
    run = place / "killed/runs/base/seed-0"
    (job,) = json.loads((place / "killed/slurm/jobs.json").read_text())
    attempt = until(lambda: (file := run / "attempt.json").is_file() and json.loads(file.read_text()))
    os.kill(attempt["pid"], signal.SIGKILL)
    until(lambda: facts(job)["JobState"] not in ("RUNNING", "COMPLETING"))
    assert (facts(job)["JobState"], facts(job)["ExitCode"]) == ("FAILED", "137:0")
    attempt = json.loads((run / "attempt.json").read_text())
    assert attempt["state"] == "failed" and "killed by SIGKILL" in attempt["error"]


@of_sweeps
def test_what_sbatch_rejects_is_reported(place):
    _, err = launch(place, "--partition=nowhere", "--seeds=2").communicate()
    assert "failed: sbatch did not accept the jobs: " in err and "invalid partition" in err.lower()


# The job script of docs/clusters: two tasks find each other, and a job that is cut short goes on.

JOB = ROOT / "docs/clusters/train.sbatch"
# The first checkpoint is whole at step 150, when the jobs below are cut short.
OPTIONS = ("train.log_every=10", "train.steps=300", "train.checkpoint_every=100", "train.eval_every=100")


class Submitted:
    """A job of two tasks, and what it has written."""

    def __init__(self, workdir, *flags):
        config, *_, cache = training_runs.command(workdir)[4:7]
        self.workdir, self.log = workdir, workdir.with_suffix(".out")
        options = [cache, *(f"--config.{option}" for option in OPTIONS)]
        size = ("--ntasks=2", "--cpus-per-task=1", f"--output={self.log}", *flags)
        arguments = [str(JOB), config.partition("=")[2], str(workdir), *options]
        submitted = subprocess.run(
            ["sbatch", "--parsable", *size, *arguments], env=ENVIRONMENT, capture_output=True, text=True
        )
        assert submitted.returncode == 0, submitted.stderr
        self.number = submitted.stdout.strip()

    def output(self):
        return self.log.read_text() if self.log.is_file() else ""

    def wait_for(self, text, times=1):
        """Until the log says it so often."""

        def has_said_it():
            start_again(self.number)
            return self.output().count(text) >= times

        until(has_said_it)


@pytest.fixture
def submit(tmp_path):
    jobs = []

    def submit(*flags):
        jobs.append(Submitted(tmp_path / "run", *flags))
        return jobs[-1]

    yield submit
    for job in jobs:
        subprocess.run(["scancel", job.number], capture_output=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("undisturbed") / "run"
    train(workdir, 2, *OPTIONS)
    return workdir


def assert_went_on(job, undisturbed, resumes=True):
    """It is the run of two processes that nobody disturbed, to the bit."""
    job.wait_for("finished at step 300")
    assert "2 processes, 2 devices:" in job.output()
    assert ("resuming from the checkpoint of step" in job.output()) == resumes
    until(lambda: facts(job.number)["JobState"] not in ("RUNNING", "COMPLETING"))
    assert [facts(job.number)[name] for name in ("JobState", "ExitCode", "Restarts")] == ["COMPLETED", "0:0", "1"]
    training_runs.assert_same_run(job.workdir, undisturbed)


def test_two_tasks_save_when_the_time_is_up_and_go_on(submit, undisturbed):
    job = submit()
    job.wait_for("step     150")
    subprocess.run(["scancel", "--batch", "--signal=USR1", job.number], check=True)  # as SLURM does
    job.wait_for("stopped by SIGTERM at step")
    job.wait_for("queueing again")
    assert_went_on(job, undisturbed)


MOMENTS = {
    "start": "",
    "training": "step     150",
    "validation": "step     100 ",  # the line before it
    "saving": "valid_loss",  # and that before the checkpoint
}


@with_preemption
@pytest.mark.parametrize("partition", ["low", "cancelled"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_preempted_job_goes_on(submit, undisturbed, partition, moment):
    job = submit(f"--partition={partition}")
    until(lambda: facts(job.number).get("JobState") == "RUNNING")
    job.wait_for(MOMENTS[moment])
    preempt()
    job.wait_for("finished at step 300")
    assert_went_on(job, undisturbed, resumes=moment != "start")
