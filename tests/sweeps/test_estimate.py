"""How long a sweep will take: from parts that were timed, or from what its finished runs took."""

import json

import pytest

from tests.support.sweep_runs import FOUR, PARTS, defined, pretend_finished
from transformer_jax.files.atomic import write_json
from transformer_jax.sweeps import estimate
from transformer_jax.sweeps.spec import training_flops

# 12 updates, a validation and a checkpoint every 6, and what no part has.
RUN = 12 * 0.5 + 2 * 2.0 + 2 * 1.0 + 10.0 + estimate.REST


@pytest.fixture
def runs(folder):
    return folder.runs(defined(FOUR, seeds=2, overrides=[("train.compile_cache", "cache")]))


def test_parts_add_up_to_runs_and_runs_to_a_sweep(runs):
    pace = estimate.TimedPace([(1.0, PARTS)])
    works = estimate.left(runs, {"base": 12, "h = 4": 12})
    assert [pace.seconds(work) for work in works] == [RUN + 40] * 2 + [RUN + 4] * 2, "seeds share compiled programs"
    assert estimate.total(works, pace, 1, None) == 4 * (RUN + 5) + 2 * 40 + 2 * 4
    assert estimate.total(works, pace, 2, None) == 2 * (RUN + 5) + 40 + 4
    assert estimate.total(works, pace, 8, None) == RUN + 5 + 40
    assert estimate.total(works[1:], pace, 2, None) == RUN + 5 + 40, "the longest first"
    assert estimate.total(works[:1], pace, 8, None) == RUN + 5 + 40


def test_a_run_that_was_interrupted_has_less_left(folder, runs):
    run = runs[0]
    run.path.mkdir(parents=True)
    run.folder.metrics.write_text('{"step": 6, "loss": 3.0, "seconds": 1.0}\n')
    works = estimate.left(runs, {"base": None, "h = 4": 12})
    expected = [(6, False), (12, True), (12, False), (12, False)]
    assert [(work.updates, work.compiles) for work in works] == expected, "it left its programs in the cache"
    pretend_finished(runs[3])
    works = estimate.left(runs, {"base": None, "h = 4": 12})
    assert [(work.updates, work.compiles) for work in works] == [(6, False), (12, False), (12, False)]
    uncached = folder.runs(defined(FOUR, seeds=2, overrides=[("train.compile_cache", "none")]))
    assert all(work.compiles for work in estimate.left(uncached, {"base": 12, "h = 4": 12}))


def test_parts_between_two_timed_configs(runs):
    costly = {**PARTS, "update": 1.5, "start": 9.0}
    pace = estimate.TimedPace([(1.0, PARTS), (3.0, costly)])
    (work, *_) = estimate.left(runs, {"base": 12, "h = 4": 12})
    assert pace.seconds(work._replace(flops=2.0)) == RUN + 40 + 12 * 0.5
    assert (pace.start, pace.preparation) == (5.0, 7.0)


def test_slow_updates_are_estimated_by_their_flops(folder, runs, monkeypatch):
    asked = []
    monkeypatch.setattr(estimate, "timed", lambda _, work, *__: asked.append(work) or {"start": 5.0, "rate": 2e9})
    works = [work._replace(flops=4e12) for work in estimate.left(runs, {"base": 12, "h = 4": 12})]
    works[0] = works[0]._replace(flops=1e9)
    pace = estimate.pace_of(folder, defined(FOUR, seeds=2), runs, works, None)
    assert [work.flops for work in asked] == [4e12], "the cheapest is not asked for either"
    assert pace.seconds(works[0]) == 12 * 0.5 + estimate.REST and pace.seconds(works[1]) == 12 * 2000 + estimate.REST
    assert "would take about 33 min; estimated from FLOPs" in pace.words()[0] and "2.00 GFLOP/s" in pace.words()[1]


def test_seconds_are_durations():
    assert [estimate.short(seconds) for seconds in (0.034, 4.21, 34.2, 4100.0)] == [
        "0.034 s",
        "4.2 s",
        "34 s",
        "68 min",
    ]


def test_finished_runs_are_the_measure_if_they_had_the_same_cores(folder, runs, monkeypatch):
    monkeypatch.setattr(estimate, "slots", lambda jobs: [estimate.Slot((0, 1))])
    monkeypatch.setattr(estimate, "timed", lambda *_: PARTS)
    definition = defined(FOUR, seeds=2)
    for run, seconds, cores in ((runs[0], 60.0, "2 CPU cores"), (runs[1], 20.0, "4 CPU cores")):
        pretend_finished(run, seconds=seconds, devices=cores)
        run.record_attempt(tries=1, started="2026-01-01T10:00:00+00:00", ended="2026-01-01T10:01:30+00:00")
    works = estimate.left(runs, {"base": 12, "h = 4": 12})
    pace = estimate.pace_of(folder, definition, runs, works, None)
    work = works[0]._replace(updates=6, flops=2 * training_flops(runs[0].experiment, 1))
    assert pace.seconds(work) == pytest.approx(30 + 60.0), "half the updates, twice the FLOPs"
    other = works[1]._replace(updates=12, flops=work.flops)
    assert pace.seconds(other) == pytest.approx(30 + 120.0), "its own variant's run had other cores"
    runs[2].path.mkdir(parents=True)
    pretend_finished(runs[2], seconds=60.0, devices="2 CPU cores")
    runs[2].record_attempt(tries=1, started="2026-01-01T10:00:00+00:00", ended="2026-01-01T10:01:10+00:00")
    pace = estimate.pace_of(folder, definition, runs, works, None)
    assert pace.seconds(work._replace(compiles=True)) - pace.seconds(work._replace(compiles=False)) == 20, "to compile"
    result = runs[2].path / "result.json"
    write_json(result, {**json.loads(result.read_text()), "train_seconds": 63.0, "compile_seconds": 6.0})
    recorded = estimate.pace_of(folder, definition, runs, works, None)
    assert pace.seconds(work) - recorded.seconds(work) == pytest.approx(6), "only the first run of a variant compiles"
    for run in runs[:3]:
        run.record_attempt(tries=2)
    timed = estimate.pace_of(folder, definition, runs, works, None)
    assert isinstance(timed, estimate.TimedPace)


def test_runs_of_one_program_share_its_seconds(runs):
    pretend_finished(runs[0], devices="2 CPU cores", together=3)
    runs[0].record_attempt(tries=1, started="2026-01-01T10:00:00+00:00", ended="2026-01-01T10:01:30+00:00")
    assert estimate.seconds_taken(runs[0], estimate.Slot((0, 1))) == 30.0
    assert estimate.seconds_taken(runs[0], estimate.Slot((0,))) is None
