"""The Transformer of "Attention Is All You Need" in JAX and Flax: for ablations, for many devices, for import."""

from transformer_jax.config import ModelConfig

__version__ = "0.1.0.dev0"

__all__ = ["ModelConfig"]
