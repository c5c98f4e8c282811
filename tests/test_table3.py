"""The architectures of the paper's Table 3: the parameters of the models that are built, and the paper's column."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

from transformer_jax import ModelConfig, Transformer
from transformer_jax.table3 import TABLE_3

# The paper's column "params x 10^6", where it gives one.
MILLIONS = {
    "base": 65,
    "B d_k=16": 58,
    "B d_k=32": 60,
    "C N=2": 36,
    "C N=4": 50,
    "C N=8": 80,
    "C d_model=256": 28,
    "C d_model=1024": 168,
    "C d_ff=1024": 53,
    "C d_ff=4096": 90,
    "big": 213,
}


@functools.cache
def parameters(row, vocabulary=41_000):
    """Of the model of a row, with the biases that the paper's counts include: from shapes alone, and few layers."""
    config, tokens = ModelConfig.variant(row, vocabulary, attention_bias=True), jnp.ones((1, 2), jnp.int32)
    counts = []
    for layers in (1, 2):
        model = Transformer(dataclasses.replace(config, num_encoder_layers=layers, num_decoder_layers=layers))
        shapes = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)
        counts.append(sum(leaf.size for leaf in jax.tree.leaves(shapes)))
    assert config.num_encoder_layers == config.num_decoder_layers
    return counts[0] + (config.num_encoder_layers - 1) * (counts[1] - counts[0])


@pytest.mark.parametrize("row", [row for row in MILLIONS if row not in ("base", "big")])
def test_differences_from_base_are_the_papers_column(row):
    """With 41,000 rows of embeddings, which all rows but big fit."""
    assert abs((parameters(row) - parameters("base")) / 1e6 - (MILLIONS[row] - MILLIONS["base"])) < 1.0


@pytest.mark.parametrize("row", [row for row in TABLE_3 if row.startswith(("A", "E"))])
def test_other_heads_are_as_many_parameters_and_learned_positions_two_tables_more(row):
    """Each head is as much smaller as there are more."""
    assert parameters(row) - parameters("base") == (2 * 1024 * 512 if row == "E learned positions" else 0)


def test_big_fits_the_papers_213_million_at_36_thousand_rows_only():
    assert abs(parameters("big", 36_000) / 1e6 - 213) < 0.5
    assert abs(parameters("big") / 1e6 - 213) > 4
    assert round(parameters("big", 37_000) / 1e6, 1) == 214.2
    assert round(parameters("base", 37_000) / 1e6, 1) == 63.1
