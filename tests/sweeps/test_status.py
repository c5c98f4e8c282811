"""Status: what is shown of a sweep's runs, on a terminal and without one."""

import dataclasses
import datetime
import io
import json
import os

import pytest

from tests.support.sweep_runs import BASE, defined, pretend_finished
from transformer_jax.sweeps import status
from transformer_jax.sweeps.folder import SweepFolder


def jobs_of(folder, *variants, **changes):
    return [[run] for run in folder.runs(defined(*variants, **changes))]


def test_where_a_run_stands(folder):
    ((run,),) = jobs_of(folder)
    assert status.status_of(run).state == "waiting"
    with run.held():
        run.record_attempt(state="running", host=os.uname().nodename)
        lines = [{"step": 5, "loss": 2.5, "seconds": 10.0}, {"step": 6, "valid_loss": 2.4, "bleu": 7.0}]
        run.folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
        now = status.status_of(run)
        assert (now.state, now.step, now.steps) == ("running", 6, 12)
        assert (now.loss, now.bleu, now.seconds_left) == (2.5, 7.0, 14.0)
        assert "2.500 train  7.000 valid" in status.table([now])
        with open(run.folder.metrics, "a") as file:
            file.write(json.dumps({"step": 12, "loss": 2.0, "seconds": 1.0}) + "\n")
        assert status.status_of(run).state == "measuring"
    assert status.status_of(run).state == "interrupted"  # nobody holds it any more
    run.record_attempt(state="failed", error="no\nroom")
    assert status.status_of(run).error == "no\nroom"
    assert "base, seed 0 failed:\n    no\n    room\n" in status.failure(status.status_of(run))
    pretend_finished(run, loss=1.5)
    now = status.status_of(run)
    assert (now.state, now.loss, now.bleu) == ("finished", 1.5, 50.0)
    assert "1.500 valid  50.00 test" in status.table([now])
    run = dataclasses.replace(run, tests=("test_long", "test"))
    pretend_finished(run, loss=1.5)
    assert "1.500 valid  50.00 test_long" in status.table([status.status_of(run)])


@pytest.mark.parametrize(
    ("primary", "valid", "test"),
    [("perplexity", "1.500 valid", "1.250 test"), ("exact_match", "25.00 valid", "20.00 test"), ("count", "", "7.000")],
)
def test_the_score_that_is_shown_is_by_the_primary_metric(folder, primary, valid, test):
    ((run,),) = jobs_of(folder)
    run = dataclasses.replace(run, primary=primary)
    run.path.mkdir(parents=True)
    run.folder.metrics.write_text('{"step": 6, "valid_perplexity": 1.5, "bleu": 7.0, "exact_match": 25.0}\n')
    assert valid in status.table([status.status_of(run)])
    pretend_finished(run)
    now = status.status_of(run)
    heading, row = status.table([now]).splitlines()
    assert primary in heading and test in row and now.to_json()["bleu"] == 50.0


@pytest.mark.parametrize(("started", "logged", "age"), [(900, None, 900), (9, 900, 9), (900, 9, 9)])
def test_a_run_is_silent_since_its_last_line_or_since_it_was_started(folder, started, logged, age):
    ((run,),) = jobs_of(folder)
    now = datetime.datetime.now(datetime.UTC)
    run.record_attempt(
        state="running", host="elsewhere", started=(now - datetime.timedelta(seconds=started)).isoformat()
    )
    if logged is not None:
        run.folder.metrics.write_text('{"step": 5}\n')
        os.utime(run.folder.metrics, (now.timestamp() - logged,) * 2)
    assert status.status_of(run).age == pytest.approx(age, abs=3)


def test_odd_values_in_a_log_end_no_status(folder):
    ((run,),) = jobs_of(folder)
    run.path.mkdir(parents=True)
    with run.held():
        run.record_attempt(state="running", host=os.uname().nodename)
        for odd in ('"loss": "3.0"', '"loss": 1.0, "secondr": 1.0', '"loss": [1], "seconds": {}', '"seconds": 1e308'):
            run.folder.metrics.write_text(f'{{"step": 2, {odd}}}\n{{"step": 3, {odd}}}\n')
            assert status.table([status.status_of(run)]).splitlines()[1].split()[3:5] == ["running", "3/12"]


def test_a_line_at_each_change_and_a_run_that_ran_is_not_waiting_again(folder):
    """It has saved and stopped before its process has ended."""
    ((run,),) = jobs_of(folder)
    run.path.mkdir(parents=True)
    run.record_attempt(state="stopped", error="by SIGINT")
    progress = status.Progress([run], io.StringIO())
    progress.pending = {run.run_id: "waiting"}
    assert [at.state for at in progress.statuses()] == ["waiting"]  # what it came to before
    with run.held():
        run.record_attempt(state="running", host=os.uname().nodename)
        progress.show_changes(now=True)
        progress.show_changes(now=True)
        run.record_attempt(state="stopped", error="by SIGINT")
        progress.show_changes(now=True)
    assert [line.split("  ")[2] for line in progress.stream.getvalue().splitlines()] == ["running", "stopped"]


@pytest.mark.parametrize(
    ("attempt", "state"),
    [
        ({"state": "running", "host": "elsewhere"}, ("running", "")),
        ({"state": "stopped", "error": "by SIGTERM"}, ("stopped", "by SIGTERM")),
        ({"state": "diverged", "error": "at step 7"}, ("diverged", "at step 7")),
        ({"state": "finished"}, ("waiting", "")),  # the sweep asks for more than it did then
    ],
)
def test_the_state_of_an_unfinished_run(tmp_path, attempt, state):
    assert status.state_of(tmp_path, attempt) == state


def test_the_share_of_a_run_is_that_of_its_last_update(tmp_path):
    base = {**BASE, "train": {**BASE["train"], "steps": 100_000, "epochs": 0.5}}
    (run,) = SweepFolder(tmp_path).runs(defined(base=base))
    run.path.mkdir(parents=True)
    assert status.status_of(run).steps == 100_000  # as long as nothing is known
    run.folder.record(run.experiment, 19)
    (run.path / "metrics.jsonl").write_text('{"step": 19, "loss": 1.0, "seconds": 1.0}\n')
    run.record_attempt(state="running", host="another machine", pid=1)
    standing = status.status_of(run)
    assert (standing.steps, standing.step, standing.state) == (19, 19, "measuring")
