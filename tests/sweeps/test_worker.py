"""A worker: a run that fails does not affect the others, and what is finished is not repeated."""

import json
import os

import pytest

from tests.sweeps.conftest import one_device, work
from transformer_jax.errors import Failed
from transformer_jax.extension import UserCodeError
from transformer_jax.sweeps.worker import reason_of


def result_of(folder):
    return json.loads((folder.path / "runs/base/seed-0/result.json").read_text())


def test_a_failure_is_reported_and_affects_no_other_run(worked):
    folder, definition, ended = worked
    for address, reason in (("dropout/seed-0", "config.json:1: is"), ("h-=-4/seed-0", "the disk is full")):
        status, report = ended[address]
        (line,) = (line for line in map(json.loads, report.splitlines()) if line["run"] == address)
        assert status == 1 and line["state"] == "failed" and reason in line["error"]
        run = folder.find(definition, address)
        assert run.attempt()["state"] == "failed" and reason in run.attempt()["error"] and not run.is_finished()
    assert '{"run": "base/seed-0", "state": "finished", "error": null}' in ended["base/seed-0"][1]
    assert os.readlink(folder.path / "runs/base/seed-0/data").startswith("../../../data/")


def test_a_finished_run_is_not_repeated_unless_its_records_were_replaced(worked, capfd):
    folder, definition, _ = worked
    before, run = result_of(folder), folder.find(definition, "base/seed-0")
    assert work(folder, definition, "base/seed-0")[0] == 0
    assert run.attempt()["tries"] == 1
    record = folder.path / "runs/base/seed-0" / before["tests"]["test"]["file"]
    record.unlink()
    with one_device():
        assert work(folder, definition, "base/seed-0")[0] == 0
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
