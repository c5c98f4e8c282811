"""Several real processes on one machine: they train as one, and end together. More in drills/test_many_processes.py."""

import signal

import numpy as np
import pytest

from tests.support.many_processes import job, train
from tests.support.training_runs import assert_same_run, fast_compilation, metrics, train_here, weights

pytestmark = pytest.mark.slow

# A line of metrics wherever a run below may be interrupted, dropout included.
OPTIONS = ("train.log_every=6", "train.steps=36")
# The command, and a note of which pairs of the training data this process has read.
SPY = """
import pathlib, sys
from transformer_jax import cli
from transformer_jax.data import batching
rows = []
def spy(pairs, members, *rest, **more):
    if len(pairs.source_offsets) > 100:  # those to validate on are fewer
        rows.extend(members.tolist())
    return assemble(pairs, members, *rest, **more)
assemble, batching.assemble = batching.assemble, spy
status = cli.main()
number, workdir = (next(a for a in sys.argv if a.startswith(f)).split("=")[1] for f in ("--process-id", "--workdir"))
pathlib.Path(workdir, f"rows.{number}").write_text(" ".join(map(str, rows)))
sys.exit(status)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with fast_compilation():
        yield tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def killed(place):
    """Its coordinator was killed; the other ended at once, and reported who was lost."""
    with job(place / "killed", 2, *OPTIONS[:1], "train.steps=100000") as running:
        running.wait_for("step      12")
        running.processes[0].send_signal(signal.SIGKILL)
        assert running.statuses(20) == [-signal.SIGKILL, 1]
        (line,) = running.failures(1)
    assert line.startswith("failed: process 0 (") and f"pid {running.processes[0].pid}" in line
    assert line.endswith("is gone, killed or crashed; the same command resumes from the last checkpoint")
    return place / "killed"


@pytest.fixture(scope="module")
def restarted(killed):
    with job(killed, 2, *OPTIONS, program=SPY) as running:
        assert "resuming from the checkpoint of step" in running.finish()
    return killed


def assert_agree(ours, theirs):
    """The same loss curve and parameters, to the tolerance of sums in another order."""
    for mine, other in zip(metrics(ours), metrics(theirs), strict=True):
        assert mine == pytest.approx(other, rel=1e-4)
    other = weights(theirs)
    for name, array in weights(ours).items():
        assert np.abs(array - other[name]).max() < 1e-4, name


def test_two_processes_train_as_one_and_resume_where_a_kill_left_them(place, restarted):
    train_here(place / "one", *OPTIONS)
    assert_agree(restarted, place / "one")


def test_each_process_loads_only_its_own_rows(restarted):
    """In these updates, fewer than the 38 batches of an epoch, every pair is read by one process alone."""
    read = [[int(row) for row in (restarted / f"rows.{number}").read_text().split()] for number in (0, 1)]
    assert all(20 <= len(rows) == len(set(rows)) < 150 for rows in read), read
    assert not set(read[0]) & set(read[1])


@pytest.mark.drill
def test_the_restart_is_the_straight_run(place, restarted):
    """To the bit."""
    train(place / "two", 2, *OPTIONS)
    assert_same_run(restarted, place / "two")


@pytest.mark.drill
def test_one_that_never_starts_is_named(place):
    with job(place / "waiting", 3, "mesh.start_within=4", present=2) as running:
        assert running.statuses(60) == [1, 1]
        for number in (0, 1):
            assert running.failures(number) == ["failed: process 2 of 3 did not come within 4 s"]
    assert not (place / "waiting").exists()
