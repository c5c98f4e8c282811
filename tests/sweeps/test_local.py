"""Runs on this machine: its parts, worker processes, how they ended, and those that cannot start."""

import dataclasses
import io
import os
import signal

import pytest

from tests.support.sweep_runs import FOUR, defined, pretend_finished
from transformer_jax.processes.signals import StopSignals
from transformer_jax.sweeps import local
from transformer_jax.sweeps.launch import run_jobs
from transformer_jax.sweeps.local import WorkerProcess
from transformer_jax.sweeps.state import Outcome
from transformer_jax.sweeps.status import Progress


def test_the_machine_is_divided(monkeypatch):
    monkeypatch.setattr(local, "gpus", list)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4, 5})
    assert [slot.cores for slot in local.slots(None)] == [(0, 1, 2, 3, 4, 5)]
    assert [slot.cores for slot in local.slots(2)] == [(0, 1, 2), (3, 4, 5)]
    assert [slot.cores for slot in local.slots(7)] == [(0,), (1,), (2,), (3,), (4,), (5,), (0,)]
    assert [len(slot.cores) for slot in local.slots(4)] == [1] * 4, "all as many"
    assert [slot.cores for slot in local.slots(2, 2)] == [(0, 1), (2, 3)]
    assert [slot.cores for slot in local.slots(2, 6)] == [(0, 1, 2, 3, 4, 5)] * 2
    monkeypatch.setattr(local, "gpus", lambda: ["0", "1", "2", "3"])
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    assert [slot.environment for slot in local.slots(None)] == [{"CUDA_VISIBLE_DEVICES": str(n)} for n in range(4)]
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in local.slots(2)] == ["0,1", "2,3"]
    shared = local.slots(8)[5].environment
    assert shared == {"CUDA_VISIBLE_DEVICES": "1", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.450"}


class FakeProcess:
    """In place of a worker: ends at once, or does not start."""

    def __init__(self, sweep, runs, environment):
        self.runs, self.asked = runs, False
        if any(run.variant == "h = 4" for run in runs):
            raise NotADirectoryError(20, "Not a directory", str(runs[0].path))
        for run in runs:
            pretend_finished(run)

    def has_ended(self):
        return True

    def outcomes(self):
        return [Outcome("finished") for _ in self.runs]


@pytest.mark.parametrize("slots", [1, 3])
def test_a_job_that_cannot_start_is_split_into_its_runs(folder, monkeypatch, slots):
    monkeypatch.setattr(local, "WorkerProcess", FakeProcess)
    monkeypatch.setattr(local.LocalPool, "seconds_between_polls", 0.0)
    runs = folder.runs(defined(FOUR))
    progress = Progress(runs, io.StringIO())
    run_jobs(local.LocalPool(folder, [local.Slot()] * slots), [runs], progress, StopSignals())
    found = {status.run.run_id: status for status in progress.statuses()}
    assert {run_id: status.state for run_id, status in found.items()} == {
        "base/seed-0": "finished",
        "h-=-4/seed-0": "failed",
    }
    assert "no process could be started in it: " in found["h-=-4/seed-0"].error


@pytest.fixture
def run(folder):
    folder.save(defined())
    return folder.find(defined(), "base/seed-0")


def test_a_process_stopped_before_it_has_signal_handlers_is_stopped(folder, run):
    worker = WorkerProcess(folder, [run])
    worker.process.send_signal(signal.SIGTERM)  # long before its imports are done
    assert worker.outcomes() == [Outcome("stopped")]


def test_a_process_that_was_killed_is_reported_with_its_last_lines(folder, run):
    worker = WorkerProcess(folder, [run])
    run.log.write_text("so far so good\n")
    worker.process.kill()
    (outcome,) = worker.outcomes()
    assert outcome == Outcome("failed", "the process was killed by SIGKILL; its last lines:\nso far so good")


def shadowed(directory):
    """A directory in which `python -m` would find other modules than what is installed."""
    (directory / "random.py").write_text("raise RuntimeError('the random.py of the current directory')\n")
    copy = directory / "transformer_jax"
    (copy / "sweeps").mkdir(parents=True)
    for file in (copy / "__init__.py", copy / "sweeps" / "__init__.py", copy / "sweeps" / "worker.py"):
        file.write_text("raise RuntimeError('the copy in the current directory')\n")


def test_a_worker_runs_what_is_installed_and_nothing_of_the_current_directory(folder, run, tmp_path, monkeypatch):
    shadowed(tmp_path)
    monkeypatch.chdir(tmp_path)
    stranger = dataclasses.replace(run, path=folder.path / "runs" / "base" / "seed-9")
    (outcome,) = WorkerProcess(folder, [stranger]).outcomes()
    assert "KeyError: 'base/seed-9'" in outcome.error  # it has imported all it needs, and read the sweep
