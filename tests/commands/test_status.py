"""status: the runs of a sweep. Of a single run: tests/runs/test_state.py."""

import json
import os
import time

import pytest

from tests.support.sweep_runs import experiment_file, pretend_finished
from transformer_jax import cli
from transformer_jax.errors import EXIT_UNFINISHED
from transformer_jax.sweeps import resolved
from transformer_jax.sweeps.folder import SweepFolder


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    experiment_file(tmp_path, "Variant('h = 4', {'model.num_heads': 4})", seeds=2)


@pytest.fixture
def run(capsys):
    """Runs the command; returns (exit status, stdout)."""

    def run(*arguments):
        status = cli.main(["status", "sweep", *arguments])
        return status, capsys.readouterr().out

    return run


def test_the_runs_of_a_sweep(run, place):
    definition = resolved.load("experiment.py")
    folder = SweepFolder("sweep")
    folder.save(definition)
    base, four, *_ = folder.runs(definition)
    pretend_finished(base)
    four.path.mkdir(parents=True)
    four.record_attempt(state="failed", error="it fell over")
    status, out = run()
    assert status == 1 and out.splitlines()[0].split() == ["run", "state", "step", "loss", "BLEU", "left"]
    assert "h = 4, seed 0 failed:\n    it fell over\n    its log: sweep/runs/h-=-4/seed-0/log.txt" in out
    assert out.splitlines()[-1] == "1 finished, 2 waiting, 1 failed"
    four.record_attempt(state="running", host="node7")
    four.folder.metrics.write_text('{"step": 5, "loss": 2.5, "seconds": 1.0}\n')
    os.utime(four.folder.metrics, (0, time.time() - 60))
    status, out = run("--json")
    first, second, *_ = json.loads(out)
    assert status == EXIT_UNFINISHED
    assert (first["run"], first["state"], first["step"]) == ("base/seed-0", "finished", 12)
    assert (second["state"], second["host"], second["step"]) == ("running", "node7", 5)
    assert second["seconds_since_step"] > 59
    for each in folder.runs(definition):
        pretend_finished(each)
    assert run()[0] == 0


def test_a_rate_that_diverges_is_no_failure_while_others_are_tried(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    experiment_file(tmp_path, "Variant('h = 4', {'model.num_heads': 4})", seeds=1)
    folder, definition = SweepFolder("sweep"), resolved.load("experiment.py", tune=(1.0, 2.0))
    folder.save(definition)
    tuning = [each for each in folder.all_runs(definition) if each.setting is not None and each.variant == "h = 4"]
    tuning[0].path.mkdir(parents=True)
    tuning[0].record_attempt(state="diverged", error="NaN")
    assert run()[0] == EXIT_UNFINISHED
    for each in tuning[1:]:
        each.path.mkdir(parents=True)
        each.record_attempt(state="diverged", error="NaN")
    assert run()[0] == 1
