"""The schema's content: the paper's defaults, contradictions, every file in configs/, every option within reach."""

import json

import pytest

from tests.support.places import ROOT
from transformer_jax import ModelConfig, schema
from transformer_jax import config as configuration
from transformer_jax.commands import configuration as command_line
from transformer_jax.commands.inspect import options_table
from transformer_jax.config import ExperimentConfig, default_config, from_config_dict
from transformer_jax.errors import ConfigError

OPTIONS = list(schema.options(ExperimentConfig))


def test_defaults_are_the_papers():
    base = ModelConfig.base()
    assert (base.num_encoder_layers, base.num_decoder_layers, base.d_model, base.d_ff) == (6, 6, 512, 2048)
    assert (base.num_heads, base.key_size, base.value_size, base.dropout) == (8, 64, 64, 0.1)
    assert (base.norm, base.activation, base.positions, base.tie_embeddings) == ("post", "relu", "sinusoidal", "all")
    assert (base.attention_bias, base.ffn_bias, base.attention_dropout, base.activation_dropout) == (False, True, 0, 0)


def test_variants_by_their_names_in_table_3():
    assert ModelConfig.variant("B d_k=16").key_size == 16
    assert ModelConfig.variant("B d_k=16").value_size == 64
    assert ModelConfig.variant("A h=32").key_size == 16
    assert ModelConfig.variant("C d_model=1024").key_size == 128
    assert ModelConfig.variant("D eps_ls=0") == ModelConfig.base()  # changes only the training
    assert ModelConfig.big(100).num_heads == 16
    with pytest.raises(ConfigError, match="did you mean B d_k=16"):
        ModelConfig.variant("B d_k=17")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_heads": 7}, "num_heads = 7 does not divide d_model = 512: set d_k and d_v, or num_heads to 8"),
        ({"num_heads": 7, "d_k": 16}, "num_heads = 7 does not divide d_model = 512: set d_v, or num_heads to 8"),
        ({"positions": "rotary", "d_k": 15}, "d_k = 15 is odd"),
        ({"d_model": 511, "num_heads": 1}, "d_model = 511 is odd"),
        ({"target_vocab_size": 99}, "target_vocab_size = 99 asks for a second"),
        ({"vocab_size": 10, "pad_id": 10}, "pad_id = 10 is outside a vocabulary of 10"),
        ({"dropout": 1.0}, "dropout = 1.0: must be at least 0 and below 1"),
        ({"norm": "prae"}, "norm = 'prae': did you mean pre?"),
    ],
)
def test_contradictions_name_both_numbers(changes, told):
    with pytest.raises(ConfigError, match=told.replace("?", r"\?")):
        ModelConfig(**changes)


def test_heads_need_not_divide_when_their_widths_are_given():
    assert ModelConfig(num_heads=7, d_k=16, d_v=8).key_size == 16


@pytest.mark.parametrize("file", sorted(ROOT.glob("configs/*.py")), ids=lambda file: file.name)
def test_every_config_file_is_valid_and_opens_with_its_command(file):
    command_line.load(str(file), [])
    assert f"--config=configs/{file.name}" in file.read_text().partition('"""')[2].partition('"""')[0]


# Options that have an effect only beside another; typed alone they are refused.
NEEDED = {
    "data.task.": ("data.corpus", "copy"),
    "model.max_length": ("model.positions", "learned"),
    "optimizer.final_fraction": ("optimizer.schedule", "cosine"),
}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.path)
def test_every_option_is_reachable_from_the_command_line(option, tmp_path):
    file = tmp_path / "defaults.py"
    file.write_text("from transformer_jax.config import default_config as get_config")
    text, value = "none" if option.default is None else str(option.default), option.default
    if option.default == ():
        text, value = "a.py:a,b.py:b", ("a.py:a", "b.py:b")
    needed = [other for start, other in NEEDED.items() if option.path.startswith(start)]
    experiment = command_line.load(str(file), [*needed, (option.path, text)])
    assert schema.value_at(experiment, option.path) == value


def test_every_option_is_documented():
    assert all(option.meaning for option in OPTIONS)
    written = (ROOT / "docs/options.md").read_text()
    assert options_table() in written, "docs/options.md is stale: transformer-jax inspect --options"


def test_json_round_trip():
    experiment = configuration.from_config_dict({"model": {"d_k": 16, "norm": "pre"}, "seed": 3})
    assert configuration.from_json(configuration.to_json(experiment)) == experiment
    assert json.loads(configuration.to_json(experiment))["model"]["d_k"] == 16


def test_config_dict_is_the_face():
    config = configuration.default_config()
    config.model.num_heads = 4
    assert configuration.from_config_dict(config).model.num_heads == 4


def test_what_decodes_is_not_refused_where_a_run_is_begun():
    """It becomes the run's own way to decode, which a later command may use."""
    config = default_config()
    assert configuration.why_unused("decode.temperature", [from_config_dict(config)]) is not None
    assert configuration.unused_options(["decode.temperature", "model.dropout"], [from_config_dict(config)]) == []


def test_an_option_is_refused_only_if_none_of_several_experiments_uses_it():
    plain, learned = (from_config_dict({"model": {"positions": kind}}) for kind in ("sinusoidal", "learned"))
    assert configuration.unused_options(["model.max_length"], [plain, learned]) == []
    assert configuration.unused_options(["model.max_length"], [plain]) == [
        "--config.model.max_length: has no effect here: it needs model.positions = learned"
    ]


def test_what_each_option_affects_is_declared_with_it():
    """Every list of options that matter for a purpose is derived from these."""
    affects = {option.path: option.affects for option in OPTIONS}
    assert {path for path, effect in affects.items() if effect == "environment"} == {
        "data.directory", "data.tfds_data_dir",
        "train.hours", "train.tensorboard", "train.compile_cache", "train.peak_flops",
    }  # fmt: skip
    computation = {path for path, effect in affects.items() if effect == "computation"}
    assert {path for path in computation if not path.startswith("mesh.")} == {
        "model.attention_implementation", "train.accumulate", "decode.tokens_per_batch",
    }  # fmt: skip
    assert {affects[path] for path in ("train.loss", "train.label_smoothing", "data.order_seed", "seed")} == {"result"}
    assert affects["data.seed"] == affects["model.vocab_size"] == affects["data.cleaning.max_ratio"] == "data"


def test_every_condition_can_be_asked_of_a_config():
    assert {option.has_effect(from_config_dict({})) for option in OPTIONS} == {True, False}
