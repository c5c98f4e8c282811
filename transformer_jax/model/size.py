"""The size of a model and its floating-point operations, as closed formulas (custom modules are not counted).

The formulas are in the paper's letters: D d_model, F d_ff, h heads of K = d_k and V = d_v, N rows of the
vocabulary. A gated feed-forward layer may be narrower, F = `inner_width`, and keys and values may have fewer heads, g.
"""

from typing import NamedTuple

from transformer_jax.model.positions import T5, Relative
from transformer_jax.model_config import ModelConfig

DISTANCES = 2 * Relative.reach + 1  # rows of each of the two tables of relative positions


def parameter_counts(config: ModelConfig) -> dict[str, int]:
    """Parameters of each group, all layers together (shared ones once).

    Embeddings N D, one to three tables, and N with an output bias. A layer has attention, D h K + D g K + D g V + h V D
    (and h K + g K + g V + D with biases), once in the encoder and twice in the decoder; feed-forward, 2 D F (and
    F + D), with a gate 3 D F (and 2 F + D); and a norm of 2 D (RMSNorm D) for each of these, two with sandwich norm,
    and with qk_norm two of 2 K in each attention; and one at the end of each stack with pre-norm and sandwich norm.
    """
    c = config
    target_rows = c.target_vocab_size or c.vocab_size
    tables = {"all": 0, "target": 1, "none": 2}[c.tie_embeddings]
    widths, norm_size = c.key_size + c.value_size, 1 if c.norm_kind == "rms" else 2
    attention = c.d_model * (c.num_heads + c.key_value_heads) * widths + 2 * norm_size * c.key_size * c.qk_norm
    attention += (c.num_heads * c.key_size + c.key_value_heads * widths + c.d_model) * c.attention_bias
    inner = (2 if c.is_gated else 1) * c.inner_width
    feed_forward = c.d_model * (inner + c.inner_width) + (inner + c.d_model) * c.ffn_bias
    norm = norm_size * c.d_model
    final_norm = norm if c.is_pre_norm else 0
    norms = (2 if c.norm == "sandwich" else 1) * norm  # of each sub-layer
    return {
        "embeddings": (c.vocab_size + tables * target_rows) * c.d_model + target_rows * c.output_bias,
        "encoder": c.stored(c.num_encoder_layers) * (attention + feed_forward + 2 * norms) + final_norm,
        "decoder": c.stored(c.num_decoder_layers) * (2 * attention + feed_forward + 3 * norms) + final_norm,
        "positions": _position_parameters(c),
    }


def _position_parameters(config: ModelConfig) -> int:
    """Encoder and decoder have separate tables; with relative and Transformer-XL's positions every layer has."""
    stacks, layers = 2, config.stored(config.num_encoder_layers) + config.stored(config.num_decoder_layers)
    return {
        "learned": stacks * config.max_length * config.d_model,
        "relative": layers * DISTANCES * (config.key_size + config.value_size),
        "transformer_xl": layers * config.num_heads * config.key_size * (config.d_model + 2),
        "t5": stacks * T5.buckets * config.num_heads,
    }.get(config.positions, 0)


class Flops(NamedTuple):
    """Floating-point operations for each token of either side."""

    source_token: float
    target_token: float

    def of(self, source_tokens: float, target_tokens: float) -> float:
        return self.source_token * source_tokens + self.target_token * target_tokens


def forward_flops(config: ModelConfig, source_length: int, target_length: int) -> Flops:
    """Operations of a forward pass over pairs of these lengths: matrix products only, two for each multiply-add.

    Causal attention counts in full, as it is computed. With S and T for the lengths:

    - each source token: encoder layers x (projections 2 D (h + g) (K + V) + scores and sums 2 S h (K + V)
      + feed-forward 4 D F), and decoder layers x its key and value in encoder-decoder attention 2 D g (K + V);
    - each target token: decoder layers x (projections 2 D (h + g) (K + V) + 2 T h (K + V), and to the source
      2 D h (K + V) + 2 S h (K + V), + feed-forward 4 D F) + the logits 2 D N.

    A gated feed-forward layer has 6 D F in place of 4 D F. Relative positions add 2 R h (K + S + V) to self-attention,
    with R distances; Transformer-XL's 2 h D (K + S). A shared layer counts in each application, although in the forward
    pass compilers merge its equal products with the encoder's output.
    """
    c = config
    widths, remembered = (heads * (c.key_size + c.value_size) for heads in (c.num_heads, c.key_value_heads))
    feed_forward = (6 if c.is_gated else 4) * c.d_model * c.inner_width

    def self_attention(length: int) -> int:
        distances = {
            "relative": DISTANCES * (widths + c.num_heads * length),
            "transformer_xl": c.num_heads * c.d_model * (c.key_size + length),
        }.get(c.positions, 0)
        return 2 * (c.d_model * (widths + remembered) + length * widths + distances)

    remembering = 2 * c.d_model * remembered
    cross_attention = 2 * c.d_model * widths + 2 * source_length * widths
    logits = 2 * c.d_model * (c.target_vocab_size or c.vocab_size)
    return Flops(
        c.num_encoder_layers * (self_attention(source_length) + feed_forward) + c.num_decoder_layers * remembering,
        c.num_decoder_layers * (self_attention(target_length) + cross_attention + feed_forward) + logits,
    )


def training_flops(config: ModelConfig, source_length: int, target_length: int) -> Flops:
    """Three times a forward pass: the backward pass has two products, by input and by weight, for each one."""
    forward = forward_flops(config, source_length, target_length)
    return Flops(3 * forward.source_token, 3 * forward.target_token)
