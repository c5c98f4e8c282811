"""How a run stands: what a training leaves behind at each end, and what a killed one does."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.support import training_runs
from tests.support.small_runs import experiment
from transformer_jax import cli
from transformer_jax.errors import EXIT_UNFINISHED, Failed
from transformer_jax.files.atomic import locked, write_record
from transformer_jax.runs.folder import RunFolder
from transformer_jax.runs.state import STATE, record_state


@pytest.fixture
def status(tmp_path, capsys):
    """`transformer-jax status RUN --json`: (its exit status, what it printed)."""

    def status(*arguments):
        found = cli.main(["status", str(tmp_path / "run"), "--json", *arguments])
        return found, json.loads(capsys.readouterr().out)

    return status


@pytest.mark.parametrize(
    ("recorded", "has_lock", "state", "exit_status"),
    [
        (None, False, "stopped", EXIT_UNFINISHED),  # its record is lost
        ("finished", False, "finished", 0),
        ("stopped", False, "stopped", EXIT_UNFINISHED),
        ("diverged", False, "diverged", 1),
        ("running", False, "failed", 1),  # it gave the lock back
        ("running", True, "interrupted", 1),  # kill -9
    ],
)
def test_the_state_follows_from_the_record_and_the_lock(tmp_path, status, recorded, has_lock, state, exit_status):
    run = tmp_path / "run"
    run.mkdir()
    write_record(run / "versions.json", {"last_step": 24})
    (run / "metrics.jsonl").write_text('{"step": 5, "loss": 2.5}\n{"step": 1')
    if recorded:
        record_state(run, recorded, "why")
    if has_lock:
        (run / ".lock").write_text(f"process 7 on {socket.gethostname()}\n")
    found, facts = status("--max-age=60")
    assert (found, facts["state"]) == (exit_status, state)
    assert (facts["step"], facts["steps"], facts["loss"]) == (5, 24, 2.5) and 0 <= facts["seconds_since_step"] < 60


def test_a_record_with_other_values_counts_as_lost(tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    (run / STATE).write_text('{"state": ["finished"]}')
    (run / "versions.json").write_text('{"last_step": "24"}')
    (run / "metrics.jsonl").write_text('{"step": 5}\n')
    assert cli.main(["status", str(run)]) == EXIT_UNFINISHED
    assert capsys.readouterr().out.startswith(f"{run}: stopped, step 5, ")


def test_a_running_run_that_is_silent_for_too_long_is_a_failed_probe(tmp_path, status):
    run = tmp_path / "run"
    run.mkdir()
    record_state(run, "running")
    with locked(run / ".lock"):
        assert status("--max-age=60")[0] == 0
        for name in (STATE, ".lock"):
            os.utime(run / name, (time.time() - 100, time.time() - 100))
        assert status()[0] == 0
        found, facts = status("--max-age=60")
    assert found == 1 and facts["state"] == "running" and 100 <= facts["seconds_since_step"] < 160


def test_where_locks_do_not_work_a_process_that_has_not_ended_may_run(tmp_path, status, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / "run").mkdir()
    record_state(tmp_path / "run", "running")
    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path / "run/.lock"):
        assert status()[1]["state"] == "running"
    assert status()[1]["state"] == "failed"


def test_a_lock_of_another_machine_is_believed(tmp_path, status):
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").write_bytes(b"process 7 on elsewhere\xff\n")
    assert status()[1]["state"] == "running"


def test_a_folder_without_a_run_is_bad_input(tmp_path, capsys):
    assert cli.main(["status", str(tmp_path)]) == 2
    assert "is not a run or a sweep" in capsys.readouterr().err


def test_a_probe_needs_no_jax():
    code = "import sys; from transformer_jax import cli; cli.main(['status', '.']); assert 'jax' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_training_that_fails_records_why(tmp_path, status):
    def train(problem, begins):
        folder = RunFolder(tmp_path / "run")
        with folder.held():
            if begins:
                folder.record(experiment(data__corpus="copy"))
            raise Failed(problem)

    for problem, begins in (("the disk is full", True), ("another run is there", False)):
        with pytest.raises(Failed):
            train(problem, begins)
        found, facts = status()
        assert (found, facts["state"], facts["why"]) == (1, "failed", "the disk is full")


def test_a_training_records_its_ends(tmp_path, status):
    workdir = tmp_path / "run"
    command = training_runs.command(workdir, "train.steps=100000", "train.checkpoint_every=600", "train.eval_every=600")
    process = subprocess.Popen(command, env=training_runs.environment(), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not (workdir / "metrics.jsonl").is_file() or not (workdir / "metrics.jsonl").read_text():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    found, facts = status("--max-age=300")
    assert (found, facts["state"]) == (0, "running") and facts["step"] > 0
    process.send_signal(signal.SIGTERM)
    assert process.wait() == EXIT_UNFINISHED
    found, facts = status()
    assert (found, facts["state"], facts["why"]) == (EXIT_UNFINISHED, "stopped", "stopped by SIGTERM")
    log = (workdir / "logs/process-0.txt").read_text()
    assert "a batch: " in log and "stopped by SIGTERM at step" in log
