"""Running jobs: retries, --fail-fast and signals, whatever the processes are."""

import io

import pytest

from tests.support.sweep_runs import FOUR, defined, pretend_finished
from transformer_jax.processes.signals import StopSignals
from transformer_jax.sweeps.jobs import run_jobs
from transformer_jax.sweeps.process import Outcome
from transformer_jax.sweeps.status import Display


class FakePool:
    """Runs go as `script` says, one state an attempt; "long" runs until it is stopped."""

    seconds_between_polls = 0.0

    def __init__(self, script, slots):
        self.script, self.slots = script, slots
        self.running, self.started, self.stopped = [], [], False

    def start(self, jobs):
        free = self.slots - len(self.running)
        for job in jobs[:free]:
            self.started.append([run.address for run in job])
            self.running += [(run, self.script.get(run.address, ["finished"]).pop(0)) for run in job]
        return jobs[free:]

    def is_busy(self):
        return bool(self.running)

    def ended(self):
        over = [(run, state) for run, state in self.running if state != "long" or self.stopped]
        self.running = [item for item in self.running if item not in over]
        for run, state in over:
            if state == "finished":
                pretend_finished(run)
            yield run, Outcome("stopped" if state == "long" else state, "why")

    def stop(self):
        self.stopped = True


@pytest.fixture
def states(folder):
    """Runs the runs of a definition one by one; returns (the state of each, the pool)."""

    def states(definition, script, slots=1, signals=None, **options):
        runs, pool = folder.runs(definition), FakePool(script, slots)
        display = Display(runs, io.StringIO())
        run_jobs(pool, [[run] for run in runs], display, signals or StopSignals(), **options)
        return {address: status.state for address, status in display.statuses().items()}, pool

    return states


def test_a_failure_affects_no_other_run(states):
    found, _ = states(defined(FOUR), {"base/seed-0": ["failed"]})
    assert found == {"base/seed-0": "failed", "h-=-4/seed-0": "finished"}


def test_retries(states):
    script = {"base/seed-0": ["failed", "failed", "finished"], "h-=-4/seed-0": ["failed"] * 4}
    found, pool = states(defined(FOUR), script, retries=2)
    assert found == {"base/seed-0": "finished", "h-=-4/seed-0": "failed"}
    assert pool.started.count(["h-=-4/seed-0"]) == 3


def test_fail_fast_stops_the_others(states):
    script = {"base/seed-0": ["long"], "h-=-4/seed-0": ["failed"]}
    found, _ = states(defined(FOUR, seeds=2), script, slots=2, fail_fast=True)
    assert found == {
        "base/seed-0": "stopped",
        "h-=-4/seed-0": "failed",
        "base/seed-1": "waiting",
        "h-=-4/seed-1": "waiting",
    }


def test_a_signal_stops_all(states):
    signals = StopSignals()
    signals.asked = "by SIGINT"
    found, pool = states(defined(FOUR), {}, signals=signals)
    assert set(found.values()) == {"waiting"} and pool.stopped and pool.started == []


def test_a_process_that_died_silently_is_recorded_as_failed(states, folder):
    (run,) = folder.runs(defined())
    run.path.mkdir(parents=True)
    run.record_attempt(state="running", tries=1)
    states(defined(), {"base/seed-0": ["failed"]})
    assert run.attempt()["state"] == "failed" and run.attempt()["error"] == "why" and run.attempt()["tries"] == 1
