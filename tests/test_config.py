"""The schema's content: the paper's defaults, contradictions, every file in configs/, every option within reach."""

import json

import pytest

from tests.support.places import ROOT
from tests.support.small_runs import experiment
from transformer_jax import config as configuration
from transformer_jax import schema
from transformer_jax.commands import configuration as command_line
from transformer_jax.commands.inspect import options_table
from transformer_jax.config import (
    ExperimentConfig,
    addresses,
    default_config,
    from_config_dict,
    with_addresses,
)
from transformer_jax.errors import ConfigError
from transformer_jax.schema import with_values

OPTIONS = list(schema.options(ExperimentConfig))


@pytest.mark.parametrize("file", sorted(ROOT.glob("configs/*.py")), ids=lambda file: file.name)
def test_every_config_file_is_valid_and_opens_with_its_command(file):
    command_line.load(str(file), [])
    assert f"--config=configs/{file.name}" in file.read_text().partition('"""')[2].partition('"""')[0]


# Options that have an effect only beside another; typed alone they are refused.
NEEDED = {
    "data.task.": ("data.corpus", "copy"),
    "data.task.split": ("data.corpus", "scan"),
    "data.task.cut": ("data.corpus", "scan"),
    "data.task.cutoff": ("data.task.split", "length"),
    "data.task.language": ("data.corpus", "inflection"),
    "data.task.size": ("data.corpus", "inflection"),
    "model.gated_width": ("model.activation", "glu"),
    "model.max_length": ("model.positions", "learned"),
    "optimizer.final_fraction": ("optimizer.schedule", "cosine"),
    "optimizer.decay_fraction": ("optimizer.schedule", "wsd"),
}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.path)
def test_every_option_is_reachable_from_the_command_line(option, tmp_path):
    file = tmp_path / "defaults.py"
    file.write_text("from transformer_jax.config import default_config as get_config")
    text, value = "none" if option.default is None else str(option.default), option.default
    if option.default == ():
        value, text = ("a.py:a", "b.py:b"), "a.py:a,b.py:b"
    if option.path == "optimizer.groups":
        text, value = '[["table", {"weight_decay": 0}]]', (("table", {"weight_decay": 0}),)
    needed = [other for start, other in NEEDED.items() if option.path.startswith(start)]
    experiment = command_line.load(str(file), [*needed, (option.path, text)])
    assert schema.value_at(experiment, option.path) == value


def test_every_option_is_documented():
    assert all(option.meaning for option in OPTIONS)
    assert all(f"| `{option.path}` |" in options_table() for option in OPTIONS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train__eval_every": 6}, "train.until_flat = 0.005 needs at least 20 validations, and steps = 100 has one "),
        ({"optimizer__schedule": "linear"}, "train.until_flat = 0.005 and optimizer.schedule = linear: at the end of "),
        ({"optimizer__schedule": "cosine"}, "train.until_flat = 0.005 and optimizer.schedule = cosine: at the end of "),
    ],
)
def test_ending_a_run_where_its_loss_is_flat_is_refused_where_that_means_nothing(changes, message):
    usual = {"train__until_flat": 0.005, "train__steps": 100, "train__eval_every": 5, "train__keep_best": 0}
    usual["optimizer__warmup_steps"] = 10
    experiment(**usual)
    with pytest.raises(ConfigError) as error:
        experiment(**{**usual, **changes})
    (line,) = error.value.problems
    assert line.startswith(message)


@pytest.mark.parametrize(
    "changes", [{"optimizer__name": "sgd"}, {"optimizer__groups": (("kernel$", {"name": "sgd"}),)}]
)
def test_mup_is_refused_with_an_optimizer_that_it_has_no_learning_rates_for(changes):
    with pytest.raises(
        ConfigError, match=r"optimizer.name = sgd: muP \(model.mup_base_d_model\) has .* for adam, adamw"
    ):
        experiment(model__mup_base_d_model=8, **changes)


def test_json_round_trip():
    experiment = configuration.from_config_dict({"model": {"d_k": 16, "norm": "pre"}, "seed": 3})
    assert configuration.from_json(configuration.to_json(experiment)) == experiment
    assert json.loads(configuration.to_json(experiment))["model"]["d_k"] == 16


