"""metrics.jsonl: what is written and what is read back; which of its scores is the best."""

import datetime
import json
import os
import types

import pytest

from tests.support.small_runs import experiment
from transformer_jax.errors import BadInput
from transformer_jax.runs import metrics as metrics_module
from transformer_jax.runs.metrics import (
    Criterion,
    MetricsFile,
    count_text,
    cut_after,
    duration,
    last_lines,
    metrics_lines,
    newest_metrics,
    read_metrics,
    validations_since_best,
)


def test_a_number_that_json_lacks_is_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path, tensorboard=False) as metrics:
        metrics.write(5, {"loss": 2.0, "perplexity": float("inf"), "accuracy": float("nan"), "mfu": None})
    (line,) = read_metrics(path)
    assert datetime.datetime.fromisoformat(line.pop("time")).utcoffset() == datetime.timedelta(0)
    assert line == {"step": 5, "loss": 2.0, "perplexity": None, "accuracy": None, "mfu": None}


def test_only_the_first_process_writes(tmp_path):
    with MetricsFile(tmp_path / "metrics.jsonl", tensorboard=True, writes=False) as metrics:
        metrics.begin(-1)
        metrics.write(5, {"loss": 2.0})
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_drops_what_it_writes_again(tmp_path, monkeypatch):
    path, purged, drawn = tmp_path / "metrics.jsonl", [], []
    board = types.SimpleNamespace(log=lambda step, values: drawn.append(step), finish=lambda: None)
    monkeypatch.setattr(
        "transformer_jax.runs.board.Board", lambda place, purge_step: purged.append(purge_step) or board
    )
    for begin, steps in ((-1, (5, 10, 15)), (10, (15, 20))):
        with MetricsFile(path, tensorboard=True) as metrics:
            metrics.begin(begin)
            for step in steps:
                metrics.write(step, {"loss": 1.0})
    assert [line["step"] for line in read_metrics(path)] == [5, 10, 15, 20]
    assert purged == [0, 11] and drawn == [5, 10, 15, 15, 20]


def test_what_is_synced_is_on_the_disk(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino) or fsync(file))
    with MetricsFile(tmp_path / "metrics.jsonl", tensorboard=False) as metrics:
        metrics.sync()
        metrics.write(5, {"loss": 2.0})
        metrics.sync()
    assert synced == [path.stat().st_ino for path in (tmp_path / "metrics.jsonl", tmp_path)]


def test_metrics_are_not_written_through_a_link(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "metrics.jsonl").symlink_to("mine")
    with MetricsFile(tmp_path / "metrics.jsonl", tensorboard=False) as metrics:
        for write in (lambda: metrics.begin(0), lambda: metrics.write(5, {"loss": 2.0})):
            with pytest.raises(BadInput, match=r"metrics\.jsonl"):
                write()
    assert (tmp_path / "mine").read_text() == "mine"


def test_an_unfinished_line_is_removed_and_other_damage_is_named(tmp_path):
    path, problems = tmp_path / "metrics.jsonl", []
    path.write_text('{"step": 5}\n{"st\0\0\n{"step": 10}\n{"step": 1')
    assert [line["step"] for line in metrics_lines(path, problems)] == [5, 10]
    assert problems == [f"{path}: line 2 is not JSON"]
    with MetricsFile(path, tensorboard=False) as metrics:
        metrics.begin(10)
        metrics.write(15, {"loss": 1.0})
    assert [line["step"] for line in read_metrics(path)] == [5, 10, 15]


@pytest.mark.parametrize(
    "value", ['"3.0"', '"NaN"', "NaN", "-Infinity", "1e999", "1" + "0" * 400, "true", "[1]", '{"loss": 2}']
)
def test_values_that_are_no_numbers_are_left_out_and_named(tmp_path, value):
    path, problems = tmp_path / "metrics.jsonl", []
    path.write_text(f'{{"step": 1, "seconds": 2.0, "mfu": null, "loss": {value}}}\n' * 2 + '{"step": 4}\n')
    assert [*metrics_lines(path, problems)] == [{"step": 1, "seconds": 2.0, "mfu": None}] * 2 + [{"step": 4}]
    (problem,) = problems
    assert f"{path}: line 1 has loss = " in problem and problem.endswith("; 2 lines are damaged")


DAMAGED = [
    b'{"step": -1}',
    b'{"step": true}',
    b'{"step": 1.5}',
    b'{"loss": 2}',
    b"[" * 999,
    b'{"step": 1' + b"0" * 30 + b"}",
]


