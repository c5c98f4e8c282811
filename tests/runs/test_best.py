"""Scores belong to a criterion: a metric, which end of it is best, and how it is measured."""

import json

import pytest

from tests.support.small_runs import experiment
from transformer_jax.runs.best import Best, Criterion, best_of

VALUES = [(2.0, 0.1, 49), (1.5, 0.4, 48), (1.7, 0.3, 47), (1.6, 0.2, 46)]
LINES = [
    {"step": 5, "loss": 9.0, "accuracy": 0.9},
    *(
        {"step": 10 * number, "valid_loss": loss, "valid_accuracy": accuracy, "bleu": bleu}
        for number, (loss, accuracy, bleu) in enumerate(VALUES, 1)
    ),
]
LOSS, ACCURACY = Criterion("valid_loss", "lowest"), Criterion("valid_accuracy", "highest")


def test_scores_of_validations():
    assert LOSS.scores(LINES, 30) == {10: -2.0, 20: -1.5, 30: -1.7}
    assert ACCURACY.scores(LINES, 40) == {10: 0.1, 20: 0.4, 30: 0.3, 40: 0.2}
    assert best_of(ACCURACY.scores(LINES, 40)) == Best(0.4, 2)
    assert Criterion("accuracy", "highest").scores(LINES, 40) == {}  # a line about training


def test_a_validation_without_a_finite_score_is_none_the_better():
    lines = [*LINES, {"step": 50, "valid_loss": None}]
    assert best_of(LOSS.scores(lines, 50)) == Best(-1.5, 3)
    assert LOSS.score(float("nan")) is None and LOSS.score(float("inf")) is None


def test_another_criterion_starts_anew():
    here = ACCURACY.after(LOSS, step=20)
    assert not here.compares_with(LOSS) and here.scores(LINES, 40) == {30: 0.3, 40: 0.2}
    assert ACCURACY.after(here, step=30) == here


def test_the_criterion_of_a_checkpoint():
    here = ACCURACY.after(LOSS, step=20)
    assert Criterion.noted(json.loads(json.dumps({"best": here._asdict()}))) == here
    old = {"metric": "bleu", "best_is": "highest", "measured": {"bleu": ["12ab", 7], "exact_match": ["34cd", 0]}}
    assert Criterion.noted({"best": old}) == ("bleu", "highest", "12ab", 7)
    assert Criterion.noted({"best": {**old, "metric": "valid_loss"}}) == ("valid_loss", "highest", "", 0)


def measured(**changes) -> Criterion:
    values = {"decode__bleu_sentences": 5, "train__best_metric": "bleu", "train__best_is": "highest"}
    config = experiment(**{**values, **changes})
    return Criterion.of(config.train, config.decode, "texts")


@pytest.mark.parametrize(
    "changes", [{"decode__beam": 2}, {"decode__bleu_sentences": 6}, {"decode__sample": True}, {"decode__alpha": 1.0}]
)
@pytest.mark.parametrize("metric", ["bleu", "exact_match"])
def test_translations_searched_for_otherwise_do_not_compare(metric, changes):
    before = measured(train__best_metric=metric)
    assert not measured(train__best_metric=metric, **changes).compares_with(before)


def test_what_changes_no_score_changes_no_criterion():
    same = measured(decode__tokens_per_batch=7, decode__n_best=2, train__steps=20, train__log_every=3)
    assert same.after(measured(), 20) == measured()
    assert measured(train__best_metric="valid_loss", decode__beam=2).compares_with(
        measured(train__best_metric="valid_loss")
    )


def test_a_changed_metric_does_not_compare(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def words(hypotheses, references): return 1.0")
    changes = {"decode__metrics": (f"{file}:words",), "train__best_metric": "words"}
    before = measured(**changes)
    file.write_text("def words(hypotheses, references): return 1.0  # a comment")
    assert measured(**changes).compares_with(before)
    file.write_text("def words(hypotheses, references): return 2.0")
    assert not measured(**changes).compares_with(before)
