"""metrics.jsonl: what is written and what is read back."""

import json

import pytest

from transformer_jax.runs.metrics import Metrics, count_text, duration, read_metrics


def test_a_number_that_json_lacks_is_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with Metrics(path, tensorboard=False) as metrics:
        metrics.write(5, {"loss": 2.0, "perplexity": float("inf"), "accuracy": float("nan"), "mfu": None})
    assert read_metrics(path) == [{"step": 5, "loss": 2.0, "perplexity": None, "accuracy": None, "mfu": None}]
    assert json.loads(path.read_text())["perplexity"] is None


def test_only_the_first_process_writes(tmp_path):
    with Metrics(tmp_path / "metrics.jsonl", tensorboard=True, writes=False) as metrics:
        metrics.write(5, {"loss": 2.0})
    assert list(tmp_path.iterdir()) == []


def test_only_lines_of_metrics_are_read(tmp_path):
    lines = [
        b'{"step": 1, "loss": 2.0}',
        b"5",
        b'{"loss": 1.0}',
        b"\xff\xfe",
        b"[1]",
        b'{"step": 2}',
        b'{"step": 3, "lo',
    ]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines))
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "loss": 2.0}, {"step": 2}]


def test_durations_are_readable():
    assert [duration(seconds) for seconds in (45, 720, 12_000)] == ["45 s", "12 min", "3 h 20 min"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (999, "999"),
        (63_100_000, "63.1 M"),
        (1500, "1.50 k"),
        (36_992, "37.0 k"),
        (370_000, "370 k"),
        (2e12, "2.00 T"),
        (3.3e18, "3.3e18"),
    ],
)
def test_counts_are_short(count, text):
    assert count_text(count) == text
