"""Drill: runs in a bucket whose processes are killed, replaced or stopped, and whose server is away."""

import contextlib
import signal
import threading
from pathlib import Path

import pytest

from tests.support.cloud_storage import failing_bucket
from tests.support.many_processes import job, train
from tests.support.training_runs import metrics
from transformer_jax.files import remote

PROGRAM = """
import sys
from transformer_jax.files import remote
remote.PATIENCE, remote.HEARTBEAT, remote.LEASE = 10.0, 0.5, 6.0
sys.argv = ["--workdir=gs://bucket/run" if flag.startswith("--workdir=") else flag for flag in sys.argv]
from transformer_jax import cli
from transformer_jax.files import output
output.use_in_this_command()
sys.exit(cli.main())
"""
LONG = ("train.log_every=6", "train.steps=100000")
SHORT = ("train.log_every=6", "train.steps=36")
SAVED = "step      18"  # the checkpoint of step 6 is complete, because that of step 12 was begun


@pytest.fixture
def storage(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_BUCKETS", str(tmp_path / "copies"))
    monkeypatch.setattr(remote, "_copies", [])
    with failing_bucket() as (_, proxy):
        yield proxy


@contextlib.contextmanager
def started(workdir, *options, count=1):
    with job(workdir, count, *options, program=PROGRAM) as running:
        yield running


def in_bucket():
    """The metrics of the run there."""
    return metrics(Path(remote.mirrored("gs://bucket/run")))


def test_killed_and_started_again_on_other_machines(tmp_path, storage):
    with started(tmp_path / "run", *LONG, count=2) as running:
        running.wait_for(SAVED)
        running.processes[1].kill()
        assert running.statuses(90)[0] in (1, -signal.SIGABRT)
    with started(tmp_path / "run", *SHORT, count=2) as running:
        assert "resuming from the checkpoint of step" in running.finish()
    train(tmp_path / "disk", 2, *SHORT)
    assert in_bucket() == metrics(tmp_path / "disk")


def test_a_bucket_that_is_away_for_a_while(tmp_path, storage):
    with started(tmp_path / "run", "train.log_every=6", "train.steps=600", "train.checkpoint_every=60") as running:
        running.wait_for("step      12")
        storage.answer = 503
        threading.Timer(5.0, lambda: setattr(storage, "answer", None)).start()
        told = running.finish()
    assert "the bucket does not respond; it is waited for" in told
    train(tmp_path / "disk", 1, "train.log_every=6", "train.steps=600", "train.checkpoint_every=60")
    assert in_bucket() == metrics(tmp_path / "disk")


@pytest.mark.parametrize("stopped", [False, True], ids=["in training", "after SIGTERM"])
def test_a_bucket_that_is_away_for_good(tmp_path, storage, stopped):
    with started(tmp_path / "run", *LONG) as running:
        running.wait_for(SAVED)
        storage.answer = 503
        if stopped:
            running.processes[0].terminate()
        assert running.statuses(120) == [1], running.told(0)
        assert "does not respond" in running.failures(0)[-1], running.told(0)
    storage.answer = None
    with started(tmp_path / "again", *SHORT) as running:
        assert "resuming from the checkpoint of step" in running.finish()


def test_a_process_that_was_suspended_and_replaced_writes_no_more(tmp_path, storage):
    with started(tmp_path / "first", *LONG) as first:
        first.wait_for("step      12")
        first.processes[0].send_signal(signal.SIGSTOP)
        with started(tmp_path / "second", *SHORT) as second:
            second.finish()
        finished = in_bucket()
        first.processes[0].send_signal(signal.SIGCONT)
        assert first.statuses(120) == [1], first.told(0)
        assert "this process ends and writes no more" in first.failures(0)[-1], first.told(0)
    train(tmp_path / "disk", 1, *SHORT)
    assert in_bucket() == finished == metrics(tmp_path / "disk")
