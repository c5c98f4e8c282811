"""The Transformer of "Attention Is All You Need" in JAX and Flax: for ablations, for many devices, for import."""

from transformer_jax.config import ModelConfig
from transformer_jax.model.attention import MultiHeadAttention, scaled_dot_product_attention
from transformer_jax.model.masks import causal_mask, combine_masks, padding_mask
from transformer_jax.model.positions import sinusoidal_positions
from transformer_jax.model.transformer import Transformer
from transformer_jax.version import __version__

__all__ = [
    "ModelConfig",
    "MultiHeadAttention",
    "Transformer",
    "__version__",
    "causal_mask",
    "combine_masks",
    "padding_mask",
    "scaled_dot_product_attention",
    "sinusoidal_positions",
]
