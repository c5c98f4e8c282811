"""Drill: a training is killed at ten random moments and resumed each time, and ends as if it had not been."""

import random
import signal
import subprocess
import time

import pytest

from tests.support.training_runs import assert_quiet, assert_same_run, command, environment, metrics, train

# Several epochs of 38 batches; checkpoints fall between lines of metrics, and both fall in the middle of epochs.
OPTIONS = ("train.steps=5000", "train.log_every=70", "train.eval_every=100", "train.checkpoint_every=100")
KILLS = 10


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("kills")


@pytest.fixture(scope="module")
def straight(place):
    train(place / "cold", "train.steps=6", *OPTIONS[1:])  # fills the compile cache
    begin = time.monotonic()
    train(place / "straight", *OPTIONS)
    return place / "straight", time.monotonic() - begin


def interrupted(workdir, number, seconds):
    """Starts it, sends the signal after so long, and says whether it was still at work and what it printed."""
    process = subprocess.Popen(command(workdir, *OPTIONS), env=environment(), stderr=subprocess.PIPE, text=True)
    try:
        printed = process.communicate(timeout=seconds)[1]
        return False, printed
    except subprocess.TimeoutExpired:
        process.send_signal(number)
        return True, process.communicate()[1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_interrupted_ten_times(place, straight, number):
    undisturbed, seconds = straight
    workdir, rng = place / number.name, random.Random(number)
    hit, reached = 0, []
    while hit < KILLS:
        # From before the first import to well into the training, and short enough for ten of them.
        was_at_work, printed = interrupted(workdir, number, rng.uniform(0.05, 0.3) * seconds)
        assert_quiet(printed)
        hit += was_at_work
        if (workdir / "metrics.jsonl").exists():
            reached.append(metrics(workdir)[-1]["step"] if metrics(workdir) else 0)
        if not was_at_work:
            break
    assert hit >= 5 and len(set(reached)) >= 3, (hit, reached)
    assert_quiet(train(workdir, *OPTIONS))
    assert_same_run(workdir, undisturbed)
