"""What a run will cost, as far as its config tells."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.model import size
from transformer_jax.model.transformer import Transformer
from transformer_jax.model_config import ModelConfig
from transformer_jax.processes import hardware

# Seconds that a run takes however small it is: the least that was seen of each, in sweeps of models of 5,000 to 500,000
# parameters on two CPU cores. A process that starts, imports, draws parameters and traces its programs;
STARTING = 3.0
# the compiling of those programs, once for a variant: its other seeds find them in the cache (train.compile_cache);
COMPILING = 5.0
# and for each test set loading the weights, the program of the search, and the search.
MEASURING = 3.0
# Rows of the products that are timed: with more, their rate is the same.
ROWS = 1024

# Sentences that FLOPs are told for before the data is there: attention's share of them grows with the length.
LENGTH = 32


def parameters(model: ModelConfig) -> int:
    """How many the model has, with the vocabulary that the config asks for."""
    if not any(part is not None for part in schema.to_dict(model.parts).values()):
        return sum(size.parameter_counts(model).values())
    tokens = jnp.ones((1, 1), jnp.int32)  # parts of one's own: no formula knows them
    shapes: Any = jax.eval_shape(Transformer(model).init, jax.random.key(0), tokens, tokens)["params"]
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def training_flops(config: ExperimentConfig, updates: int | None = None) -> float:
    """Of a whole run: every step a full batch, of sentences of `LENGTH` tokens. Runs that end earlier cost less.

    `updates`: how many there are at most, where that is known better than by `train.steps`.
    """
    tokens = (updates or config.train.steps) * config.data.tokens_per_batch
    return size.training_flops(config.model, LENGTH, LENGTH).of(tokens, tokens)


@functools.cache
def fastest_rate(width: int, inner: int, dtype: str, precision: str) -> float:
    """FLOP/s that no training of a model of these widths exceeds on this machine, measured now."""
    return hardware.products_rate(ROWS, width, inner, dtype, precision)
