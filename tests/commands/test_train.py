"""train: what it says and returns at the end. Training itself: tests/training and tests/test_experiment.py."""

import types
from pathlib import Path

import pytest

from tests.support.small_runs import experiment
from transformer_jax import cli
from transformer_jax.commands.train import what_must_agree
from transformer_jax.processes.distributed import numeric_options


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


def test_processes_compare_flags_options_code_and_what_rounds_numbers(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    flags = dict.fromkeys(("init_weights", "init_from", "accept_changed_code", "must_resume", "profile", "debug_nans"))
    of_flags, of_options = (
        types.SimpleNamespace(**flags | {"must_resume": True}),
        experiment(train__label_smoothing=0.2),
    )
    facts = {**numeric_options(), **what_must_agree(of_flags, of_options)}
    assert facts["--must-resume"] and facts["train.label_smoothing"] == 0.2 and "fast_math" in facts["XLA_FLAGS"]
    assert {"transformer_jax_sha256", "jax", "jax_default_prng_impl", "jax_default_matmul_precision"} <= facts.keys()
