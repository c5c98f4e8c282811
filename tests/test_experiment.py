"""Options that follow from the data, and `train --init-from`: another run's weights, model and tokenizers."""

import argparse
import dataclasses
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.support.marian_folders import change_json, unpacked
from tests.support.prepared_data import PAIRS, write_text
from tests.support.small_runs import experiment
from tests.support.training_runs import errors, train_here, weights
from transformer_jax import RMSNorm, from_marian, load_run
from transformer_jax.cli import main
from transformer_jax.commands import configuration
from transformer_jax.commands.train import initialised
from transformer_jax.config import to_json
from transformer_jax.data.batching import training_batches
from transformer_jax.data.prepare import prepare
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import EXIT_UNFINISHED, BadInput
from transformer_jax.experiment import in_updates, try_out, with_vocabulary
from transformer_jax.interop.marian_config import read_config
from transformer_jax.interop.marian_weights import layer_names
from transformer_jax.runs.export import flat, read_export
from transformer_jax.runs.folder import RunFolder


def test_a_part_is_given_by_its_address():
    """A class would be trained with, but config.json could not be read again."""
    with pytest.raises(BadInput, match=r"model\.parts\.norm: is a class.*file\.py:RMSNorm"):
        try_out(experiment(model__parts={"norm": RMSNorm}))


