"""The architectures of the paper's Table 3: parameter counts by a formula written again, and the paper's column."""

import dataclasses

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


def built_count(config):
    """Parameters of the model as it is built, from the shapes alone."""
    tokens = jnp.ones((1, 2), jnp.int32)
    shapes = jax.eval_shape(Transformer(config).init, jax.random.key(0), tokens, tokens)
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def formula(row, vocabulary, biases=0, layers=None):
    """Embedding, then per layer W^Q W^K W^V W^O (three attentions a pair), feed-forward with biases, five norms."""
    n, d_model, d_ff, h, d_k, d_v = SIZES.get(row, SIZES["base"])
    attention = h * (d_model * d_k + d_model * d_k + d_model * d_v + d_v * d_model)
    attention += biases * (h * d_k + h * d_k + h * d_v + d_model)
    feed_forward = d_model * d_ff + d_ff + d_ff * d_model + d_model
    pair = 3 * attention + 2 * feed_forward + 5 * 2 * d_model
    learned = 2 * 1024 * d_model if row == "E learned positions" else 0
    return vocabulary * d_model + (layers or n) * pair + learned


@pytest.mark.parametrize("row", [row for row in TABLE_3 if not row.startswith("D")])  # these have base's architecture
def test_every_row_has_the_parameters_of_the_formula(row):
    """In a layer on each side; the number of layers is that of the table."""
    config = ModelConfig.variant(row, 37_000)
    assert config.num_encoder_layers == config.num_decoder_layers == SIZES.get(row, SIZES["base"])[0]
    one = dataclasses.replace(config, num_encoder_layers=1, num_decoder_layers=1)
    assert built_count(one) == formula(row, 37_000, layers=1)


def test_the_whole_model_has_the_parameters_of_the_formula():
    assert built_count(ModelConfig.variant("C N=2", 41_000, attention_bias=True)) == formula("C N=2", 41_000, biases=1)


@pytest.mark.parametrize("row", [row for row in MILLIONS if row not in ("base", "big")])
def test_differences_from_base_are_the_papers_column(row):
    """With 41,000 rows of embeddings, which all rows but big fit, and the biases that the paper's counts include."""
    difference = formula(row, 41_000, biases=1) - formula("base", 41_000, biases=1)
    assert abs(difference / 1e6 - (MILLIONS[row] - MILLIONS["base"])) < 1.0


def test_big_fits_the_papers_213_million_at_36_thousand_rows_only():
    assert abs(formula("big", 36_000, biases=1) / 1e6 - 213) < 0.5
    assert abs(formula("big", 41_000, biases=1) / 1e6 - 213) > 4
    assert round(formula("big", 37_000, biases=1) / 1e6, 1) == 214.2
    assert round(formula("base", 37_000, biases=1) / 1e6, 1) == 63.1
