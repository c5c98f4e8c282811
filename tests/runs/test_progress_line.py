"""What a training says of itself while it goes on."""

import pytest

from transformer_jax.runs import metrics

LINE = {"loss": 2.0, "perplexity": 7.4, "learning_rate": 1e-3, "target_tokens_per_second": 500.0, "data_wait": 0.0}


class Clock:
    """Stands still until it is told."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(metrics, "time", clock)
    return clock


def test_what_is_left_goes_by_the_pace_of_late(clock, capsys):
    """Compiling counts at first, for nothing else is known; it fades, and so does a night in which all stood still."""
    told = []
    progress = metrics.ProgressLine(200, 1200)
    for step, seconds in (
        (300, 190.0),
        (400, 10.0),
        (500, 10.0),
        (600, 7210.0),
        *((n, 10.0) for n in range(700, 1200, 100)),
    ):
        clock.now += seconds
        progress.report(step, [LINE])
        told.append(capsys.readouterr().err.strip().rpartition("left ")[2])
    assert told == ["28 min", "13 min", "6 min", "6 h 3 min", "2 h 32 min", "61 min", "23 min", "8 min", "2 min"]


def test_of_several_runs_the_mean_and_all_their_tokens(clock, capsys):
    progress = metrics.ProgressLine(0, 10)
    clock.now += 5
    progress.report(10, [LINE, {**LINE, "loss": 3.0}])
    line = capsys.readouterr().err
    assert line.startswith("2 runs  step      10  loss 2.500  ")
    assert "1,000 tokens/s" in line
    assert line.endswith("left 0 s\n")
