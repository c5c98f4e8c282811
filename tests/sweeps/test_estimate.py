"""How long a sweep will take: from one update of each variant, or from what its finished runs took."""

import pytest

from tests.support.sweep_runs import FOUR, defined, pretend_finished
from transformer_jax.data.prepare import prepare
from transformer_jax.sweeps import estimate
from transformer_jax.sweeps.estimate import Counts, Work
from transformer_jax.sweeps.local import Slot


@pytest.fixture
def runs(folder):
    return folder.runs(defined(FOUR, seeds=2, overrides=[("train.compile_cache", "cache")]))


def test_an_update_stands_for_the_whole_run(runs):
    """12 updates and two validations; validation and tests are a forward pass, the tests a search as well."""
    counts = Counts(programs=2, other_programs=5, tokens=600.0, validation=1200.0, validation_search=0.0, tests=300.0)
    timed = {"start": 5.0, "compile": 10.0, "update": 6.0}
    work = Work(runs[0], 12)
    search = 300 * estimate.SEARCH * 0.01
    first = 5 + 10 * (2 + 5 * estimate.OTHER_PROGRAM) + 12 * 6 + 2 * 4 + 1 + search
    assert estimate.seconds_by_timing(work, counts, timed, is_first=True) == pytest.approx(first)
    later = estimate.seconds_by_timing(work, counts, timed, is_first=False)
    assert first - later == pytest.approx(40 * (1 - estimate.CACHED)), "seeds share compiled programs"


def test_programs_and_tokens_are_those_of_the_prepared_data(runs, tmp_path):
    config = runs[0].experiment
    prepared = prepare(config, tmp_path / "data")
    counts = estimate.counts(config, prepared.directory, ("test",))
    assert (counts.programs, counts.validation_search) == (1, 0.0)
    assert 0 < counts.tokens <= 2 * config.data.tokens_per_batch and counts.tests < counts.validation
    assert estimate.counts(config, None, ("test",)).tokens == 2 * config.data.tokens_per_batch


def test_finished_runs_are_the_measure_of_their_variant_and_of_others(runs):
    own, other = Work(runs[2], 12), Work(runs[1], 12)
    assert runs[2].variant == runs[0].variant != runs[1].variant
    finished = [(runs[0], 90.0)]
    assert estimate.seconds_by_finished(own, finished) == 90.0
    assert estimate.seconds_by_finished(other, finished) == pytest.approx(90.0)  # as many FLOPs
    assert estimate.seconds_by_finished(other._replace(updates=6), finished) == pytest.approx(45.0)


def test_runs_of_one_program_share_its_seconds(runs):
    pretend_finished(runs[0], together=3)
    runs[0].record_attempt(tries=1, started="2026-01-01T10:00:00+00:00", ended="2026-01-01T10:01:30+00:00")
    assert estimate.seconds_taken(runs[0]) == 30.0
    runs[0].record_attempt(tries=2)
    assert estimate.seconds_taken(runs[0]) is None


def test_an_update_is_compiled_and_timed_in_a_process_of_its_own(runs, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    config = runs[0].experiment
    prepared = prepare(config, tmp_path / "data")
    (seconds,) = estimate.timed_updates({"a": config}, {"a": prepared.directory}, Slot()).values()
    assert all(value > 0 for value in seconds.values()) and seconds["update"] < seconds["compile"], seconds
