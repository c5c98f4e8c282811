"""The schema's content: the paper's defaults, contradictions, every file in configs/, every option within reach."""

import functools
import json
import re

import numpy as np
import pytest

from tests.support.places import ROOT
from tests.support.small_runs import experiment
from transformer_jax import config as configuration
from transformer_jax import schema
from transformer_jax.commands import configuration as command_line
from transformer_jax.commands.inspect import options_table
from transformer_jax.config import (
    NAMED,
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TrainConfig,
    addresses,
    default_config,
    from_config_dict,
    unused_options,
    with_addresses,
)
from transformer_jax.data.corpora import open_corpus
from transformer_jax.errors import ConfigError
from transformer_jax.schema import with_values

OPTIONS = list(schema.options(ExperimentConfig))


@pytest.mark.parametrize("file", sorted(ROOT.glob("configs/*.py")), ids=lambda file: file.name)
def test_every_config_file_is_valid_and_opens_with_its_command(file):
    command_line.load(str(file), [])
    assert f"--config=configs/{file.name}" in file.read_text().partition('"""')[2].partition('"""')[0]


def test_every_default_can_be_typed():
    values, other = {}, {"optimizer.kwargs": "{}", "optimizer.groups": "[]"}
    texts = [
        (option.path, other.get(option.path, "none" if option.default in (None, ()) else str(option.default)))
        for option in OPTIONS
    ]
    assert schema.lay_over(ExperimentConfig, values, texts) == []
    assert from_config_dict(values) == ExperimentConfig()


def test_every_seed_may_have_32_bits():
    seeds = [option.path for option in OPTIONS if option.path.rpartition(".")[2].endswith("seed")]
    values: dict = {}
    assert not schema.lay_over(ExperimentConfig, values, [(path, str(2**32 - 1)) for path in seeds])
    assert len(seeds) == 5 and from_config_dict(values).decode.seed == 2**32 - 1


def test_every_option_is_documented():
    table = options_table()
    assert all(option.meaning and f"| `{option.path}` |" in table for option in OPTIONS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train__eval_every": 6}, "train.until_flat = 0.005 and steps = 100 and eval_every = 6: "),
        ({"optimizer__schedule": "linear"}, "train.until_flat = 0.005 and optimizer.schedule = linear: "),
        ({"optimizer__warmup_steps": 101}, "optimizer.warmup_steps = 101 and train.steps = 100: "),
        ({"train__keep_best": 1, "train__checkpoint_every": 4}, "train.checkpoint_every = 4 and eval_every = 5: "),
        ({"model__pad_id": 3}, "model.pad_id = 3: must be 0"),
        ({"model__mup_base_d_model": 8, "optimizer__name": "sgd"}, "optimizer.name = sgd: muP "),
        (
            {"model__mup_base_d_model": 8, "optimizer__groups": (("kernel$", {"name": "sgd"}),)},
            "optimizer.name = sgd: muP ",
        ),
    ],
)
def test_contradictions(changes, message):
    usual = {"train__until_flat": 0.005, "train__steps": 100, "train__eval_every": 5, "train__keep_best": 0}
    usual["optimizer__warmup_steps"] = 10
    experiment(**usual)
    with pytest.raises(ConfigError) as error:
        experiment(**{**usual, **changes})
    (line,) = error.value.problems
    assert line.startswith(message)


def test_options_that_others_replace_contradict_nothing():
    assert TrainConfig(steps=1000, validations=20, until_flat=0.005).validations == 20
    with pytest.raises(ConfigError, match="needs 20 validations"):
        TrainConfig(steps=1000, validations=19, until_flat=0.005)
    assert OptimizerConfig(warmup_steps=0, warmup_share=0.1).warmup_of(100) == 10


@pytest.mark.parametrize("path", [option.path for option in OPTIONS])
def test_an_array_is_a_value_or_a_problem_of_an_option(path):
    *groups, name = path.split(".")
    values = functools.reduce(lambda inner, group: {group: inner}, reversed(groups), {name: np.array(["x", "y"])})
    with pytest.raises(ConfigError):
        from_config_dict(values)


def test_json_and_config_dict_round_trip():
    config = default_config()
    config.model.d_k, config.seed = 16, 3
    experiment = from_config_dict(config)
    assert configuration.from_json(configuration.to_json(experiment)) == experiment
    assert json.loads(configuration.to_json(experiment))["model"]["d_k"] == experiment.model.d_k == 16


def test_an_option_is_refused_only_if_none_of_several_experiments_uses_it():
    plain, learned = (from_config_dict({"model": {"positions": kind}}) for kind in ("sinusoidal", "learned"))
    assert unused_options(["model.max_length", "model.dropout"], [plain, learned]) == []
    assert unused_options(["model.max_length"], [plain]) == [
        "--config.model.max_length: has no effect here: it needs model.positions = learned, or custom positions"
    ]
    # A later command may decode with it.
    assert configuration.why_unused("decode.temperature", [plain]) is not None
    assert unused_options(["decode.temperature"], [plain]) == []


def test_every_condition_can_be_asked_of_a_config():
    config = from_config_dict({})
    assert {option.has_effect(config) for option in OPTIONS} == {True, False}


def test_addresses_are_found_and_changed():
    custom = experiment(train__loss="mine.py:loss", decode__metrics=("a.py:exact", "b.py:words"))
    found = [("train.loss", "mine.py:loss"), ("decode.metrics", "a.py:exact"), ("decode.metrics", "b.py:words")]
    assert list(addresses(custom)) == found and list(addresses(experiment())) == []
    moved = with_addresses(custom, lambda option, address: f"/code/{option.path}/{address}")
    assert [address for _, address in addresses(moved)] == [f"/code/{path}/{address}" for path, address in found]
    assert with_addresses(moved, lambda option, address: address.rpartition("/")[2]) == custom


