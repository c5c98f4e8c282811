"""Parameters by how a mesh divides them; update/test_reduction.py compares the formulas with compiled programs."""

import pytest

from transformer_jax import ModelConfig
from transformer_jax.model.size import parameter_counts
from transformer_jax.planning.cost import MeshSize, parameters


@pytest.mark.parametrize("changes", [{}, {"attention_bias": True}, {"activation": "swiglu"}, {"positions": "relative"}])
def test_every_parameter_is_divided_in_some_way(changes):
    config = ModelConfig.base(**changes)
    assert sum(parameters(config)) == sum(parameter_counts(config).values())
    assert parameters(config).on(MeshSize(4, 1, 1)) == sum(parameters(config))
