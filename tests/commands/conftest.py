"""What the tests of commands share: a run with random weights, loaded and compiled once."""

import pytest

from tests.support.devices import one_device
from tests.support.translating_runs import made_run
from transformer_jax import load_run


@pytest.fixture(autouse=True)
def _one_device():
    """As on most machines of users; tests/translation/test_meshes.py has several."""
    with one_device():
        yield


@pytest.fixture(scope="session")
def folder():
    return made_run()


@pytest.fixture(scope="session")
def model(folder):
    with one_device():
        return load_run(folder, "averaged")


@pytest.fixture
def loaded(model, monkeypatch):
    """Every command loads this model."""
    monkeypatch.setattr("transformer_jax.translation.load.load_run", lambda *_: model)
    return model


def messages(err):
    """The lines on stderr but one kind: a model with random weights never ends a translation."""
    return [line for line in err.splitlines() if "its translation was cut off at" not in line]
