"""Several real processes on one machine: they train as one, and end together. More in tests/chaos/several.py."""

import itertools
import json
import os
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.support.many_processes import free_address, job
from tests.support.training_runs import (
    environment,
    metrics,
    train_here,
    weights,
)
from transformer_jax.errors import EXIT_UNFINISHED, BadInput, Failed
from transformer_jax.processes.distributed import check_flags, in_cluster, unreachable

# A line of metrics wherever a run below may be interrupted, dropout included.
OPTIONS = ("train.log_every=6", "train.steps=60")
# The command, and a note of which pairs of the training data this process has read. Process 1 sees an older listing of
# the checkpoints, and is interrupted after some batches.
SPY = """
import os, pathlib, signal, sys
from transformer_jax import cli
from transformer_jax.data import batching
from transformer_jax.files import output
from transformer_jax.runs.checkpoint import Checkpoints
output.use_in_this_command()
number, workdir = (next(a for a in sys.argv if a.startswith(f)).split("=")[1] for f in ("--process-id", "--workdir"))
rows, asked = [], []
signal.signal(signal.SIGINT, signal.default_int_handler)  # or a child of a background job ignores it
def spy(pairs, members, *rest, **more):
    if len(pairs.source_offsets) > 100:  # those to validate on are fewer
        rows.extend(members.tolist())
        if number == "1" and len(rows) > 24 and not asked:
            asked.append(os.kill(os.getpid(), signal.SIGINT))
    return assemble(pairs, members, *rest, **more)
assemble, batching.assemble = batching.assemble, spy
if number == "1":
    listed = Checkpoints.steps.fget
    Checkpoints.steps = property(lambda self: listed(self)[:-1])
status = cli.main()
pathlib.Path(workdir, f"rows.{number}").write_text(" ".join(map(str, rows)))
sys.exit(status)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def stopped(place):
    """Begun by one process, resumed by two, stopped by a signal to one of them."""
    train_here(place / "two", *OPTIONS, "train.steps=18")
    shutil.copytree(place / "two", place / "one")
    with job(place / "two", 2, *OPTIONS, program=SPY) as running:
        told = running.finish(EXIT_UNFINISHED)
    assert "resuming from the checkpoint of step 18" in told and "stopped by SIGINT at step" in told
    return place / "two"


def assert_agree(ours, theirs):
    """The same loss curve and parameters, to the tolerance of sums in another order."""
    for mine, other in zip(metrics(ours), metrics(theirs), strict=True):
        assert mine == pytest.approx(other, rel=1e-4)
    other = weights(theirs)
    for name, array in weights(ours).items():
        assert np.abs(array - other[name]).max() < 1e-4, name


def test_each_process_loads_only_its_own_rows(stopped):
    """In these updates, fewer than the 38 batches of an epoch, every pair is read by one process alone."""
    # The first batch of a shape is read twice: its program is compiled before.
    read = [{int(row) for row in (stopped / f"rows.{number}").read_text().split()} for number in (0, 1)]
    assert all(20 <= len(rows) < 150 for rows in read), read
    assert not set(read[0]) & set(read[1])


def test_two_processes_train_as_one_and_one_goes_on_where_a_signal_left_them(place, stopped):
    train_here(place / "one", *OPTIONS)
    assert "resuming from the checkpoint of step" in train_here(stopped, *OPTIONS)
    assert_agree(stopped, place / "one")


def test_the_others_may_be_lost_while_a_checkpoint_is_written():
    """Orbax raises TimeoutError from JAX's error, and a checkpoint that failed raises Failed from that."""
    lost, timeout = jax.errors.JaxRuntimeError("UNAVAILABLE: one is gone"), TimeoutError("a barrier")
    failed = Failed("a checkpoint could not be written")
    failed.__cause__, timeout.__cause__ = timeout, lost
    assert unreachable(failed) == "UNAVAILABLE: one is gone"
    timeout.__cause__ = None
    assert unreachable(failed) is None


