"""The checks of `make accelerators`, and its small models where their compilers are installed."""

import json

import jax
import pytest

from tests.accelerators import examine, matrix

TEXT = matrix.FILE.read_text()
MATRIX = matrix.load(TEXT)
REPORT = {
    "memory": {"state": 3e9, "temporary": 2e9},
    "capacity": 16e9,
    "accessed": 7e9,
    "flops": 1e12,
    "collectives": [{"kind": "all-reduce", "axes": ["data"], "count": 3, "asynchronous": 2, "in_loop": False}],
    "copied_in_loops": 2_000_000,
    "host_transfers": 0,
    "attention_kernels": {"__cudnn$fmhaSoftmax": 18},
}
ROW = matrix.recorded({"name": "one", "config": "base", "target": "8xH100"}, REPORT)


def test_the_table_is_written_as_it_is_read():
    assert matrix.text(MATRIX, TEXT) == TEXT
    assert len({row["name"] for row in MATRIX["rows"]}) == len(MATRIX["rows"])


def test_a_report_that_was_recorded_is_as_expected():
    assert matrix.broken(ROW, REPORT) == []
    less = REPORT | {"memory": {"state": 3e9, "temporary": 1e9}, "accessed": 7.1e9}
    assert matrix.broken(ROW, less) == []


SYNCHRONOUS = {"kind": "all-reduce", "axes": ["data"], "count": 3, "asynchronous": 0, "in_loop": True}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"capacity": 4e9}, "needs 5 GB of 4 GB"),
        ({"memory": {"state": 3e9, "temporary": 2.1e9}}, "temporary is"),
        ({"accessed": 8e9}, "traffic is"),
        ({"copied_in_loops": 38e6}, "copied is"),
        ({"host_transfers": 1}, "waits for the host"),
        ({"attention_kernels": {}}, "kernels is []"),
        ({"collectives": [SYNCHRONOUS]}, "messages is"),
    ],
)
def test_each_broken_expectation_is_named(change, problem):
    (found,) = matrix.broken(ROW, REPORT | change)
    assert found.startswith(problem)


@pytest.fixture
def as_users_compile():
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


IN_SHORT = ("small, 8 v5e", "small, 1 H100")
SMALL = [row for row in MATRIX["rows"] if row.get("quick")]


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=row["name"], marks=() if row["name"] in IN_SHORT else pytest.mark.drill) for row in SMALL],
)
def test_small_models(row, as_users_compile, capsys):
    platform = matrix.platform(row)
    if matrix.compilers(platform) != MATRIX["compilers"][platform]:
        pytest.skip(f"needs {MATRIX['compilers'][platform]}")
    examine.main(*matrix.command(MATRIX, row))
    assert matrix.broken(row, json.loads(capsys.readouterr().out)) == []
