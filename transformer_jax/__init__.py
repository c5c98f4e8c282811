"""The Transformer of "Attention Is All You Need" in JAX and Flax: for ablations, for many devices, for import."""

import importlib
from typing import TYPE_CHECKING, Any

from transformer_jax.version import __version__

if TYPE_CHECKING:
    from transformer_jax.interop.marian import from_marian
    from transformer_jax.model.attention import MultiHeadAttention
    from transformer_jax.model.dot_product import scaled_dot_product_attention
    from transformer_jax.model.masks import causal_mask, combine_masks, padding_mask
    from transformer_jax.model.position_functions import alibi_slopes, apply_rotary, relative_buckets
    from transformer_jax.model.sinusoid import sinusoidal_positions
    from transformer_jax.model.transformer import Transformer
    from transformer_jax.model_config import ModelConfig
    from transformer_jax.search.beam import beam_search
    from transformer_jax.search.greedy import greedy_search
    from transformer_jax.search.rules import SearchRules
    from transformer_jax.search.sampling import sample_search
    from transformer_jax.translation.load import load_run
    from transformer_jax.update.loss import label_smoothed_cross_entropy
    from transformer_jax.update.optimizer import inverse_sqrt_schedule

# Each public name is imported on its first use: `transformer-jax --help` does not wait for jax.
MODULES = {
    "ModelConfig": "model_config",
    "MultiHeadAttention": "model.attention",
    "SearchRules": "search.rules",
    "Transformer": "model.transformer",
    "alibi_slopes": "model.position_functions",
    "apply_rotary": "model.position_functions",
    "beam_search": "search.beam",
    "causal_mask": "model.masks",
    "combine_masks": "model.masks",
    "from_marian": "interop.marian",
    "greedy_search": "search.greedy",
    "inverse_sqrt_schedule": "update.optimizer",
    "label_smoothed_cross_entropy": "update.loss",
    "load_run": "translation.load",
    "padding_mask": "model.masks",
    "relative_buckets": "model.position_functions",
    "sample_search": "search.sampling",
    "scaled_dot_product_attention": "model.dot_product",
    "sinusoidal_positions": "model.sinusoid",
}
# These need more than jax and flax install.
EXTRAS = {"from_marian": "train", "load_run": "train"}

__all__ = [
    "ModelConfig",
    "MultiHeadAttention",
    "SearchRules",
    "Transformer",
    "__version__",
    "alibi_slopes",
    "apply_rotary",
    "beam_search",
    "causal_mask",
    "combine_masks",
    "from_marian",
    "greedy_search",
    "inverse_sqrt_schedule",
    "label_smoothed_cross_entropy",
    "load_run",
    "padding_mask",
    "relative_buckets",
    "sample_search",
    "scaled_dot_product_attention",
    "sinusoidal_positions",
]
if not TYPE_CHECKING:  # `from transformer_jax import *` imports what the installed extras allow
    from transformer_jax.extras import missing

    __all__ = [name for name in __all__ if name not in EXTRAS or not missing(EXTRAS[name])]


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in EXTRAS:
        from transformer_jax.extras import require

        require(f"{__name__}.{name}", EXTRAS[name])
    found = getattr(importlib.import_module(f"{__name__}.{MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
