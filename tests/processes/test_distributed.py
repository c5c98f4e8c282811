"""Several real processes on one machine: they train as one, and end together. More in drills/test_many_processes.py."""

import signal

import numpy as np
import pytest

from tests.support import training_runs
from tests.support.many_processes import job, train
from tests.support.training_runs import assert_same_run, metrics, weights

pytestmark = pytest.mark.slow

# A line of metrics wherever a run below may be interrupted, dropout included.
OPTIONS = ("train.log_every=6",)
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # each process compiles, and that is most of its time
        yield tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def by_one(place):
    training_runs.train(place / "one", *OPTIONS)
    return place / "one"


@pytest.fixture(scope="module")
def by_two(place):
    with job(place / "two", 2, *OPTIONS, program=SPY) as running:
        running.finish()
    return place / "two"


def assert_agree(ours, theirs):
    """The same loss curve and parameters, to the tolerance of sums in another order."""
    for mine, other in zip(metrics(ours), metrics(theirs), strict=True):
        assert mine == pytest.approx(other, rel=1e-4)
    other = weights(theirs)
    for name, array in weights(ours).items():
        assert np.abs(array - other[name]).max() < 1e-4, name


def test_two_processes_train_as_one(by_one, by_two):
    assert_agree(by_two, by_one)


def test_each_process_loads_only_its_own_rows(by_two):
    """In these 24 of the 38 batches of an epoch every pair is read by one process alone."""
    read = [[int(row) for row in (by_two / f"rows.{number}").read_text().split()] for number in (0, 1)]
    assert all(24 * 4 <= len(rows) == len(set(rows)) < 150 for rows in read), read
    assert not set(read[0]) & set(read[1])


def test_the_coordinator_is_killed_and_the_restart_is_the_straight_run(place, by_two):
    """The other ends at once, and says who was lost; the restart makes the same run, to the bit."""
    workdir = place / "killed"
    with job(workdir, 2, *OPTIONS, "train.steps=100000") as running:
        running.wait_for("step      12")
        running.processes[0].send_signal(signal.SIGKILL)
        assert running.statuses(20) == [-signal.SIGKILL, 1]
        (line,) = running.failures(1)
        assert line.startswith("failed: process 0 (") and f"pid {running.processes[0].pid}" in line
        assert line.endswith("is gone, killed or crashed; the same command resumes from the last checkpoint")
    train(workdir, 2, *OPTIONS)
    assert_same_run(workdir, by_two)


def test_one_that_never_starts_is_named(place):
    with job(place / "waiting", 3, "mesh.start_within=4", present=2) as running:
        assert running.statuses(60) == [1, 1]
        for number in (0, 1):
            assert running.failures(number) == ["failed: process 2 of 3 did not come within 4 s"]
    assert not (place / "waiting").exists()
