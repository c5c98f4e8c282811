"""Drill: processes of a run are killed at random moments, and suspended; the others end in time.

Then the run goes on to what it would have been."""

import random
import signal
import time

import pytest

from tests.support.many_processes import job, train
from tests.support.training_runs import assert_same_run, metrics

OPTIONS = ("train.steps=800", "train.log_every=70", "train.eval_every=100", "train.checkpoint_every=100")
KILLS = 5
LOST_AFTER = 10
WATCHED = f"mesh.lost_after={LOST_AFTER}"
# How a process ends that has lost another; JAX aborts it at once where process 0 was killed.
ENDED = (1, -signal.SIGABRT)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("kills")


@pytest.fixture(scope="module")
def straight(place):
    train(place / "cold", 2, "train.steps=6", *OPTIONS[1:])  # fills the compile cache
    begin = time.monotonic()
    train(place / "straight", 2, *OPTIONS)
    return place / "straight", time.monotonic() - begin


@pytest.mark.parametrize("processes", [2, 4])
def test_killed_again_and_again(place, straight, processes):
    """Each time another process, at another moment: the others end soon."""
    undisturbed, seconds = straight
    workdir, dice = place / f"killed of {processes}", random.Random(processes)
    hits = 0
    for _ in range(KILLS):
        with job(workdir, processes, *OPTIONS, WATCHED, "mesh.start_within=30") as running:
            time.sleep(dice.uniform(0.1, 0.6) * seconds * processes / 2)
            victim = dice.randrange(processes)
            if any(process.poll() is not None for process in running.processes):
                break  # it has come to its end
            running.processes[victim].kill()
            statuses = running.statuses(60 + 2 * LOST_AFTER)
            hits += 1
            for number, status in enumerate(statuses):
                assert number == victim or status in ENDED, running.told(number)
    assert hits >= 2 and metrics(workdir), hits
    train(workdir, 2, *OPTIONS)
    if processes == 2:
        assert_same_run(workdir, undisturbed)


def test_suspended_for_a_while_nothing_is_lost(place, straight):
    workdir = place / "paused"
    with job(workdir, 2, *OPTIONS, "mesh.lost_after=30") as running:
        running.wait_for("step     210")
        for process in running.processes:
            process.send_signal(signal.SIGSTOP)
            time.sleep(4)
            process.send_signal(signal.SIGCONT)
        running.finish()
    assert_same_run(workdir, straight[0])


@pytest.mark.parametrize("suspended", [0, 1], ids=["the coordinator", "another"])
def test_suspended_for_too_long(place, straight, suspended):
    """The other gives it up in time."""
    workdir = place / f"suspended {suspended}"
    with job(workdir, 2, *OPTIONS, WATCHED) as running:
        running.wait_for("step     210")
        running.processes[suspended].send_signal(signal.SIGSTOP)
        assert running.processes[1 - suspended].wait(60 + 2 * LOST_AFTER) in ENDED
        running.processes[suspended].kill()
    train(workdir, 2, *OPTIONS)
    assert_same_run(workdir, straight[0])


def test_killed_while_the_others_wait_for_its_work(place):
    """The first process prepares the data; killed then, it leaves the others nothing to wait for."""
    workdir = place / "preparing"
    with job(workdir, 2, "data.task.train_size=2000000", WATCHED) as running:
        deadline = time.monotonic() + 120
        while not (workdir / "data.partial").exists():
            assert time.monotonic() < deadline, running.told(0)
            time.sleep(0.05)
        running.processes[0].kill()
        assert running.processes[1].wait(60 + 2 * LOST_AFTER) in ENDED
