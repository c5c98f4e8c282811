"""The Transformer of "Attention Is All You Need" in JAX and Flax: for ablations, for many devices, for import."""

from transformer_jax.config import ModelConfig
from transformer_jax.model.attention import MultiHeadAttention, scaled_dot_product_attention
from transformer_jax.model.masks import causal_mask, combine_masks, padding_mask
from transformer_jax.model.positions import sinusoidal_positions
from transformer_jax.model.transformer import Transformer

__version__ = "0.1.0.dev0"

__all__ = [
    "ModelConfig",
    "MultiHeadAttention",
    "Transformer",
    "causal_mask",
    "combine_masks",
    "padding_mask",
    "scaled_dot_product_attention",
    "sinusoidal_positions",
]
