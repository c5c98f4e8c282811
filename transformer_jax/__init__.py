"""The Transformer of "Attention Is All You Need" in JAX and Flax: for ablations, for many devices, for import."""

import importlib
from typing import TYPE_CHECKING, Any

from transformer_jax.model.attention import MultiHeadAttention
from transformer_jax.model.dot_product import scaled_dot_product_attention
from transformer_jax.model.masks import causal_mask, combine_masks, padding_mask
from transformer_jax.model.sinusoid import sinusoidal_positions
from transformer_jax.model.transformer import Transformer
from transformer_jax.model_config import ModelConfig
from transformer_jax.search.beam import beam_search
from transformer_jax.search.greedy import greedy_search
from transformer_jax.search.rules import SearchRules
from transformer_jax.search.sampling import sample_search
from transformer_jax.update.loss import label_smoothed_cross_entropy
from transformer_jax.version import __version__

if TYPE_CHECKING:
    from transformer_jax.interop.marian import from_marian
    from transformer_jax.translation.load import load_run
    from transformer_jax.update.optimizer import inverse_sqrt_schedule

# Imported on first use: what they need (orbax, optax) takes longer to import than all the rest.
LAZY = {
    "from_marian": "transformer_jax.interop.marian",
    "inverse_sqrt_schedule": "transformer_jax.update.optimizer",
    "load_run": "transformer_jax.translation.load",
}

__all__ = [
    "ModelConfig",
    "MultiHeadAttention",
    "SearchRules",
    "Transformer",
    "__version__",
    "beam_search",
    "causal_mask",
    "combine_masks",
    "from_marian",
    "greedy_search",
    "inverse_sqrt_schedule",
    "label_smoothed_cross_entropy",
    "load_run",
    "padding_mask",
    "sample_search",
    "scaled_dot_product_attention",
    "sinusoidal_positions",
]


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(LAZY[name]), name)
