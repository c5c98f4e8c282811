"""Drill: terminals that close, pipes without a reader, closed streams, full disks, and a run's folder that is removed.

None of them ends a run, and the exit status says what happened.
"""

import fcntl
import os
import pty
import shutil
import subprocess
import sys
import termios
import time

import pytest

from tests.support import sweep_runs
from tests.support.training_runs import assert_quiet, command, environment
from transformer_jax.errors import EXIT_UNFINISHED
from transformer_jax.runs.folder import RunFolder

# A shell's redirections after which nothing can be written.
NOWHERE = [">&- 2>&-", ">/dev/full 2>&1", "> >(head -c 1) 2>&1"]
SLOW = ("train.steps=400", "train.log_every=1", "train.eval_every=20", "train.checkpoint_every=20")
ENDLESS = ("train.steps=1000000", "train.log_every=20", "train.eval_every=500000", "train.checkpoint_every=500000")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run."""
    workdir = tmp_path_factory.mktemp("trained") / "run"
    subprocess.run(command(workdir), env=environment(), capture_output=True, check=True)
    return workdir


def shell(words, redirections=""):
    """A command that has ended, and what it printed where it still could."""
    line = f"exec {' '.join(map(str, words))} {redirections}"
    return subprocess.run(["bash", "-c", line], env=environment(), capture_output=True, text=True)


def await_metrics(workdir, process):
    while not (workdir / "metrics.jsonl").is_file():
        assert process.poll() is None
        time.sleep(0.1)


def of_run(name, workdir, *arguments):
    return [sys.executable, "-m", "transformer_jax.cli", name, f"--workdir={workdir}", *arguments]


class Terminal:
    """A command on a terminal; with `is_told` it is the one that the kernel sends SIGHUP when the terminal closes."""

    def __init__(self, words, cwd=None, is_told=True):
        self.master, terminal = pty.openpty()
        control = (lambda: fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)) if is_told else None
        streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
        options = {"cwd": cwd, "env": environment(), "start_new_session": True, "preexec_fn": control}
        self.process = subprocess.Popen(words, **streams, **options)
        os.close(terminal)
        self.seen = b""

    def until(self, text):
        """Reads until this has been printed; OSError if the command has ended."""
        while text not in self.seen:
            self.seen += os.read(self.master, 1 << 16)

    def close(self):
        os.close(self.master)


def test_a_training_whose_terminal_is_gone_without_a_signal_goes_on(tmp_path):
    terminal = Terminal(command(tmp_path / "run", *SLOW), is_told=False)
    terminal.until(b"tokens/s")
    terminal.close()
    assert terminal.process.wait(120) == 0
    assert 400 in RunFolder(tmp_path / "run").saved_steps()


@pytest.mark.parametrize("nowhere", NOWHERE)
def test_a_training_that_cannot_print_still_saves_when_it_is_stopped(tmp_path, nowhere):
    workdir = tmp_path / "run"
    line = f"exec {' '.join(command(workdir, *ENDLESS))} {nowhere}"
    with subprocess.Popen(["bash", "-c", line], env=environment()) as process:
        await_metrics(workdir, process)
        process.terminate()
        time.sleep(1)
        process.terminate()
    assert process.returncode == EXIT_UNFINISHED
    assert RunFolder(workdir).saved_steps()


@pytest.mark.parametrize("nowhere", NOWHERE)
def test_an_evaluation_that_cannot_print_is_recorded_and_says_so(trained, nowhere):
    shutil.rmtree(trained / "translations", ignore_errors=True)
    done = shell(of_run("evaluate", trained), nowhere)
    assert done.returncode == 1
    assert_quiet(done.stderr)
    assert (trained / "translations" / "test.latest.json").is_file()


def test_a_sweep_whose_terminal_closes_stops_and_one_that_cannot_print_goes_on(tmp_path):
    sweep_runs.experiment_file(tmp_path, "Variant('h = 4', {'model.num_heads': 4})")
    words = sweep_runs.command(tmp_path, "--workdir=sweep", "--config.train.steps=1500")
    terminal = Terminal(words, cwd=tmp_path)
    terminal.until(b"running")
    terminal.close()
    assert terminal.process.wait(120) == EXIT_UNFINISHED
    (log,) = (tmp_path / "sweep").rglob("log.txt")
    log.unlink()
    log.symlink_to("/dev/full")  # the disk is full for its worker, too
    done = subprocess.run(["bash", "-c", f"exec {' '.join(words)} >/dev/full 2> >(head -c 1)"], cwd=tmp_path)
    assert done.returncode == 0
    status = [*words[: words.index("sweep")], "status", "sweep"]
    done = subprocess.run(status, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "2 finished" in done.stdout, done.stdout


@pytest.mark.parametrize("then", ["left alone", "stopped"])
def test_a_run_whose_folder_is_removed_says_so_and_makes_nothing_anew(tmp_path, then):
    workdir = tmp_path / "run"
    options = ENDLESS if then == "stopped" else ("train.steps=1000000", "train.checkpoint_every=6")
    process = subprocess.Popen(command(workdir, *options), env=environment(), stderr=subprocess.PIPE, text=True)
    await_metrics(workdir, process)
    while workdir.exists():
        shutil.rmtree(workdir, ignore_errors=True)
    if then == "stopped":
        process.terminate()
    _, told = process.communicate(timeout=120)
    assert process.returncode == 1, told
    assert "removed" in told.splitlines()[-1] and "the same command" not in told
    assert not workdir.exists()
