"""Runs on this machine: its parts, and processes that cannot start."""

import io
import os

import pytest

from tests.support.sweep_runs import FOUR, defined, pretend_finished
from transformer_jax.processes.signals import StopSignals
from transformer_jax.sweeps import local
from transformer_jax.sweeps.launch import run_jobs
from transformer_jax.sweeps.process import Outcome
from transformer_jax.sweeps.status import Display


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
        return {run.run_id: Outcome("finished") for run in self.runs}


@pytest.mark.parametrize("slots", [1, 3])
def test_a_job_that_cannot_start_is_split_into_its_runs(folder, monkeypatch, slots):
    monkeypatch.setattr(local, "WorkerProcess", FakeProcess)
    monkeypatch.setattr(local.LocalPool, "seconds_between_polls", 0.0)
    runs = folder.runs(defined(FOUR))
    display = Display(runs, io.StringIO())
    run_jobs(local.LocalPool(folder, [local.Slot()] * slots), [runs], display, StopSignals())
    found = {status.run.run_id: status for status in display.statuses()}
    assert {run_id: status.state for run_id, status in found.items()} == {
        "base/seed-0": "finished",
        "h-=-4/seed-0": "failed",
    }
    assert "no process could be started in it: " in found["h-=-4/seed-0"].error
