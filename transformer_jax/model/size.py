"""The size of a model, as it is built, and its floating-point operations, as closed formulas."""

import dataclasses
from typing import NamedTuple

import jax

from transformer_jax.model import build
from transformer_jax.model.positions import Relative
from transformer_jax.model.transformer import abstract_params
from transformer_jax.model_config import ModelConfig

DISTANCES = 2 * Relative.reach + 1  # rows of each of the two tables of relative positions


def parameter_counts(config: ModelConfig) -> dict[str, int]:
    """Parameters of the embeddings, the encoder, the decoder and of positions, all layers together, shared ones once.

    The output bias counts with the embeddings. One layer of each stack is traced: all are alike.
    """
    counts = dict.fromkeys(("embeddings", "encoder", "decoder", "positions"), 0)
    stored = {name: config.stored(getattr(config, f"num_{name}_layers")) for name in ("encoder", "decoder")}
    per_layer = ("layers", "positions") if build.positions(config, causal=False).per_layer else ("layers",)
    shallow = dataclasses.replace(config, num_encoder_layers=1, num_decoder_layers=1)
    for path, leaf in jax.tree_util.tree_leaves_with_path(abstract_params(shallow)):
        stack, module = path[0].key, path[-1 if len(path) == 1 else 1].key
        group = stack if stack in stored else "embeddings"
        group = "positions" if module.startswith("positions_") else group
        counts[group] += leaf.size * (stored[stack] if module.startswith(per_layer) else 1)
    return counts


class Flops(NamedTuple):
    """Floating-point operations for each token of either side."""

    source_token: float
    target_token: float

    def of(self, source_tokens: float, target_tokens: float) -> float:
        return self.source_token * source_tokens + self.target_token * target_tokens


def forward_flops(config: ModelConfig, source_length: int, target_length: int) -> Flops:
    """Operations of a forward pass over pairs of these lengths: matrix products only, two for each multiply-add.

    Causal attention counts in full, as it is computed. Keys and values of cross-attention count with the source's
    tokens. A shared layer counts in each application, although in the forward pass compilers merge its equal products
    with the encoder's output.
    """
    c = config
    # Queries and outputs: h (d_k + d_v). Keys and values, which may have fewer heads: g (d_k + d_v).
    widths, remembered = (heads * (c.key_size + c.value_size) for heads in (c.num_heads, c.key_value_heads))
    feed_forward = (6 if c.is_gated else 4) * c.d_model * c.inner_width

    def self_attention(length: int, sides: int) -> int:
        in_blocks = c.window is not None and length > 2 * c.window
        keys = (1 + sides) * (c.window or 0) if in_blocks else length
        distances = {
            "relative": DISTANCES * (widths + c.num_heads * keys),
            "transformer_xl": c.num_heads * c.d_model * (c.key_size + keys),
        }.get(c.positions, 0)
        return 2 * (c.d_model * (widths + remembered) + keys * widths + distances)

    remembering = 2 * c.d_model * remembered
    cross_attention = 2 * c.d_model * widths + 2 * source_length * widths
    logits = 2 * c.d_model * (c.target_vocab_size or c.vocab_size)
    return Flops(
        c.num_encoder_layers * (self_attention(source_length, sides=2) + feed_forward)
        + c.num_decoder_layers * remembering,
        c.num_decoder_layers * (self_attention(target_length, sides=1) + cross_attention + feed_forward) + logits,
    )


def training_flops(config: ModelConfig, source_length: int, target_length: int) -> Flops:
    """Three times a forward pass: the backward pass has two products, by input and by weight, for each one."""
    forward = forward_flops(config, source_length, target_length)
    return Flops(3 * forward.source_token, 3 * forward.target_token)