def test_a_removed_option_is_left_out_at_its_old_default_only(monkeypatch):
    monkeypatch.setitem(configuration.REMOVED, "data.colour", ("red",))
    assert from_config_dict({"data": {"colour": ["red"]}}) == ExperimentConfig()
    with pytest.raises(ConfigError) as error:
        from_config_dict({"data": {"colour": "blue"}, "sede": 1})
    removed, unknown = error.value.problems
    assert removed.startswith("data.colour = 'blue': this option was removed") and unknown.startswith("sede: ")


def test_a_run_that_was_reported_to_a_removed_tracker_loads():
    values = schema.to_dict(ExperimentConfig())
    values["train"]["tracker"] = "mlflow"
    assert configuration.from_json(json.dumps(values)) == ExperimentConfig()


def test_config_dict_is_the_face():
    config = configuration.default_config()
    config.model.num_heads = 4
    assert configuration.from_config_dict(config).model.num_heads == 4


def test_what_decodes_is_not_refused_where_a_run_is_begun():
    """A later command may decode with it."""
    config = default_config()
    assert configuration.why_unused("decode.temperature", [from_config_dict(config)]) is not None
    assert configuration.unused_options(["decode.temperature", "model.dropout"], [from_config_dict(config)]) == []


def test_an_option_is_refused_only_if_none_of_several_experiments_uses_it():
    plain, learned = (from_config_dict({"model": {"positions": kind}}) for kind in ("sinusoidal", "learned"))
    assert configuration.unused_options(["model.max_length"], [plain, learned]) == []
    assert configuration.unused_options(["model.max_length"], [plain]) == [
        "--config.model.max_length: has no effect here: it needs model.positions = learned, or custom positions"
    ]


def test_what_each_option_affects_is_declared_with_it():
    """Every list of options that matter for a purpose is derived from these."""
    affects = {option.path: option.affects for option in OPTIONS}
    assert {path for path, effect in affects.items() if effect == "environment"} == {
        "data.directory", "data.tfds_data_dir",
        "train.hours", "train.tensorboard", "train.tracker", "train.compile_cache", "train.peak_flops",
    }  # fmt: skip
    computation = {path for path, effect in affects.items() if effect == "computation"}
    assert {path for path in computation if not path.startswith("mesh.")} == {
        "model.attention_implementation", "train.accumulate", "train.rematerialize", "decode.tokens_per_batch",
    }  # fmt: skip
    assert {affects[path] for path in ("train.loss", "train.label_smoothing", "data.order_seed", "seed")} == {"result"}
    assert affects["data.seed"] == affects["model.vocab_size"] == affects["data.cleaning.max_ratio"] == "data"


def test_every_condition_can_be_asked_of_a_config():
    config = from_config_dict({})
    assert {option.has_effect(config) for option in OPTIONS} == {True, False}


CUSTOM = experiment(train__loss="mine.py:loss", decode__metrics=("a.py:exact", "b.py:words"))


def test_every_address_is_found_with_its_option():
    assert sorted(addresses(CUSTOM)) == [
        ("decode.metrics", "a.py:exact"),
        ("decode.metrics", "b.py:words"),
        ("train.loss", "mine.py:loss"),
    ]
    assert list(addresses(experiment())) == []


def test_addresses_are_changed_and_nothing_else():
    moved = with_addresses(CUSTOM, lambda option, address: f"/code/{option.path}/{address}")
    assert moved.train.loss == "/code/train.loss/mine.py:loss"
    assert moved.decode.metrics == ("/code/decode.metrics/a.py:exact", "/code/decode.metrics/b.py:words")
    assert with_addresses(moved, lambda option, address: address.rpartition("/")[2]) == CUSTOM


def test_numbers_take_the_place_of_a_configs_own():
    config = ExperimentConfig()
    changed = with_values(config, {"seed": 5, "model.dropout": 0.5, "model.parts.attention": "x"})
    assert (changed.seed, changed.model.dropout, changed.model.parts.attention) == (5, 0.5, "x")
    assert (config.seed, config.model.dropout, config.model.parts.attention) == (0, 0.1, None)
    assert changed.train is config.train


def test_batches_are_padded_with_zero():
    with pytest.raises(ConfigError, match=r"^model\.pad_id = 3: batches are padded with 0"):
        experiment(model__pad_id=3)