def test_from_the_end_the_lines_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_module, "LONGEST_LINE", 10_000)
    path = tmp_path / "metrics.jsonl"
    good = [json.dumps({"step": step, "loss": 1.0 * step}).encode() for step in (0, 5, 5, 10, 15)]
    lines = [good[0], *DAMAGED, *good[1:4], b"", b"\0" * 99, b"x" * 20_000, good[4]]
    for end in (b"", b"\n"):
        path.write_bytes(b"\n".join(lines) + end)
        assert [*newest_metrics(path)] == read_metrics(path)[::-1]
        assert [line["step"] for line in last_lines(path, 12)] == [10]
        assert [line["step"] for line in last_lines(path, 5)] == [5, 5]
        with monkeypatch.context() as patched:
            patched.setattr(metrics_module, "END_BYTES", 40)
            assert [line["step"] for line in newest_metrics(path)] == [15]
        for step, left in ((99, lines), (10, lines[: lines.index(good[3]) + 1]), (4, lines[:1]), (-1, [])):
            path.write_bytes(b"\n".join(lines) + end)
            cut_after(path, step)
            assert path.read_bytes() == b"".join(line + b"\n" for line in left)


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


def test_durations_and_counts_are_readable():
    assert [duration(seconds) for seconds in (45, 720, 12_000)] == ["45 s", "12 min", "3 h 20 min"]
    counts = [count_text(count) for count in (999, 999_600, 9.997e14, 63_100_000, 1500, 36_992, 370_000, 2e12, 3.3e18)]
    assert counts == ["999", "1.00 M", "1e15", "63.1 M", "1.50 k", "37.0 k", "370 k", "2.00 T", "3.3e18"]


VALUES = [(2.0, 0.1), (1.5, 0.4), (1.7, 0.3), (1.6, 0.2)]
LINES = [
    {"step": 5, "loss": 9.0, "accuracy": 0.9},
    *({"step": 10 * i, "valid_loss": loss, "valid_accuracy": right} for i, (loss, right) in enumerate(VALUES, 1)),
]
LOSS, ACCURACY = Criterion("valid_loss", "lowest"), Criterion("valid_accuracy", "highest")


def test_scores_of_validations():
    assert LOSS.scores(LINES, 30) == {10: -2.0, 20: -1.5, 30: -1.7}
    assert ACCURACY.scores(LINES, 40) == {10: 0.1, 20: 0.4, 30: 0.3, 40: 0.2}
    assert validations_since_best(ACCURACY.scores(LINES, 40)) == 2
    assert Criterion("accuracy", "highest").scores(LINES, 40) == {}  # a line about training
    assert validations_since_best({}) == 0


def test_a_validation_without_a_finite_score_is_none_the_better():
    assert validations_since_best(LOSS.scores([*LINES, {"step": 50, "valid_loss": None}], 50)) == 3
    assert LOSS.score(float("nan")) is None and LOSS.score(float("inf")) is None


def test_another_criterion_starts_anew():
    here = ACCURACY.after(LOSS, step=20)
    assert not here.compares_with(LOSS) and here.scores(LINES, 40) == {30: 0.3, 40: 0.2}
    assert ACCURACY.after(here, step=30) == here


def test_the_criterion_of_a_checkpoint():
    here = ACCURACY.after(LOSS, step=20)
    assert Criterion(**json.loads(json.dumps(here._asdict()))) == here


@pytest.mark.parametrize(
    ("metric", "best_is", "found"),
    [
        ("valid_loss", None, "lowest"),
        ("valid_perplexity", None, "lowest"),
        ("valid_accuracy", None, "highest"),
        ("bleu", None, "highest"),
        ("words", None, "highest"),
        ("words", "lowest", "lowest"),
    ],
)
def test_each_metric_has_a_direction(metric, best_is, found):
    assert measured(train__best_metric=metric, train__best_is=best_is).best_is == found


def measured(**changes) -> Criterion:
    values = {"decode__bleu_sentences": 5, "train__best_metric": "bleu"}
    config = experiment(**{**values, **changes})
    return Criterion.of(config.train, config.decode, "texts")


@pytest.mark.parametrize("change", [{"decode__beam": 2}, {"decode__bleu_sentences": 6}, {"decode__sample": True}])
@pytest.mark.parametrize("metric", ["bleu", "exact_match"])
def test_translations_searched_for_otherwise_do_not_compare(metric, change):
    assert not measured(train__best_metric=metric, **change).compares_with(measured(train__best_metric=metric))


def test_what_changes_no_score_changes_no_criterion():
    same = measured(decode__tokens_per_batch=7, decode__n_best=2, train__steps=20, train__log_every=3)
    assert same.after(measured(), 20) == measured()
    losses = [measured(train__best_metric="valid_loss", **change) for change in ({}, {"decode__beam": 2})]
    assert losses[0].compares_with(losses[1])


def test_a_changed_metric_does_not_compare(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def words(hypotheses, references): return 1.0")
    changes = {"decode__metrics": (f"{file}:words",), "train__best_metric": "words"}
    before = measured(**changes)
    file.write_text("def words(hypotheses, references): return 1.0  # a comment")
    assert measured(**changes).compares_with(before)
    file.write_text("def words(hypotheses, references): return 2.0")
    assert not measured(**changes).compares_with(before)
