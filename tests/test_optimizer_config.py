"""The options of the optimizer: contradictions."""

import pytest

from transformer_jax.errors import ConfigError
from transformer_jax.optimizer_config import OptimizerConfig


def test_the_rate_of_equation_3_needs_a_warmup():
    OptimizerConfig(schedule="constant", warmup_steps=0)
    with pytest.raises(ConfigError, match="warmup_steps = 0: inverse_sqrt needs at least 1"):
        OptimizerConfig(warmup_steps=0)