TWO = """
import json, sys
from pathlib import Path
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from transformer_jax.config import MeshConfig
from transformer_jax.errors import Failed
from transformer_jax.processes import distributed
from transformer_jax.processes.distributed import joined, processes
from transformer_jax.runs.checkpoint import Checkpoints, DamagedCheckpoint

address, number, place = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
distributed.SHARED_WITHIN = 1.0
found, order = {}, place / "order"

def make():
    with open(order, "a") as file:
        file.write(str(number))
    return number

with joined(address, 2, number, MeshConfig(start_within=60, lost_after=30, stalled_after=60), dict):
    here = processes()
    found["first"] = here.is_first
    found["broadcast"] = here.broadcast({"step": 7, "é": None} if number == 0 else None)
    found["gather"] = here.gather("ab" if number else "äöü")
    found["made"] = here.on_first_then_on_others(make, order)
    try:
        (place / f"own.{number}").write_text("x" if number == 0 else "y")
        here.on_first_then_on_others(int, place / f"own.{number}")
    except Failed as error:
        found["hidden"] = str(error)

    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    state = {"a": jax.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(mesh, PartitionSpec("x")))}
    wanted = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)
    with Checkpoints(place / "checkpoints") as checkpoints:
        checkpoints.save(1, state, {"of": 1})
        checkpoints.wait()
        read = checkpoints._reader.restore
        for name, faulty, item in (
            ("record of 1", [1], "record"), ("record of 0", [0], "record"), ("state of 1", [1], "state"),
            ("state of 0", [0], "state"), ("all", [0, 1], "record"), ("none", [], ""),
        ):
            def restore(step, args):
                if number in faulty and item in args.keys():
                    raise ValueError("cut short")
                return read(step, args=args)
            checkpoints._reader.restore = restore
            try:
                found[name] = checkpoints.restore(1, wanted)[1]
            except (DamagedCheckpoint, Failed) as error:
                found[name] = f"{type(error).__name__}: {error}"
    (place / f"found.{number}").write_text(json.dumps(found))
"""


def test_what_processes_tell_each_other_and_read_together(tmp_path):
    address = free_address()
    started = [
        subprocess.Popen([sys.executable, "-c", TWO, address, str(number), str(tmp_path)], env=environment(1))
        for number in (0, 1)
    ]
    assert [process.wait(120) for process in started] == [0, 0]
    first, second = (json.loads((tmp_path / f"found.{number}").read_text()) for number in (0, 1))
    assert (first["first"], second["first"]) == (True, False)
    assert first["broadcast"] == second["broadcast"] == {"step": 7, "é": None}
    assert first["gather"] == second["gather"] == ["äöü", "ab"]
    assert (first["made"], second["made"]) == (0, 1)
    assert "hidden" not in first and "file system that all processes share" in second["hidden"]
    assert (tmp_path / "order").read_text() == "01"
    for found in (first, second):  # nobody waits for another that cannot read, or takes for damage what others can read
        for item, number in itertools.product(("record", "state"), (0, 1)):
            told = found[f"{item} of {number}"]
            assert (
                told.startswith("Failed: process") and f"process {number} cannot read" in told and "cut short" in told
            )
        assert found["all"].startswith("DamagedCheckpoint: ") and found["none"] == {"of": 1}


@pytest.mark.parametrize(
    "flags", [("a:1234", 2, None), (None, 2, None), ("a", 2, 0), ("a:1234", 2, 2), ("a:0", 2, 0), ("a:99999", 2, 0)]
)
def test_flags_that_do_not_go_together(flags):
    with pytest.raises(BadInput, match="give all three"):
        check_flags(*flags)


def test_flags_that_do():
    assert check_flags("[fe80::1]:1234", 4, 3)
    assert not check_flags(None, None, None) and not check_flags(None, 1, None) and not check_flags("a:1", 1, 0)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2"}, False),  # a shell of salloc
        ({"SLURM_STEP_NODELIST": "a", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, False),
        ({"SLURM_STEP_NODELIST": "a", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, True),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),  # a single pod
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}, True),
    ],
)
def test_a_cluster_is_looked_for_only_where_the_environment_says_so(variables, expected, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("SLURM_", "OMPI_", "KUBERNETES_", "JOB_"))]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert in_cluster() == expected
