"""Drill: `prepare` is killed at random moments; the next start ends with the bytes of an undisturbed run."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

KILLS = 10


def command(workspace: Path, workdir: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "transformer_jax.cli", "prepare"),
        *(f"--config={workspace / 'config.py'}", f"--workdir={workdir}"),
        *(f"--config.data.source={workspace / 'train.en'}", f"--config.data.target={workspace / 'train.de'}"),
        *("--config.model.vocab_size=2000", "--config.data.cleaning.drop_duplicates=true"),
    ]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    directory = tmp_path_factory.mktemp("drill")
    (directory / "config.py").write_text("from transformer_jax.config import default_config as get_config\n")
    dice = random.Random(0)
    words = ["".join(dice.choices("abcdefghiklmnoprstuw", k=dice.randint(2, 9))) for _ in range(5000)]
    for name in ("train.en", "train.de"):
        lines = (" ".join(dice.choices(words, k=dice.randint(3, 20))) for _ in range(150_000))
        (directory / name).write_text("".join(line + "\n" for line in lines))
    return directory


@pytest.fixture(scope="module")
def undisturbed(workspace):
    start = time.monotonic()
    subprocess.run(command(workspace, workspace / "whole"), check=True)
    return contents(workspace / "whole" / "data"), time.monotonic() - start


def killed(workspace: Path, workdir: Path, seconds: float) -> bool:
    """Starts prepare, kills it without warning after so long, and says whether it was still at work."""
    process = subprocess.Popen(command(workspace, workdir), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGKILL)
    return process.wait() != 0


@pytest.mark.parametrize("attempt", range(KILLS))
def test_killed_once(workspace, undisturbed, attempt):
    whole, seconds = undisturbed
    workdir = workspace / f"killed-{attempt}"
    # One kill in each tenth of the time, at a random moment of it.
    moment = (attempt + random.Random(attempt).random()) / KILLS * seconds
    if killed(workspace, workdir, moment):
        assert not (workdir / "data").exists() or contents(workdir / "data") == whole
    subprocess.run(command(workspace, workdir), check=True)
    assert contents(workdir / "data") == whole
    assert sorted(path.name for path in workdir.iterdir()) == ["data"]


def test_killed_again_and_again(workspace, undisturbed):
    whole, seconds = undisturbed
    workdir = workspace / "killed-often"
    dice = random.Random(1)
    kills = sum(killed(workspace, workdir, dice.uniform(0.5, 1.0) * seconds / 2) for _ in range(8))
    assert kills >= 2
    subprocess.run(command(workspace, workdir), check=True)
    assert contents(workdir / "data") == whole


def test_three_at_once(workspace, undisturbed):
    workdir = workspace / "three"
    started = [subprocess.Popen(command(workspace, workdir), stderr=subprocess.PIPE, text=True) for _ in range(3)]
    errors = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert sum("training a" in text for text in errors) == 1
    assert contents(workdir / "data") == undisturbed[0]
