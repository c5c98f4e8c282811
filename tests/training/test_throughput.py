"""Tokens per second: of the steps that this process made, and of no others."""

import types

import pytest

from transformer_jax.config import ExperimentConfig
from transformer_jax.training import throughput


@pytest.fixture
def clock(monkeypatch):
    clock = types.SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(throughput, "time", clock)
    return clock


def started(step):
    config = ExperimentConfig()
    config = types.SimpleNamespace(model=config.model, train=types.SimpleNamespace(peak_flops=1e12))
    numbers = types.SimpleNamespace(pairs=10, source_tokens=80, target_tokens=90)
    measure = throughput.Throughput(config, numbers, devices=1)
    measure.start(types.SimpleNamespace(data_wait=0.0), step)
    return measure


def test_a_whole_lap_counts_all_its_tokens(clock):
    measure = started(100)
    clock.now = 10.0
    measure.lap(200)
    assert measure.rates(8000, 9000, 100)["target_tokens_per_second"] == 900


def test_after_a_resumption_only_the_steps_made_since_count(clock):
    measure = started(180)
    clock.now = 2.0
    measure.lap(200)  # a line about 101 to 200, of which another process made the first 80
    first = measure.rates(8000, 9000, 100)
    assert (first["source_tokens_per_second"], first["target_tokens_per_second"]) == (800, 900)
    clock.now = 12.0
    measure.lap(300)
    second = measure.rates(8000, 9000, 100)
    assert second["target_tokens_per_second"] == 900
    assert first["mfu"] == pytest.approx(second["mfu"])


def test_steps_that_were_left_out_do_not_make_it_faster(clock):
    measure = started(0)
    clock.now = 10.0
    measure.lap(100)
    assert measure.rates(0, 4500, 50)["target_tokens_per_second"] == 450
    assert measure.rates(0, 0, 0)["target_tokens_per_second"] == 0
