"""Drill: other meshes over other numbers of processes; the short form is tests/processes/test_distributed.py."""

import pytest

from tests.processes.test_distributed import OPTIONS, assert_agree
from tests.support import training_runs
from tests.support.many_processes import job, train
from tests.support.training_runs import errors


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("meshes")


@pytest.fixture(scope="module")
def by_one(place):
    training_runs.train(place / "one", *OPTIONS)
    return place / "one"


@pytest.mark.parametrize(
    ("processes", "devices", "mesh"),
    [
        (4, 1, ()),
        (2, 2, ("mesh.fsdp=2", "mesh.tensor=2")),  # a matrix is divided across processes
        (2, 1, ("mesh.tensor=2",)),
        (2, 2, ("mesh.fsdp=4",)),
        (4, 2, ("mesh.fsdp=2", "mesh.tensor=2")),
    ],
)
def test_any_mesh_over_any_processes(place, by_one, processes, devices, mesh):
    workdir = place / f"{processes} by {devices}, {' '.join(mesh)}"
    told = train(workdir, processes, *OPTIONS, *mesh, devices=devices)
    assert f"{processes} processes, {processes * devices} devices:" in told and told.count("  process ") == processes
    assert_agree(workdir, by_one)


def test_the_workdir_is_held_against_others_and_not_against_its_own(place, by_one):
    """One line for what is wrong, from the process that found it; the other says whose end it is."""
    with job(by_one, 2, "model.d_ff=48") as running:
        assert sorted(running.statuses(60)) in ([1, 2], [2, 2])
        assert any("holds another run" in line for number in (0, 1) for line in errors(running.told(number)))


def test_a_run_that_moves_from_one_number_of_processes_to_the_next(place, by_one):
    """On other meshes, too: 2 processes x 2 devices, 1 x 4, 4 x 1, 1 x 1."""
    workdir = place / "moved"
    train(workdir, 2, *OPTIONS, "train.steps=6", "mesh.fsdp=2", devices=2)
    training_runs.train(workdir, *OPTIONS, "train.steps=12", devices=4)
    train(workdir, 4, *OPTIONS, "train.steps=18", "mesh.tensor=2")
    training_runs.train(workdir, *OPTIONS)
    assert_agree(workdir, by_one)
