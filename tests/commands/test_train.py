"""train: what it says and returns at the end. Training itself: tests/training and tests/test_experiment.py."""

import types
from pathlib import Path

import pytest

from tests.support.small_runs import experiment
from transformer_jax import cli


@pytest.mark.parametrize(("final", "status"), [(True, 0), (False, 75)])
def test_the_end_names_the_next_command_unless_the_run_is_to_be_resumed(final, status, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("transformer_jax.experiment.train_run", lambda *_, **__: types.SimpleNamespace(final=final))
    assert cli.main(["train", "--config=preset:demo", f"--workdir={tmp_path}"]) == status
    assert (f"next: transformer-jax evaluate --workdir={tmp_path}" in capsys.readouterr().err) == final


@pytest.mark.parametrize(("rate", "is_known"), [("0.004", True), ("none", False)])
def test_the_first_weights_warn_of_a_peak_rate_that_is_known(rate, is_known, tmp_path, monkeypatch, capsys):
    other = types.SimpleNamespace(config=experiment(), tokenizers={"source": Path("tokenizer.json")}, params=None)
    monkeypatch.setattr("transformer_jax.translation.load.read_weights", lambda *_: other)
    monkeypatch.setattr("transformer_jax.experiment.train_run", lambda *_, **__: types.SimpleNamespace(final=True))
    options = (f"--config.optimizer.learning_rate={rate}", "--config.optimizer.warmup_share=0.1")
    assert cli.main(["train", "--config=preset:demo", f"--workdir={tmp_path}", "--init-from=other", *options]) == 0
    assert ("the peak learning rate is" in capsys.readouterr().err) == is_known
