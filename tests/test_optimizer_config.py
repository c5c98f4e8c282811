"""The options of the optimizer: contradictions, and groups on the command line."""

import pytest

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig, from_config_dict, from_json, to_json
from transformer_jax.errors import ConfigError
from transformer_jax.optimizer_config import OptimizerConfig


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"warmup_steps": 0}, "warmup_steps"),
        ({"groups": (("(", {}),)}, "regular expression"),
        ({"groups": (("table", {"weight_decay": -1.0}),)}, "weight_decay"),
        ({"groups": (("table", {"kwargs": 3}),)}, "kwargs"),
        ({"groups": (("table", {"weight_decai": 0}),)}, "did you mean weight_decay?"),
        ({"groups": (("table", {"learning_rate_factor": "fast"}),)}, "learning_rate_factor"),
        ({"groups": (("table", {"name": "sgd", "beta1": 0.5}),)}, "beta1"),
        ({"groups": (("table", {"name": "mine.py:Adam"}),)}, "custom"),
        ({"groups": ("table: weight_decay=0",)}, "expressions"),
    ],
)
def test_contradictions(options, word):
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
    assert from_json(to_json(config)) == config
    for text in ("momentum=0.9", "[1]", '{"momentum":'):
        values = {}
        problems = schema.lay_over(ExperimentConfig, values, [("optimizer.kwargs", text)])
        if not problems:
            with pytest.raises(ConfigError, match=r"optimizer\.kwargs"):
                from_config_dict(values)
