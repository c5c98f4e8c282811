"""A worker: a run that fails does not affect the others, and what is finished is not repeated."""

import errno
import json
import os

import pytest

from tests.support.devices import one_device
from tests.support.sweep_runs import FOUR, defined
from tests.sweeps.conftest import work
from transformer_jax.errors import Diverged, Failed
from transformer_jax.extension import UserCodeError
from transformer_jax.sweeps.worker import Stopped, Worker, reason_of


def result_of(folder):
    return json.loads((folder.path / "runs/base/seed-0/result.json").read_text())


def test_a_failure_is_reported_and_affects_no_other_run(worked):
    folder, definition, ended = worked
    for run_id, reason in (("dropout/seed-0", "config.json: is"), ("h-=-4/seed-0", "the disk is full")):
        assert ended[run_id] == 1
        run = folder.find(definition, run_id)
        assert run.attempt()["state"] == "failed" and reason in run.attempt()["error"] and not run.is_finished()
    assert folder.find(definition, "base/seed-0").attempt()["state"] == "finished"
    assert os.readlink(folder.path / "runs/base/seed-0/data").startswith("../../../data/")


def test_a_finished_run_is_not_repeated_unless_its_records_were_replaced(worked, capfd):
    folder, definition, _ = worked
    before, run = result_of(folder), folder.find(definition, "base/seed-0")
    assert work(folder, definition, "base/seed-0") == 0
    assert run.attempt()["tries"] == 1
    record = folder.path / "runs/base/seed-0" / before["tests"]["test"]["file"]
    record.unlink()
    with one_device():
        assert work(folder, definition, "base/seed-0") == 0
    assert run.attempt()["tries"] == 2 and record.is_file() and result_of(folder)["tests"] == before["tests"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Failed("the disk is full"), "the disk is full"),
        (KeyError("k"), "KeyError: 'k'"),
        (UserCodeError("mine.py", ValueError("v")), "mine.py raised ValueError: v"),
    ],
)
def test_the_reason_of_a_failure(error, reason):
    assert reason in reason_of(error)


@pytest.mark.parametrize(("error", "state"), [(Failed("no room"), "failed"), (Diverged("at step 3"), "diverged")])
def test_a_stop_leaves_what_had_failed(folder, monkeypatch, error, state):
    """Of a group, one run has failed when the process is asked to stop."""
    definition = defined(FOUR)
    folder.save(definition)

    def train(self, runs):
        self._fail(runs[0], error)
        raise Stopped

    monkeypatch.setattr(Worker, "_train_and_evaluate", train)
    work(folder, definition, "base/seed-0", "h-=-4/seed-0")
    base, four = folder.runs(definition)
    assert base.attempt()["state"] == state and base.has_diverged() == (state == "diverged")
    assert four.attempt()["state"] == "stopped"


def test_a_file_system_without_locks_is_named_in_a_line(folder, monkeypatch, capsys):
    definition = defined()
    folder.save(definition)

    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with folder.held(), folder.runs(definition)[0].held():
        assert capsys.readouterr().err.count("locks do not work") == 2
