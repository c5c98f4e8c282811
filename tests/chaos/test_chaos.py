"""A case of fault injection, always the same; `make drill` and `python -m tests.chaos --hours=2` have many."""

import subprocess
import sys

import pytest

from tests.support.places import ROOT
from tests.support.training_runs import environment


@pytest.mark.parametrize("case", ["interrupted_training", pytest.param("failing_training", marks=pytest.mark.drill)])
def test_a_case(case):
    options = ["--seed=2", "--runs=1", "--variants=plain", f"--only={case}"]
    command = [sys.executable, "-m", "tests.chaos", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment())
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr}"
    if "no C compiler" in done.stdout:
        pytest.skip("there is no C compiler")
    assert f"cases: {case.replace('_', ' ')}" in done.stdout
    if case == "interrupted_training":
        assert "resumed at last" in done.stdout
