"""A worker process as its launcher sees it: how it ended, and which code it runs."""

import dataclasses
import json
import signal
import sys

import pytest

from tests.support.sweep_runs import defined
from transformer_jax.sweeps import process
from transformer_jax.sweeps.process import Outcome, WorkerProcess


@pytest.fixture
def run(folder):
    folder.save(defined())
    return folder.find(defined(), "base/seed-0")


def test_a_process_stopped_before_it_has_signal_handlers_is_stopped(folder, run):
    worker = WorkerProcess(folder, [run])
    worker.process.send_signal(signal.SIGTERM)  # long before its imports are done
    assert worker.outcomes() == {"base/seed-0": Outcome("stopped")}


def test_a_process_that_was_killed_is_reported_with_its_last_lines(folder, run):
    worker = WorkerProcess(folder, [run])
    run.log.write_text("so far so good\n")
    worker.process.kill()
    (outcome,) = worker.outcomes().values()
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
    (outcome,) = WorkerProcess(folder, [stranger]).outcomes().values()
    assert "BadInput: base/seed-9: " in outcome.error  # it has imported all it needs, and read the sweep


def test_a_worker_that_finds_another_package_refuses(folder, run, monkeypatch, tmp_path):
    """The launcher was started from a copy, `python -m` in its directory: the worker is not to run something else."""
    monkeypatch.setattr(process, "PACKAGE", tmp_path / "transformer_jax")
    (outcome,) = WorkerProcess(folder, [run]).outcomes().values()
    assert outcome.state == "failed" and f"the sweep's launcher from {tmp_path / 'transformer_jax'}" in outcome.error


def test_messages_of_any_length_block_no_process(folder, run, tmp_path, monkeypatch):
    """Nobody reads them before the end; a pipe holds 64 KiB."""
    line = json.dumps({"run": "base/seed-0", "state": "failed", "error": "x" * 300_000})
    (tmp_path / "told.py").write_text(f"print({line!r})\n")
    monkeypatch.setattr(process, "PYTHON", (sys.executable, str(tmp_path / "told.py")))
    worker = WorkerProcess(folder, [run])
    worker.process.wait(timeout=60)
    assert len(worker.outcomes()["base/seed-0"].error) == 300_000
