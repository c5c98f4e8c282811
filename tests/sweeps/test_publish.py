"""The results of a sweep's run in TensorBoard's HParams and in its tracker."""

import json

import pytest

from tests.support.sweep_runs import FOUR, defined
from transformer_jax.sweeps import publish

RESULT = {
    "steps": 12,
    "valid": {"loss": 1.5},
    "tests": {"test": {"file": "translations/test.latest.json", "bleu": 50.0, "steps": [12]}},
}
TRACKER = """
import json

class Tracker:
    def __init__(self, run):
        self.path = run.folder + "/tracked"
        print(json.dumps([run.project, run.group, run.name]), file=open(self.path, "w"))

    def log(self, step, metrics):
        print(json.dumps([step, metrics]), file=open(self.path, "a"))

    def finish(self):
        pass
"""


@pytest.fixture
def published(folder, tmp_path):
    (tmp_path / "mine.py").write_text(TRACKER)

    def published(**train):
        options = [(f"train.{name}", value) for name, value in train.items()]
        definition = defined(FOUR, overrides=options)
        run = next(run for run in folder.runs(definition) if run.variant == "h = 4")
        run.path.mkdir(parents=True, exist_ok=True)
        publish.publish(run, definition, run.experiment, RESULT)
        return run.path

    return published


def test_scores_are_in_the_runs_record(published, tmp_path):
    path = published(tracker=f"{tmp_path}/mine.py:Tracker")
    assert [json.loads(line) for line in (path / "tracked").read_text().splitlines()] == [
        ["tiny", "h = 4", "h = 4, seed 0"],
        [12, {"test/bleu": 50.0, "valid/loss": 1.5}],
    ]


def test_tensorboard_has_hparams(published):
    path = published(tensorboard="true")
    (events,) = (path / "tensorboard/results").iterdir()
    content = events.read_bytes()
    for name in (b"variant", b"h = 4", b"model.num_heads", b"seed", b"test/bleu", b"_hparams_/session_start_info"):
        assert name in content


def test_what_fails_is_a_warning(published, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(TRACKER)
    monkeypatch.setattr("builtins.print", None)
    published(tracker=f"{tmp_path}/mine.py:Tracker")
    assert "warning: h = 4, seed 0: train.tracker = " in capsys.readouterr().err
