"""A finished sweep and its report, made once, and a smaller one that each test may damage."""

import shutil

import pytest

from tests.support.finished_sweeps import VARIANTS, Report, make_sweep


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """The report of a finished sweep with two test sets."""
    return Report(make_sweep(tmp_path_factory.mktemp("whole") / "sweep", tests=("test", "test_long")))


@pytest.fixture(scope="session")
def _small_sweep(tmp_path_factory):
    return make_sweep(tmp_path_factory.mktemp("small") / "sweep", VARIANTS[:3], seeds=(0, 1), sentences=20)


@pytest.fixture
def sweep(_small_sweep, tmp_path):
    """A finished sweep of three variants with two seeds, to be damaged."""
    return shutil.copytree(_small_sweep, tmp_path / "sweep", symlinks=True)