def test_numbers_take_the_place_of_a_configs_own():
    config = ExperimentConfig()
    changed = with_values(config, {"seed": 5, "model.dropout": 0.5, "model.parts.attention": "x"})
    assert (changed.seed, changed.model.dropout, changed.model.parts.attention) == (5, 0.5, "x")
    assert (config.seed, config.model.dropout, config.model.parts.attention) == (0, 0.1, None)
    assert changed.train is config.train


# The data.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus": "copy", "source": ("a.en",)}, "corpus = copy and source = a.en"),
        ({"source": ("a", "b"), "target": ("c",)}, "source = a, b and target = c: "),
        ({"target_tokenizer_file": "x.model"}, "target_tokenizer_file = x.model and tokenizer_file = none"),
        ({"task": {"min_length": 9, "max_length": 8}}, "task.min_length = 9 and max_length = 8"),
    ],
)
def test_contradictions_of_the_data_name_both_values(changes, message):
    with pytest.raises(ConfigError, match=re.escape(f"data.{message}")):
        from_config_dict({"data": changes})


@pytest.mark.parametrize(
    ("data", "typed", "needs"),
    [
        ({"corpus": "grammar"}, "data.task.alphabet", "data.corpus = copy, reverse or sort"),
        ({"source": ["a.tsv"]}, "data.tfds_data_dir", "the name of a TFDS data set as data.corpus"),
        ({"corpus": "copy"}, "data.valid_size", "a corpus without validation data"),
        ({"source": ["a.tsv"], "test_source": ["b.tsv"]}, "data.test_size", "a corpus without test data"),
        ({"corpus": "scan"}, "data.task.cutoff", "data.corpus = scan and data.task.split = length"),
        ({"tokenizer": "words"}, "data.byte_fallback", "a tokenizer that is trained"),
        ({"batching": "packing"}, "data.num_shapes", "data.batching = buckets"),
    ],
)
def test_an_option_without_effect_is_refused_with_what_it_needs(data, typed, needs):
    config = from_config_dict({"data": {**({"tfds_data_dir": "/x"} if "tfds" in typed else {}), **data}})
    (message,) = unused_options([typed], [config])
    assert message.startswith(f"--config.{typed}: has no effect here: it needs ") and needs in message


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({"corpus": "scan"}, "scan simple"),
        ({"corpus": "scan", "task": {"split": "length", "cutoff": 26}}, "scan length 26"),
        ({"corpus": "inflection", "task": {"language": "kor"}}, "inflection kor_large"),
    ],
)
def test_the_name_of_a_corpus_tells_which_part_of_it_is_used(data, name):
    assert from_config_dict({"data": data}).data.corpus_name == name


def test_an_option_with_effect_is_not_refused():
    config = from_config_dict({"data": {"corpus": "copy", "task": {"valid_size": 0}}})
    assert unused_options(["data.task.alphabet", "data.valid_size", "data.byte_fallback"], [config]) == []
    config = from_config_dict({"data": {"corpus": "scan", "task": {"split": "length"}}})
    assert unused_options(["data.task.cutoff", "data.valid_size", "data.seed"], [config]) == []


@pytest.mark.parametrize("name", NAMED)
def test_every_named_corpus_is_read_by_its_class_and_has_its_splits(name):
    corpus = open_corpus(DataConfig(corpus=name, corpus_folder="x"))
    assert {*corpus.splits} - {"train", "test_gen"} == {*NAMED[name]}


# The optimizer.


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"warmup_steps": 0}, "warmup_steps"),
        ({"groups": (("(", {}),)}, "regular expression"),
        ({"groups": (("table", {"weight_decay": -1.0}),)}, "weight_decay"),
        ({"groups": (("table", {"weight_decai": 0}),)}, "did you mean weight_decay?"),
        ({"groups": (("table", {"learning_rate_factor": "fast"}),)}, "learning_rate_factor"),
        ({"groups": (("table", {"weight_decay": "0.1"}),)}, "weight_decay = '0.1': must be a number"),
        ({"groups": (("table", {"name": "sgd", "beta1": 0.5}),)}, "beta1"),
        ({"groups": (("table", {"name": "mine.py:Adam"}),)}, "custom"),
        ({"groups": ("table: weight_decay=0",)}, "expressions"),
    ],
)
def test_contradictions_of_the_optimizer(options, word):
    with pytest.raises(ConfigError) as error:
        OptimizerConfig(**options)
    (line,) = error.value.problems
    assert word in line


def test_kwargs_and_groups_are_json_on_the_command_line():
    kwargs, groups = {"momentum": 0.9}, (("table$", {"weight_decay": 0, "kwargs": {"nesterov": True}}),)
    values = {"optimizer": {"name": "sgd"}}
    texts = [
        ("optimizer.kwargs", '{"momentum": 0.9}'),
        ("optimizer.groups", '[["table$", {"weight_decay": 0, "kwargs": {"nesterov": true}}]]'),
    ]
    assert not schema.lay_over(ExperimentConfig, values, texts)
    config = from_config_dict(values)
    assert (config.optimizer.kwargs, config.optimizer.groups) == (kwargs, groups)
    assert configuration.from_json(configuration.to_json(config)) == config
    for text in ("momentum=0.9", "[1]", '{"momentum":'):
        values = {}
        problems = schema.lay_over(ExperimentConfig, values, [("optimizer.kwargs", text)])
        if not problems:
            with pytest.raises(ConfigError, match=r"optimizer\.kwargs"):
                from_config_dict(values)
