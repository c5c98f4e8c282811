"""The residual connection around each sub-layer: where its norms are, and how DeepNorm scales it with depth."""

from typing import Literal, NamedTuple

import jax
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from transformer_jax.errors import BadInput
from transformer_jax.model.dropout import Dropout
from transformer_jax.model.norm import norm_of
from transformer_jax.model_config import ModelConfig

Stack = Literal["encoder", "decoder"]
# The name of the residual sums for a `jax.checkpoint` policy.
RESIDUAL = "residual_sum"


class Residual(nn.Module):
    """The connection around each sub-layer, in two halves: y = enter(x), then leave(x, sublayer(y)).

    Post-norm (section 3.1 and 5.4): LayerNorm(x + Dropout(Sublayer(x))).
    Pre-norm: x + Dropout(Sublayer(LayerNorm(x))).
    Sandwich (Ding et al. 2021, CogView): x + LayerNorm(Dropout(Sublayer(LayerNorm(x)))), with dropout where their code
    has it.
    DeepNorm (Wang et al. 2022): LayerNorm(alpha x + Dropout(Sublayer(x))).
    """

    config: ModelConfig
    stack: Stack | None = None

    def setup(self) -> None:
        self.norm = norm_of(self.config)
        if self.config.norm == "sandwich":
            self.output_norm = norm_of(self.config)
        self.drop = Dropout(self.config.dropout)

    def enter(self, x: jax.Array) -> jax.Array:
        if x.shape[-1] != self.config.d_model:
            raise ValueError(f"x has the width {x.shape[-1]}: must be d_model = {self.config.d_model}")
        return self.norm(x) if self.config.is_pre_norm else x

    def leave(self, x: jax.Array, sublayer: jax.Array, deterministic: bool) -> jax.Array:
        sublayer = self.drop(sublayer, deterministic)
        if self.config.norm == "sandwich":
            sublayer = self.output_norm(sublayer)
        if self.config.norm == "deepnorm":
            x = depth_scaling(self.config, self.stack).alpha * x
        x = checkpoint_name(x + sublayer, RESIDUAL)
        return x if self.config.is_pre_norm else self.norm(x)


class DepthScaling(NamedTuple):
    """`alpha` multiplies x in residual sums; `beta` the initial weights of W^V, W^O and the feed-forward layer."""

    alpha: float
    beta: float


def depth_scaling(config: ModelConfig, stack: Stack | None) -> DepthScaling:
    """DeepNorm's factors for encoder-decoder models (Wang et al. 2022, figure 2); 1 with other norms."""
    if config.norm != "deepnorm":
        return DepthScaling(1.0, 1.0)
    encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
    if stack == "encoder":
        depth = (encoder**4 * decoder) ** (1 / 16)
        return DepthScaling(0.81 * depth, 0.87 / depth)
    if stack == "decoder":
        return DepthScaling((3 * decoder) ** (1 / 4), (12 * decoder) ** (-1 / 4))
    raise BadInput(
        "model.norm = deepnorm scales the encoder and the decoder differently: a custom layer must say which it is in, "
        "Residual(config, 'encoder'), attention_of(config, 'encoder'), feed_forward_of(config, 'encoder')"
    )
