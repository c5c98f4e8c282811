"""The Transformer of "Attention Is All You Need" in JAX and Flax: for ablations, for many devices, for import."""

from etils.epy import lazy_api_imports

from transformer_jax.version import __version__

# Each name is imported on its first use: `transformer-jax --help` does not wait for jax.
with lazy_api_imports(globals(), error_msg="{symbol_name} needs pip install 'transformer_jax[train]': "):  # isort: off
    from transformer_jax.config import ExperimentConfig, MeshConfig, from_config_dict
    from transformer_jax.interop.marian import from_marian
    from transformer_jax.model.attention import MultiHeadAttention, scaled_dot_product_attention
    from transformer_jax.model.capture import capture, patch
    from transformer_jax.model.context import Context
    from transformer_jax.model.dropout import rows_divided_over
    from transformer_jax.model.layers import Embedding, FeedForward, LayerNorm, Residual, RMSNorm
    from transformer_jax.model.masks import causal_mask, combine_masks, padding_mask
    from transformer_jax.model.positions import (
        T5, ALiBi, Learned, Positions, Relative, Rotary, Sinusoidal, TransformerXL, alibi_bias, alibi_slopes,
        apply_rotary, relative_buckets, sinusoid, sinusoidal_positions,
    )  # fmt: skip
    from transformer_jax.model.stacks import Decoder, DecoderLayer, Encoder, EncoderLayer
    from transformer_jax.model.transformer import AttentionInputs, Transformer
    from transformer_jax.model_config import ModelConfig, PartsConfig
    from transformer_jax.search.beam import beam_search, gather_beams, repeat_beams
    from transformer_jax.search.targets import SearchRules
    from transformer_jax.search.sampling import greedy_search, sample_search
    from transformer_jax.training.compiled import make_train_step
    from transformer_jax.translation.load import Score, load_run
    from transformer_jax.update.loss import label_smoothed_cross_entropy
    from transformer_jax.update.optimizer import inverse_sqrt_schedule, make_optimizer
    from transformer_jax.update.step import TrainState

__all__ = [
    "T5", "ALiBi", "AttentionInputs", "Context", "Decoder", "DecoderLayer", "Embedding", "Encoder", "EncoderLayer",
    "ExperimentConfig", "FeedForward", "LayerNorm", "Learned", "MeshConfig", "ModelConfig", "MultiHeadAttention",
    "PartsConfig", "Positions", "RMSNorm", "Relative", "Residual", "Rotary", "Score", "SearchRules", "Sinusoidal",
    "TrainState", "Transformer", "TransformerXL", "__version__", "alibi_bias", "alibi_slopes", "apply_rotary",
    "beam_search", "capture", "causal_mask", "combine_masks", "from_config_dict", "from_marian", "gather_beams",
    "greedy_search", "inverse_sqrt_schedule", "label_smoothed_cross_entropy", "load_run", "make_optimizer",
    "make_train_step", "padding_mask", "patch", "relative_buckets", "repeat_beams", "rows_divided_over",
    "sample_search", "scaled_dot_product_attention", "sinusoid", "sinusoidal_positions",
]  # fmt: skip
