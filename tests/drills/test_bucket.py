"""Drill: two processes of a run in a bucket, each with a mirror of its own; one is killed, and both start again."""

import os
import shutil
import signal

from tests.support.cloud_storage import bucket
from tests.support.many_processes import job, train
from tests.support.training_runs import metrics

PROGRAM = """
import os, sys
number = next(flag for flag in sys.argv if flag.startswith("--process-id=")).partition("=")[2]
os.environ["TRANSFORMER_JAX_BUCKETS"] = os.path.join(os.environ["MIRRORS"], number)
sys.argv = ["--workdir=gs://bucket/run" if flag.startswith("--workdir=") else flag for flag in sys.argv]
from transformer_jax import cli
sys.exit(cli.main())
"""


def test_killed_and_started_again_on_other_machines(tmp_path, monkeypatch):
    monkeypatch.setenv("MIRRORS", str(tmp_path / "mirrors"))
    with bucket():
        with job(tmp_path / "run", 2, "train.log_every=6", "train.steps=100000", program=PROGRAM) as running:
            running.wait_for("step      12")
            running.processes[1].kill()
            assert running.statuses(90)[0] in (1, -signal.SIGABRT)
        shutil.rmtree(os.environ["MIRRORS"])
        with job(tmp_path / "run", 2, "train.log_every=6", "train.steps=36", program=PROGRAM) as running:
            assert "resuming from the checkpoint of step" in running.finish()
    train(tmp_path / "disk", 2, "train.log_every=6", "train.steps=36")
    assert metrics(tmp_path / "mirrors/0/bucket/run") == metrics(tmp_path / "disk")
