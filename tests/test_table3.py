"""The architectures of Table 3: parameters of the models, by a formula written again and the paper's column."""

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
# N, d_model, d_ff, h, d_k, d_v as the paper prints them; a row that is not here has those of base.
SIZES = {
    "base": (6, 512, 2048, 8, 64, 64),
    "A h=1": (6, 512, 2048, 1, 512, 512),
    "A h=4": (6, 512, 2048, 4, 128, 128),
    "A h=16": (6, 512, 2048, 16, 32, 32),
    "A h=32": (6, 512, 2048, 32, 16, 16),
    "B d_k=16": (6, 512, 2048, 8, 16, 64),
    "B d_k=32": (6, 512, 2048, 8, 32, 64),
    "C N=2": (2, 512, 2048, 8, 64, 64),
    "C N=4": (4, 512, 2048, 8, 64, 64),
    "C N=8": (8, 512, 2048, 8, 64, 64),
    "C d_model=256": (6, 256, 2048, 8, 32, 32),
    "C d_model=1024": (6, 1024, 2048, 8, 128, 128),
    "C d_ff=1024": (6, 512, 1024, 8, 64, 64),
    "C d_ff=4096": (6, 512, 4096, 8, 64, 64),
    "big": (6, 1024, 4096, 16, 64, 64),
}


@functools.cache
def parameters(row, vocabulary=41_000, biases=True):
    """Of the model of a row, with the biases that the paper's counts include: from shapes alone, and few layers."""
    config, tokens = ModelConfig.variant(row, vocabulary, attention_bias=biases), jnp.ones((1, 2), jnp.int32)
    counts = []
    for layers in (1, 2):
        model = Transformer(dataclasses.replace(config, num_encoder_layers=layers, num_decoder_layers=layers))
        shapes = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)
        counts.append(sum(leaf.size for leaf in jax.tree.leaves(shapes)))
    assert config.num_encoder_layers == config.num_decoder_layers
    return counts[0] + (config.num_encoder_layers - 1) * (counts[1] - counts[0])


def formula(row, vocabulary, biases):
    """Embedding, then per layer W^Q W^K W^V W^O (three attentions a pair), feed-forward with biases, five norms."""
    n, d_model, d_ff, h, d_k, d_v = SIZES.get(row, SIZES["base"])
    attention = h * (d_model * d_k + d_model * d_k + d_model * d_v + d_v * d_model)
    attention += biases * (h * d_k + h * d_k + h * d_v + d_model)
    feed_forward = d_model * d_ff + d_ff + d_ff * d_model + d_model
    pair = 3 * attention + 2 * feed_forward + 5 * 2 * d_model
    learned = 2 * 1024 * d_model if row == "E learned positions" else 0
    return vocabulary * d_model + n * pair + learned


@pytest.mark.parametrize("row", [row for row in TABLE_3 if not row.startswith("D")])  # these have base's architecture
def test_every_row_has_the_parameters_of_the_formula(row):
    assert parameters(row) == formula(row, 41_000, biases=1)


def test_biases_of_attention_are_off_by_default():
    assert ModelConfig.variant("base", 37_000).attention_bias is False
    assert parameters("C N=2", 37_000, biases=False) == formula("C N=2", 37_000, biases=0)


@pytest.mark.parametrize("row", [row for row in MILLIONS if row not in ("base", "big")])
def test_differences_from_base_are_the_papers_column(row):
    """With 41,000 rows of embeddings, which all rows but big fit."""
    assert abs((parameters(row) - parameters("base")) / 1e6 - (MILLIONS[row] - MILLIONS["base"])) < 1.0


def test_big_fits_the_papers_213_million_at_36_thousand_rows_only():
    assert abs(parameters("big", 36_000) / 1e6 - 213) < 0.5
    assert abs(parameters("big") / 1e6 - 213) > 4
    assert round(parameters("big", 37_000) / 1e6, 1) == 214.2
    assert round(parameters("base", 37_000) / 1e6, 1) == 63.1
