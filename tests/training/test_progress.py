"""What is printed of a running training: tokens per second of this process's steps, and the time that is left."""

import re
from types import SimpleNamespace

import pytest

from transformer_jax.config import ExperimentConfig, TrainConfig
from transformer_jax.training import progress


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


LINE = {
    "seconds": 10.0,
    "loss": 2.0,
    "perplexity": 7.4,
    "learning_rate": 1e-3,
    "target_tokens_per_second": 500.0,
    "data_wait": 0.0,
}


def started(step, clock):
    numbers, prefetcher = SimpleNamespace(pairs=10, source_tokens=80, target_tokens=90), SimpleNamespace(data_wait=0.0)
    config = ExperimentConfig(train=TrainConfig(peak_flops=1e12))
    return progress.Throughput(config, numbers, 1, clock, prefetcher, step)


def test_after_a_resumption_only_the_steps_made_since_count(clock):
    measure = started(180, clock)
    clock.now = 2.0
    # A line about 101 to 200, of which another process made the first 80.
    first = measure.rates(measure.lap(200), 8000, 9000, 100)
    assert (first["source_tokens_per_second"], first["target_tokens_per_second"]) == (800, 900)
    clock.now = 12.0
    second = measure.rates(measure.lap(300), 8000, 9000, 100)
    assert second["target_tokens_per_second"] == 900
    assert first["mfu"] == pytest.approx(second["mfu"])


def test_the_wait_for_data_is_the_share_of_its_interval(clock):
    measure = started(0, clock)
    for waited, share in ((2.0, 0.2), (3.0, 0.1)):
        clock.now += 10.0
        measure._prefetcher.data_wait = waited
        assert measure.rates(measure.lap(100), 0, 0, 100)["data_wait"] == pytest.approx(share)


def test_steps_that_were_left_out_do_not_make_it_faster(clock):
    measure = started(0, clock)
    clock.now = 10.0
    interval = measure.lap(100)
    assert measure.rates(interval, 0, 4500, 50)["target_tokens_per_second"] == 450
    assert measure.rates(interval, 0, 0, 0)["target_tokens_per_second"] == 0


def test_a_line_of_several_runs(clock, capsys):
    shown = progress.ProgressLine(0, 10, clock)
    clock.now += 5
    shown.report(10, [{**LINE, "perplexity": float("nan")}, LINE])
    line = capsys.readouterr().err
    assert line.startswith("2 runs  step      10  loss 2.000  ")
    assert "perplexity 7.40" in line and "1,000 tokens/s" in line
    assert re.search(r"  left 0 s  at \d\d:\d\d:\d\d\n$", line)
