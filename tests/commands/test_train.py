"""train: what it says and returns at the end. Training itself: tests/training and tests/test_experiment.py."""

import types

import pytest

from transformer_jax import cli


@pytest.mark.parametrize(("final", "status"), [(True, 0), (False, 75)])
def test_the_end_names_the_next_command_unless_the_run_is_to_be_resumed(final, status, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("transformer_jax.experiment.train_run", lambda *_, **__: types.SimpleNamespace(final=final))
    assert cli.main(["train", "--config=preset:demo", f"--workdir={tmp_path}"]) == status
    assert (f"next: transformer-jax evaluate --workdir={tmp_path}" in capsys.readouterr().err) == final
