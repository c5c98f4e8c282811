"""Sweeps on a real SLURM: an array, a requeue in the middle, a failing job, leaving and coming back.

Skipped where none answers. One node on loopback is enough: packages slurm-wlm and munge, submitit, and SLURM_CONF.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import time

import pytest

from tests.support import sweep_runs
from tests.support.sweep_runs import experiment_file


def why_not() -> str:
    if shutil.which("sbatch") is None:
        return "there is no SLURM here (no sbatch)"
    if importlib.util.find_spec("submitit") is None:
        return "submitit is not installed"
    answer = subprocess.run(["sinfo", "--noheader"], capture_output=True, text=True)
    return "" if answer.returncode == 0 else f"SLURM does not answer: {answer.stderr.strip()}"


REASON = why_not()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(REASON), reason=REASON)]
SLURM = ("--workdir=sweep", "--slurm", "--time-limit=10", "--slurm-option=comment=test")


def until(condition, seconds=600):
    """Waits for it."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.3)
    return found


def state(job):
    return subprocess.run(
        ["squeue", "-h", "-r", "-t", "all", "-o", "%t", "-j", job], capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("slurm")
    experiment_file(
        place, "Variant('h = 4', {'model.num_heads': 4, 'train.steps': 12})", "Variant('corrupt', {'train.steps': 12})"
    )
    corrupt = place / "sweep/runs/corrupt/seed-0"
    (corrupt / "checkpoints/6").mkdir(parents=True)
    (corrupt / "config.json").write_text("{ damaged")
    return place


LONG = "--config.train.steps=2500"
RARE = ("--config.train.checkpoint_every=900", "--config.train.eval_every=900")


def launch(place, *arguments):
    command = sweep_runs.command(place, *SLURM, LONG, *RARE, *arguments)
    env = {**os.environ, "XLA_FLAGS": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return subprocess.Popen(command, cwd=place, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_an_array_a_requeue_in_the_middle_and_a_failing_job(place):
    (place / "sweep/runs").rename(place / "runs")  # to be put there once the sweep has begun: its folder must be empty
    (place / "sweep").rmdir()
    launcher = launch(place, "--jobs=2", "--only=[bh]*")
    jobs = json.loads(until(lambda: (file := place / "sweep/slurm/jobs.json").is_file() and file.read_text()))
    assert sorted(jobs.values()) == [["base/seed-0"], ["h-=-4/seed-0"]]
    (base,) = (job for job, run_ids in jobs.items() if run_ids == ["base/seed-0"])
    assert base.endswith("_0")  # of an array
    metrics = place / "sweep/runs/base/seed-0/metrics.jsonl"
    until(lambda: metrics.is_file() and metrics.read_text())
    subprocess.run(["scancel", "--signal=USR2", base], check=True)  # as SLURM does when the time is nearly up
    until(lambda: state(base) == "PD")
    subprocess.run(["scontrol", "update", f"jobid={base}", "StartTime=now"], check=True)  # by itself it waits 2 minutes
    out, err = launcher.communicate()
    assert launcher.returncode == 0, out + err
    log = (place / "sweep/runs/base/seed-0/log.txt").read_text()
    saved = int(log.partition("stopped by SIGTERM at step ")[2].partition(";")[0].replace(",", ""))
    assert 0 < saved < 2500 and f"resuming from the checkpoint of step {saved:,}" in log
    assert json.loads((place / "sweep/runs/base/seed-0/attempt.json").read_text())["tries"] == 2
    assert json.loads((place / "sweep/runs/base/seed-0/result.json").read_text())["steps"] == 2500


def test_a_failing_job_is_named(place):
    (place / "runs/corrupt").rename(place / "sweep/runs/corrupt")
    launcher = launch(place)
    out, err = launcher.communicate()
    assert launcher.returncode == 1 and "config.json: is not JSON" in out
    assert out.count("job ") == 1 and "failed: 1 runs: corrupt, seed 0" in err  # what is finished is not made again


def test_leaving_and_looking_in(place):
    shutil.rmtree(place / "sweep/runs/corrupt")
    out, err = launch(place, "--detach").communicate()
    assert "1 runs are left to the cluster; --status shows their state" in out, err
    again, _ = launch(place, "--detach").communicate()
    assert "\njob " not in f"\n{again}"  # it is at work, or done
    until(lambda: (place / "sweep/runs/corrupt/seed-0/result.json").is_file())
    looked = subprocess.run(
        [*sweep_runs.command(place)[:4], "--workdir=sweep", "--status"], cwd=place, capture_output=True, text=True
    )
    assert looked.stdout.splitlines()[-1] == "3 finished", looked.stdout + looked.stderr


def test_what_sbatch_rejects_is_reported(place):
    out, err = launch(place, "--partition=nowhere", "--seeds=2").communicate()
    assert (
        "failed: sbatch did not accept the jobs: " in err
        and "nowhere" not in out
        and "invalid partition" in err.lower()
    )
