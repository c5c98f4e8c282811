"""Scores belong to a criterion: a metric, which end of it is best, and how it is measured."""

import dataclasses
import json

import pytest

from tests.support.small_runs import experiment
from transformer_jax.runs.best import MEASURED_WITH, Best, Criterion, best_of, resumed

VALUES = [(2.0, 0.1, 49), (1.5, 0.4, 48), (1.7, 0.3, 47), (1.6, 0.2, 46)]
LINES = [
    {"step": 5, "loss": 9.0, "accuracy": 0.9},
    *(
        {"step": 10 * number, "valid_loss": loss, "valid_accuracy": accuracy, "bleu": bleu}
        for number, (loss, accuracy, bleu) in enumerate(VALUES, 1)
    ),
]
LOSS, ACCURACY = Criterion("valid_loss", "lowest"), Criterion("valid_accuracy", "highest")


def noted(criterion: Criterion, score: float) -> dict:
    """A checkpoint's record, as it is read back."""
    return {"score": score, "notes": json.loads(json.dumps({"best": dataclasses.asdict(criterion)}))}


def test_the_same_criterion_goes_by_what_it_remembers():
    assert resumed(LOSS, LOSS, Best(-1.5, 7), LINES, 40) == (Best(-1.5, 7), "")


def test_another_criterion_counts_as_if_from_the_start():
    best, message = resumed(ACCURACY, LOSS, Best(-1.5, 2), LINES, 40)
    assert best == Best(0.4, 2)
    assert message.startswith(
        "best is the highest valid_accuracy now, it was the lowest valid_loss: the best so far is "
    )
    assert message.endswith("that of 4 validations in metrics.jsonl")
    other_end = Criterion("valid_loss", "highest")
    assert resumed(other_end, LOSS, Best(-1.5, 2), LINES, 40)[0] == Best(2.0, 3)
    assert resumed(ACCURACY, LOSS, Best(-1.5, 2), LINES, 10)[0] == Best(0.1, 0)  # later lines are made again


def test_a_metric_that_no_line_has_is_unknown():
    best, message = resumed(Criterion("chrf", "highest"), LOSS, Best(-1.5, 2), LINES, 40)
    assert best == Best() and message.endswith("no earlier validation can be compared, there is no best yet")


def test_a_metric_of_a_line_about_training_is_no_validation():
    assert Criterion("accuracy", "highest").looked_up(LINES, 40) == {}


def test_a_validation_without_a_finite_score_is_none_the_better():
    lines = [*LINES, {"step": 50, "valid_loss": None}]
    assert best_of(LOSS.looked_up(lines, 50)) == Best(-1.5, 3)
    assert LOSS.score(float("nan")) is None and LOSS.score(float("inf")) is None


def measured(**changes) -> Criterion:
    values = {"decode__bleu_sentences": 5, "train__best_metric": "bleu", "train__best_is": "highest"}
    config = experiment(**{**values, **changes})
    return Criterion.of(config.train, config.decode, "texts")


@pytest.mark.parametrize(
    "changes", [{"decode__beam": 2}, {"decode__bleu_sentences": 6}, {"decode__sample": True}, {"decode__alpha": 1.0}]
)
def test_translations_searched_for_otherwise_do_not_compare(changes):
    before = measured()
    here = measured(**changes).after(before, step=20)
    assert not here.compares_with(before)
    assert resumed(here, before, Best(50.0, 3), LINES, 40) == (
        Best(47.0, 1),  # those since then, of steps 30 and 40
        "bleu is measured differently now: the best so far is that of 2 validations in metrics.jsonl",
    )
    assert resumed(here, before, Best(50.0, 3), LINES, 20)[0] == Best()


def test_an_option_that_earlier_versions_lacked_keeps_their_scores_comparable(monkeypatch):
    now, others = measured(), [name for name in MEASURED_WITH if name != "eos"]
    assert not measured(decode__eos="ignored").compares_with(now)
    monkeypatch.setattr("transformer_jax.runs.best.MEASURED_WITH", others)
    assert measured().compares_with(now)


def test_exact_match_of_translations_can_be_the_criterion():
    exact = measured(train__best_metric="exact_match")
    assert not measured(train__best_metric="exact_match", decode__beam=2).compares_with(exact)
    assert exact.score(80.0) > exact.score(70.0)


def test_what_changes_no_score_changes_no_criterion():
    same = measured(decode__tokens_per_batch=7, decode__n_best=2, train__steps=20, train__log_every=3)
    assert same.after(measured(), 20) == measured()


def test_a_changed_file_of_a_metric_does_not_compare(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def words(hypotheses, references): return 1.0")
    changes = {"decode__metrics": (f"{file}:words",), "train__best_metric": "words"}
    before = measured(**changes)
    file.write_text("def words(hypotheses, references): return 2.0")
    after = measured(**changes)
    assert not after.compares_with(before) and after.digest("bleu") == before.digest("bleu")


def test_checkpoints_are_ranked_by_one_criterion():
    """Those saved by another one have the score of their step's validation, or none."""
    records = {10: noted(LOSS, -2.0), 20: noted(LOSS, -1.5), 30: noted(ACCURACY, 0.3), 99: noted(ACCURACY, 0.9)}
    assert ACCURACY.scores(records, LINES) == {10: 0.1, 20: 0.4, 30: 0.3, 99: 0.9}
    assert LOSS.scores(records, LINES) == {10: -2.0, 20: -1.5, 30: -1.7}
    assert LOSS.scores(records, []) == {10: -2.0, 20: -1.5}
