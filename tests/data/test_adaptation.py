"""Options that adapt to a small text."""

import dataclasses

import pytest

from tests.support.prepared_data import PAIRS, write_text
from transformer_jax import cli, experiment
from transformer_jax.commands import configuration
from transformer_jax.config import ExperimentConfig
from transformer_jax.data import adaptation
from transformer_jax.data.prepare import prepare
from transformer_jax.data_config import ADAPTABLE
from transformer_jax.errors import ConfigError
from transformer_jax.runs.folder import RunFolder
from transformer_jax.schema import value_at


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """The options that name a small text and its prepared data."""
    folder = tmp_path_factory.mktemp("texts")
    source, target = write_text(folder, "train", PAIRS)
    return [("data.source", source), ("data.target", target), ("data.directory", str(folder / "data"))]


def trained_config(monkeypatch, folder, options) -> ExperimentConfig:
    """The config that `transformer-jax train --config=preset:text` with these options trains with, and records."""
    trained = []

    def train(config, prepared, folder, evaluators, params, probes):
        folder.record(config)
        trained.append(config)

    monkeypatch.setattr(experiment, "train", train)
    options = [f"--config.{path}={value}" for path, value in options]
    assert cli.main(["train", "--config=preset:text", f"--workdir={folder}", *options]) == 0
    assert RunFolder(folder).load_config().train == trained[0].train
    return trained[0]


def test_every_option_that_the_command_line_does_not_set_adapts(monkeypatch, tmp_path, texts, capsys):
    preset = configuration.load("preset:text", texts)
    config = trained_config(monkeypatch, tmp_path / "run", texts)
    said = capsys.readouterr().err
    for path in ADAPTABLE:
        assert value_at(config, path) < value_at(preset, path)
        assert f"{path} = {value_at(config, path)} instead of {value_at(preset, path)}: " in said
    assert (
        said.count("as the command line does not set them") == said.count("would only memorize") == 1
        and said.count(": for the same reason") == 3
    )
    assert config.train.steps >= 10 * config.optimizer.warmup_steps

    set_ones = [("train.steps", "700"), ("train.eval_every", "30"), ("model.d_model", "512"), ("data.num_shapes", "5")]
    config = trained_config(monkeypatch, tmp_path / "other", texts + set_ones)
    assert capsys.readouterr().err.count("as the command line does not set them") == 1
    assert (config.train.steps, config.model.d_model, config.data.num_shapes) == (700, 512, 5)
    assert (config.train.eval_every, config.train.checkpoint_every, config.optimizer.warmup_steps) == (30, 30, 70)
    assert not {path for path, _ in set_ones} & set(config.data.adapt)


def test_a_run_that_is_resumed_keeps_its_values_whatever_the_text_is_now(monkeypatch, tmp_path, texts, capsys):
    first = trained_config(monkeypatch, tmp_path, texts)
    capsys.readouterr()
    (tmp_path / "checkpoints" / "45").mkdir(parents=True)
    monkeypatch.setattr(adaptation, "SMALL", 0)
    assert trained_config(monkeypatch, tmp_path, texts) == first
    assert "adapted" not in capsys.readouterr().err
    longer = trained_config(monkeypatch, tmp_path, [*texts, ("train.steps", "9000")])
    assert longer.train.steps == 9000
    assert longer.optimizer == first.optimizer


def test_nothing_changes_for_a_large_text_or_without_permission(monkeypatch, texts):
    config = configuration.load("preset:text", texts)
    prepared = prepare(config, config.data.directory)
    fixed = dataclasses.replace(config, data=dataclasses.replace(config.data, adapt=()))
    assert adaptation.adapted(fixed, prepared, None).config == fixed
    monkeypatch.setattr(adaptation, "SMALL", 100)
    assert adaptation.adapted(config, prepared, None).config == config


@pytest.mark.parametrize(
    ("options", "changed", "value"),
    [
        ({"train.steps": "100"}, "optimizer.warmup_steps", 10),
        ({"optimizer.warmup_steps": "30000"}, "train.steps", 60_000),
        ({"train.eval_every": "300"}, "train.checkpoint_every", 600),
        ({"train.checkpoint_every": "300"}, "train.eval_every", 300),
    ],
)
def test_options_that_contradict_one_that_was_set_adapt_to_it(options, changed, value, capsys):
    before, after = (configuration.load("preset:text", given) for given in ([], [*options.items()]))
    assert value_at(after, changed) == value
    _, line = capsys.readouterr().err.splitlines()
    assert line.startswith(f"  {changed} = {value} instead of {value_at(before, changed)}: ")


def test_values_that_contradict_each_other_are_refused_in_one_message(texts):
    options = {"train.steps": "100", "optimizer.warmup_steps": "500", "train.eval_every": "30"}
    options |= {"train.checkpoint_every": "100", "model.vocab_size": "9000"}
    with pytest.raises(ConfigError) as refused:
        configuration.load("preset:text", [*texts, *options.items()], with_text=True)
    begins = ["--config.train.checkpoint_every = 100", "--config.optimizer.warmup_steps = 500"]
    begins += ["--config.model.vocab_size = 9000: the training text supports between"]
    assert [problem[: len(begin)] for problem, begin in zip(refused.value.problems, begins, strict=True)] == begins


def test_only_options_that_have_a_rule_can_adapt():
    with pytest.raises(ConfigError, match=r"adapt: 'model\.dropout' does not adapt to a text; these do: model\."):
        configuration.load("preset:text", [("data.adapt", "model.dropout")])


def test_a_run_until_its_loss_is_flat_gets_enough_validations(monkeypatch, tmp_path, texts):
    options = [*texts, ("optimizer.schedule", "constant"), ("train.until_flat", "0.005")]
    config = trained_config(monkeypatch, tmp_path / "run", options)
    assert config.train.steps >= 20 * config.train.eval_every


def test_what_the_command_line_sets_does_not_adapt_however_a_file_lists_it(tmp_path, texts):
    file = tmp_path / "mine.py"
    file.write_text("def get_config():\n    return {'data': {'adapt': 'data.num_shapes,model.d_ff'}}\n")
    assert configuration.load(str(file), [*texts, ("data.num_shapes", "7")]).data.adapt == ("model.d_ff",)
    assert configuration.load(str(file), [*texts, ("data.adapt", "none")]).data.adapt == ()
