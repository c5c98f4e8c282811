"""One run of a tiny model for all tests of this folder: its searches are compiled once."""

import pytest

from tests.support.devices import one_device
from tests.support.translating_runs import make_run
from transformer_jax import load_run


@pytest.fixture(scope="session")
def averaged_run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="session")
def run(averaged_run):
    """On one device; test_meshes.py has several."""
    with one_device():
        return load_run(averaged_run, "averaged")