def test_a_metric_that_nobody_measures_is_told_before_data_is_prepared():
    try_out(experiment(train__best_metric="bleu", decode__bleu_sentences=10))
    with pytest.raises(BadInput, match="valid_los"):
        try_out(experiment(train__best_metric="valid_los"))


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A run of 2 steps."""
    folder = tmp_path_factory.mktemp("first") / "run"
    train_here(folder, "train.steps=2", "optimizer.warmup_steps=2")
    return folder


def train_from(workdir, other, *options, status=0):
    return train_here(workdir, "optimizer.warmup_steps=1", *options, flags=(f"--init-from={other}",), status=status)


def test_the_first_weights_are_the_others_and_the_model_is_too(first, tmp_path):
    """At a rate of nearly nothing they stay what they were. The same command resumes, also without the other run.

    It was stopped before its first step.
    """
    options = ("optimizer.learning_rate=1e-30", "model.dropout=0.3", "train.steps=1")
    theirs, other = weights(first), shutil.copytree(first, tmp_path / "other")
    train_from(tmp_path / "run", other, *options, "train.hours=1e-9", status=EXIT_UNFINISHED)
    assert load_run(tmp_path / "run").config.data.tokenizer_file == str(other / "data/tokenizer.json")
    shutil.rmtree(other)
    assert "is not read" not in (printed := train_from(tmp_path / "run", other, *options))
    assert "finished at step 1" in printed
    printed = train_from(tmp_path / "run", tmp_path / "third", *options)
    assert f"--init-from={tmp_path / 'third'} is not read: the run goes on, which began with {other}" in printed
    for name, array in weights(tmp_path / "run").items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    config = load_run(tmp_path / "run").config
    assert (config.model.dropout, config.model.d_model) == (0.3, 16)


def test_nothing_is_prepared_for_another_run(first, tmp_path):
    """Not even where the data of the run is elsewhere, and its folder has none."""
    options = ("train.steps=2", "optimizer.warmup_steps=2", "model.d_ff=48", f"data.directory={tmp_path / 'data'}")
    assert errors(train_here(first, *options, status=2))[-1] == "error:   model.d_ff: 32 there, 48 here"
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("rate", "is_warned_of"), [("none", True), ("3e-4", False)])
def test_fine_tuning_at_the_rate_of_a_new_model_is_warned_of(rate, is_warned_of, first, capsys):
    overrides = [("optimizer.learning_rate", rate)]
    arguments = {"workdir": "new", "init_from": str(first), "init_weights": None, "config": "preset:copy"}
    initialised(argparse.Namespace(**arguments, overrides=overrides))
    assert ("a tenth" in capsys.readouterr().err) == is_warned_of


@pytest.mark.parametrize("count", [100, 500])
def test_the_preset_for_own_text_scales_with_the_text(count, tmp_path):
    """Its numbers of updates are shares of the run; a resumed run has the same ones."""
    source, target = write_text(tmp_path, "train", PAIRS[:count])
    config = configuration.load("preset:text", [("data.source", source), ("data.target", target)])
    prepared = prepare(config, tmp_path / "data")
    folder = RunFolder(tmp_path / "run")
    resolved = in_updates(with_vocabulary(config, prepared), prepared, folder)
    updates = 200 * training_batches(config.data, prepared.pairs("train")).steps_per_epoch
    assert resolved.optimizer.warmup_steps == updates // 10
    assert resolved.train.eval_every == resolved.train.checkpoint_every == updates // 20
    assert resolved.train.log_every <= resolved.train.eval_every
    assert in_updates(resolved, prepared, folder) == resolved
    # It is resumed to be made longer: the learning rates so far stay those of the run.
    (folder.checkpoints / "7").mkdir(parents=True)
    folder.config.write_text(to_json(resolved))
    longer = dataclasses.replace(config, train=dataclasses.replace(config.train, epochs=400))
    again = in_updates(with_vocabulary(longer, prepared), prepared, folder)
    assert again.optimizer == resolved.optimizer and again.train.eval_every == 2 * resolved.train.eval_every


def test_a_long_run_keeps_its_intervals(tmp_path):
    source, target = write_text(tmp_path, "train", PAIRS)
    options = {"train.epochs": "1e9", "optimizer.warmup_share": "none", "optimizer.warmup_steps": "77"}
    texts = [("data.source", source), ("data.target", target)]
    config = configuration.load("preset:text", [*texts, *options.items()])
    prepared = prepare(config, tmp_path / "data")
    assert in_updates(config, prepared, RunFolder(tmp_path / "run")) == config


def test_another_size_on_the_command_line_is_refused(first, tmp_path):
    printed = errors(train_from(tmp_path / "run", first, "model.d_ff=48", status=2))
    assert "--init-from: weights of another model than the config's" in printed[-1]
    assert not (tmp_path / "run/config.json").exists()


def random_marian(folder, d_model=32):
    """A folder with the tokenizers that Hugging Face wrote, and a model that has learnt nothing yet."""
    unpacked("shared", folder)
    size = {"d_model": d_model, "encoder_layers": 1, "encoder_ffn_dim": d_model, "decoder_ffn_dim": d_model}
    change_json(folder / "config.json", **size, encoder_attention_heads=4, decoder_attention_heads=4, dropout=0.0)
    marian, dice = read_config(folder), np.random.default_rng(0)
    arrays = {name: dice.normal(size=shape) * shape[-1] ** -0.5 for _, name, shape in layer_names(marian.model)}
    arrays["model.shared.weight"] = dice.normal(size=(marian.source_tokens, d_model)) * d_model**-0.5
    arrays["model.shared.weight"][marian.pad_id] = 0
    arrays["final_logits_bias"] = np.zeros((1, marian.target_tokens))
    save_file({name: array.astype(np.float32) for name, array in arrays.items()}, folder / "model.safetensors")
    return folder


def test_an_imported_model_is_tuned_and_goes_back_to_where_it_came_from(tmp_path):
    """With two SentencePiece models over one table."""
    imported, finer = tmp_path / "imported", tmp_path / "finer"
    assert main(["import", "marian", str(random_marian(tmp_path / "folder")), f"--workdir={imported}"]) == 0
    source, target = write_text(tmp_path, "train", PAIRS[:200])
    options = ["data.corpus=", f"data.source={source}", f"data.target={target}", "train.steps=2"]
    train_from(finer, imported, *options)
    model = load_run(finer)
    assert model.config.model.target_vocab_size is None
    assert model.target_tokenizer.fingerprint != model.tokenizer.fingerprint
    before, after = flat(read_export(imported)[1]), weights(finer)
    assert not np.array_equal(before["output_bias"], after["output_bias"])

    assert main(["export", f"--workdir={finer}", f"--output={tmp_path / 'back'}", "--format=marian"]) == 0
    texts = Prepared.open(finer / "data").texts("valid")[0][:5]
    search = {"beam": 1, "renormalize": True, "extra_length": 20, "max_length": 20}
    assert from_marian(tmp_path / "back").translate(texts, **search) == model.translate(texts, **search)
