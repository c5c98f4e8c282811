"""A run of version 1.0.0 with its own attention (golden/run_1_0_0.tar.xz): it loads, translates, and trains on."""

import dataclasses
import tarfile

import jax
import numpy as np
import pytest

from tests.support.places import GOLDEN
from tests.support.training_runs import metrics
from transformer_jax import load_run
from transformer_jax.errors import BadInput
from transformer_jax.experiment import train_run
from transformer_jax.runs.folder import RunFolder


@pytest.fixture
def run(tmp_path, monkeypatch):
    with tarfile.open(GOLDEN / "run_1_0_0.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run_1_0_0"


def test_its_weights_score_as_they_did(run):
    """With the copy of its code; its export has the same weights."""
    (run.parent / "mine.py").unlink()
    model, exported = load_run(run), load_run(run / "averaged")
    scores = model.score([("a b c", "a b c"), ("d a", "d a")])
    assert [float(sum(score.token_log_probabilities)) for score in scores] == pytest.approx([-10.348766, -7.74955])
    jax.tree.map(np.testing.assert_array_equal, model.params, exported.params)


def test_its_edited_code_is_noticed(run):
    (run.parent / "mine.py").write_text((run.parent / "mine.py").read_text() + "    edited = True\n")
    with pytest.raises(BadInput, match="trained with other custom code"):
        RunFolder(run).holds_run(RunFolder(run).stored_config())
    assert "/run_1_0_0/code/" in RunFolder(run).load_config().model.parts.attention


def test_it_is_resumed(run):
    config = RunFolder(run).stored_config()
    train_run(dataclasses.replace(config, train=dataclasses.replace(config.train, steps=6)), run)
    (note,) = RunFolder(run).notes()  # of the other version of this library
    assert "transformer_jax_sha256 77c5f1e9a33c1b09" in note and "None" not in note
    training, validation = metrics(run)[-2:]
    assert (training["step"], validation["step"]) == (6, 6)
    assert training["loss"] == pytest.approx(2.3326873779296875, rel=1e-4)
    assert validation["valid_loss"] == pytest.approx(2.443800354003906, rel=1e-4)
