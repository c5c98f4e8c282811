"""Drill: launchers and workers of a sweep are killed at random moments; in the end all is as if they had not been."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.sweep_runs import command, experiment_file, run
from tests.support.training_runs import assert_same_run, metrics
from transformer_jax.errors import EXIT_UNFINISHED

OPTIONS = (
    "--jobs=2",
    "--config.train.steps=1500",
    "--config.train.log_every=70",
    "--config.train.eval_every=100",
    "--config.train.checkpoint_every=100",
)
KILLS = 6


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("sweep_kills")
    experiment_file(place, "Variant('h = 4', {'model.num_heads': 4})", seeds=2)
    return place


@pytest.fixture(scope="module")
def straight(place):
    run(place, "--workdir=cold", *OPTIONS, "--config.train.steps=100", "--seeds=1")  # fills the compile cache
    run(place, "--workdir=straight", *OPTIONS)
    return place / "straight"


def start(place, workdir, *arguments):
    env = {**os.environ, "XLA_FLAGS": os.environ["XLA_FLAGS_OF_COMMANDS"], "TF_CPP_MIN_LOG_LEVEL": "2"}
    whole = [*command(place, f"--workdir={workdir}", *OPTIONS), *arguments]
    return subprocess.Popen(whole, cwd=place, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def workers(workdir: Path) -> list[int]:
    """The processes at work on runs of this sweep."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                here = os.readlink(entry / "cwd")
            except OSError:
                continue
            if (
                b"transformer_jax.sweeps.worker" in words
                and workdir.name.encode() in words
                and here == str(workdir.parent)
            ):
                found.append(int(entry.name))
    return found


def runs(sweep: Path) -> list[Path]:
    return sorted(sweep.glob("runs/*/*seed-*"))


def results(sweep: Path) -> dict[str, int]:
    """When each result was made."""
    return {str(path.parent): path.stat().st_mtime_ns for path in sweep.glob("runs/*/*/result.json")}


def lines_logged(sweep: Path) -> int:
    return sum(len(metrics(path.parent)) for path in sweep.glob("runs/*/*/metrics.jsonl"))


def wait_for_two_runs(launcher, sweep: Path) -> None:
    """Returns when two runs have logged; fails if the launcher has ended, or after ten minutes."""
    deadline = time.monotonic() + 600
    while len(list(sweep.glob("runs/*/*/metrics.jsonl"))) < 2:
        if launcher.poll() is not None or time.monotonic() > deadline:
            launcher.kill()
            pytest.fail(f"two runs have not begun: {launcher.communicate()}")
        time.sleep(0.1)


def killed_after(launcher, sweep: Path, lines: int) -> bool:
    """Kills it when its runs have logged so many lines more; False if it ended before."""
    enough = lines_logged(sweep) + lines
    while lines_logged(sweep) < enough and launcher.poll() is None:
        time.sleep(0.05)
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    return launcher.returncode == -signal.SIGKILL


def test_the_launcher_is_killed_again_and_again(place, straight):
    dice, made, sweep = random.Random(0), {}, place / "killed"
    for _ in range(KILLS):
        assert killed_after(start(place, "killed"), sweep, dice.randint(1, 15)), "of about 140 lines"
        now = results(sweep)
        assert made.items() <= now.items(), "a finished run was made again"
        made = now
        if dice.random() < 0.5:  # begin again while the orphans save, or when they are gone
            time.sleep(5)
    run(place, "--workdir=killed", *OPTIONS)
    assert made.items() <= results(sweep).items()
    assert [path.relative_to(sweep) for path in runs(sweep)] == [path.relative_to(straight) for path in runs(straight)]
    for ours, theirs in zip(runs(sweep), runs(straight), strict=True):
        assert_same_run(ours, theirs)
        steps = [line["step"] for line in metrics(ours) if "loss" in line]
        assert steps == sorted(set(steps))
        (own, other) = (json.loads((path / "result.json").read_text()) for path in (ours, theirs))
        assert {name: own[name] for name in ("valid", "tests", "target_tokens")} == {
            name: other[name] for name in ("valid", "tests", "target_tokens")
        }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_has_all_save_and_leaves_nothing_behind(place, straight, number):
    workdir = place / number.name
    launcher = start(place, workdir.name)
    wait_for_two_runs(launcher, workdir)
    assert len(workers(workdir)) == 2
    launcher.send_signal(number)
    _, told = launcher.communicate()
    assert launcher.returncode == EXIT_UNFINISHED and f"stopped by {number.name}; the same command resumes" in told
    assert workers(workdir) == []
    for path in workdir.glob("runs/*/seed-0"):
        assert json.loads((path / "attempt.json").read_text())["state"] == "stopped"
        last = max(line["step"] for line in metrics(path))
        assert max(int(step.name) for step in (path / "checkpoints").iterdir() if step.name.isdecimal()) >= last
    run(place, f"--workdir={workdir.name}", *OPTIONS)
    for ours, theirs in zip(runs(workdir), runs(straight), strict=True):
        assert_same_run(ours, theirs)


def test_a_worker_that_is_killed_is_a_failed_run_and_no_more(place, straight):
    workdir = place / "worker"
    launcher = start(place, workdir.name, "--seeds=1")
    wait_for_two_runs(launcher, workdir)
    os.kill(workers(workdir)[0], signal.SIGKILL)
    out, err = launcher.communicate()
    assert launcher.returncode == 1 and "the process was killed by SIGKILL; its last lines:" in out
    assert "failed: 1 runs" in err and len(results(workdir)) == 1
    made = results(workdir)
    retried = start(place, workdir.name, "--seeds=1")
    retried.communicate()
    assert retried.returncode == 0 and made.items() < results(workdir).items()
