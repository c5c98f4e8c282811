"""Whether all that a config names can be used: tried before any data is prepared, on a few numbers."""

from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax import extension, schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.corpora import open_corpus
from transformer_jax.evaluation import load_metrics
from transformer_jax.model.transformer import Transformer
from transformer_jax.schema import is_meant_as_address
from transformer_jax.update.loss import check_own
from transformer_jax.update.optimizer import make_optimizer, make_schedule


def try_out(config: ExperimentConfig) -> None:
    """Refuses what the schema cannot know to be wrong: an optimizer that optax lacks, an unfit part, loss or metric."""
    make_optimizer(config.optimizer, make_schedule(config.optimizer, config.model.d_model, config.train.steps))
    check_own(config.train)
    load_metrics(config.decode.metrics)
    if is_meant_as_address(config.data.corpus):
        open_corpus(config.data)
    parts = [part for part in schema.to_dict(config.model.parts).values() if isinstance(part, str)]
    if parts:
        with extension.running(extension.file_of(parts[0])):
            _build(config)


def _build(config: ExperimentConfig) -> Any:
    """The model's shapes: nothing is computed."""
    tokens = jnp.ones((1, 1), jnp.int32)
    return jax.eval_shape(Transformer(config.model).init, jax.random.key(0), tokens, tokens)
