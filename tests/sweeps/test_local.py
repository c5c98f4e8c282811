"""Runs on this machine: its parts, worker processes, and how they ended."""

import dataclasses
import os
import signal

import pytest

from tests.support.sweep_runs import defined
from transformer_jax.errors import BadInput, Failed
from transformer_jax.sweeps import local
from transformer_jax.sweeps.local import WorkerProcess
from transformer_jax.sweeps.status import status_of


def test_the_machine_is_divided(monkeypatch):
    monkeypatch.setattr(local, "gpus", list)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4, 5})
    assert [slot.cores for slot in local.slots(None)] == [(0, 1, 2, 3, 4, 5)]
    assert [slot.cores for slot in local.slots(2)] == [(0, 1, 2), (3, 4, 5)]
    assert [slot.cores for slot in local.slots(7)] == [(0,), (1,), (2,), (3,), (4,), (5,), (0,)]
    assert [len(slot.cores) for slot in local.slots(4)] == [1] * 4, "all as many"
    monkeypatch.setattr(local, "gpus", lambda: ["0", "1", "2", "3"])
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    assert [slot.environment for slot in local.slots(None)] == [{"CUDA_VISIBLE_DEVICES": str(n)} for n in range(4)]
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in local.slots(2)] == ["0,1", "2,3"]
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in local.slots(3)] == ["0", "1", "2"], "all as many"
    shared = local.slots(8)[5].environment
    assert shared == {"CUDA_VISIBLE_DEVICES": "1", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.450"}


@pytest.fixture
def run(folder):
    folder.save(defined())
    return folder.by_id(defined())["base/seed-0"]


def test_a_process_stopped_before_it_has_signal_handlers_is_stopped(folder, run):
    worker = WorkerProcess(folder, [run])
    worker.process.send_signal(signal.SIGTERM)  # long before its imports are done
    worker.conclude()
    assert status_of(run).state == "stopped"


def test_a_process_that_was_killed_is_reported_with_its_last_lines(folder, run):
    """It could not record its end itself."""
    worker = WorkerProcess(folder, [run])
    run.record_attempt(state="running", tries=1, pid=worker.process.pid)
    run.log.write_text("so far so good\n")
    worker.process.kill()
    worker.conclude()
    assert run.attempt()["state"] == "failed" and run.attempt()["tries"] == 1
    assert "SIGKILL" in run.attempt()["error"] and run.attempt()["error"].endswith("\nso far so good")
    worker = WorkerProcess(folder, [run])
    worker.process.send_signal(signal.SIGRTMIN + 1)
    worker.conclude()
    assert f"killed by signal {signal.SIGRTMIN + 1}" in run.attempt()["error"]


def test_a_log_that_is_a_link_is_not_written(folder, run, tmp_path):
    run.path.mkdir(parents=True)
    run.log.symlink_to(tmp_path / "mine")
    with pytest.raises(BadInput, match=r"log\.txt"):
        WorkerProcess(folder, [run])
    assert not (tmp_path / "mine").exists()


def test_a_full_disk_ends_the_launch_and_not_one_run_after_the_other(folder, run, monkeypatch):
    monkeypatch.setattr(local, "no_links", os.open)
    run.path.mkdir(parents=True)
    run.log.symlink_to("/dev/full")
    other = dataclasses.replace(run, path=run.path.with_name("seed-1"))
    other.path.mkdir()
    other.log.symlink_to("/dev/full")
    with pytest.raises(Failed, match="full"):
        WorkerProcess(folder, [run, other])


def test_the_log_of_an_earlier_attempt_stays(folder, run):
    other = dataclasses.replace(run, path=run.path.with_name("seed-1"))
    other.path.mkdir(parents=True)
    other.log.write_text("the end of a traceback\n")
    worker = WorkerProcess(folder, [run, other])
    worker.process.kill()
    worker.conclude()
    earlier, later = other.log.read_text().splitlines()
    assert earlier == "the end of a traceback" and later.endswith("see ../seed-0/log.txt")


@pytest.mark.parametrize(
    ("chips", "jobs", "visible", "bounds"),
    [
        (4, None, ["0", "1", "2", "3"], "1,1,1"),
        (8, 3, ["0,1", "2,3", "4,5"], "1,2,1"),
        (4, 9, ["0", "1", "2", "3"], "1,1,1"),
    ],
)
def test_a_tpu_chip_belongs_to_one_process(monkeypatch, tmp_path, chips, jobs, visible, bounds):
    for number in range(chips):
        (tmp_path / f"accel{number}").touch()
    monkeypatch.setattr(local, "DEVICES", tmp_path)
    monkeypatch.setattr(local.importlib.util, "find_spec", lambda name: name == "libtpu")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    found = [slot.environment for slot in local.slots(jobs)]
    assert [environment["TPU_VISIBLE_CHIPS"] for environment in found] == visible
    assert {environment["TPU_CHIPS_PER_PROCESS_BOUNDS"] for environment in found} == {bounds}
    assert {environment["TPU_PROCESS_BOUNDS"] for environment in found} == {"1,1,1"}


def shadowed(directory):
    """A directory in which `python -m` would find other modules than what is installed."""
    (directory / "random.py").write_text("raise RuntimeError('the random.py of the current directory')\n")
    copy = directory / "transformer_jax"
    (copy / "sweeps").mkdir(parents=True)
    for file in (copy / "__init__.py", copy / "sweeps" / "__init__.py", copy / "sweeps" / "worker.py"):
        file.write_text("raise RuntimeError('the copy in the current directory')\n")


def test_a_worker_runs_what_is_installed_and_nothing_of_the_current_directory(folder, run, tmp_path, monkeypatch):
    """And however much it prints, it does not wait for somebody to read that."""
    shadowed(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    stranger = dataclasses.replace(run, path=folder.path / "runs" / "base" / "seed-9")
    WorkerProcess(folder, [stranger]).conclude()
    assert "KeyError: 'base/seed-9'" in status_of(stranger).error  # it has imported all it needs, and read the sweep
    assert stranger.log.stat().st_size > 1 << 16, "more than a pipe holds"
