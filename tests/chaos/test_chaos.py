"""A short bad week, the same every time; `make drill` and `python -m tests.chaos --hours=2` have long ones."""

import subprocess
import sys

import pytest

from tests.support.places import ROOT
from tests.support.training_runs import environment

HARMS = ("kills", "stops by SIGTERM", "stops by SIGINT", "suspensions", "corruptions")


@pytest.mark.slow
def test_a_short_bad_week():
    options = ["--seed=27", "--runs=1", "--variants=plain", "--only=interrupted_training"]
    command = [sys.executable, "-m", "tests.chaos", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment())
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr}"
    lines = (line.rpartition("  ") for line in done.stdout.splitlines() if line[-1:].isdecimal())
    counts = {name.strip(): count.strip() for name, _, count in lines}
    assert counts["violations"] == "0"
    # Which of them meet it at work is a matter of the machine's speed.
    assert sum(int(counts.get(name, 0)) for name in HARMS) >= 1
