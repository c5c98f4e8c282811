"""The modules of a config: the library's, or custom ones that `model.parts` names (docs/parts.md)."""

import dataclasses
import functools
from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn

from transformer_jax import extension
from transformer_jax.errors import BadInput
from transformer_jax.model.attention import MultiHeadAttention
from transformer_jax.model.layers import NORMS, Embedding, FeedForward, ModuleClass
from transformer_jax.model.positions import ENCODINGS, Positions
from transformer_jax.model.stacks import Decoder, DecoderLayer, Encoder, EncoderLayer
from transformer_jax.model_config import ModelConfig

Stack = Literal["encoder", "decoder"]
# The classes from which custom modules are derived, to be made and called like the modules that they replace.
BASES: dict[str, type] = {
    "attention": MultiHeadAttention,
    "feed_forward": FeedForward,
    "norm": nn.Module,
    "positions": Positions,
    "embedding": Embedding,
    "encoder_layer": EncoderLayer,
    "decoder_layer": DecoderLayer,
}


def module_class(config: ModelConfig, part: str, default: type | None = None) -> Any:
    """The class of one of `model.parts`: the custom one that the config names, or the default."""
    chosen = getattr(config.parts, part)
    if chosen is None:
        return default or BASES[part]
    custom = extension.load_object(chosen) if isinstance(chosen, str) else chosen
    if not (isinstance(custom, type) and issubclass(custom, BASES[part])):
        raise BadInput(f"model.parts.{part} = {chosen}: must be a class derived from {BASES[part].__name__}")
    return custom


def with_loaded_modules(config: ModelConfig) -> ModelConfig:
    """The config with custom modules as classes, so that programs read no files while they are traced."""
    named = [part for part in BASES if getattr(config.parts, part) is not None]
    classes = {part: module_class(config, part) for part in named}
    return dataclasses.replace(config, parts=dataclasses.replace(config.parts, **classes))


def norm_class(config: ModelConfig) -> ModuleClass:
    """The factory of every norm of the model."""
    norm = module_class(config, "norm", NORMS[config.norm_kind])
    return functools.partial(norm, epsilon=config.norm_epsilon, dtype=jnp.dtype(config.dtype))


def attention(config: ModelConfig, stack: Stack) -> Any:
    implementation = config.attention_implementation
    return module_class(config, "attention")(
        num_heads=config.num_heads,
        d_k=config.key_size,
        d_v=config.value_size,
        dropout=config.attention_dropout,
        use_bias=config.attention_bias,
        dtype=jnp.dtype(config.dtype),
        # What runs on a mesh has it decided by the mesh's devices; a model used alone does not ask where it is.
        implementation="plain" if implementation == "auto" else implementation,
        gain=deepnorm_scaling(config, stack)[1],
        num_key_value_heads=config.key_value_heads,
        softcap=config.attention_softcap,
        qk_norm=norm_class(config) if config.qk_norm else None,
        scale=None if config.mup_base_d_model is None else config.score_scale,
    )


def feed_forward(config: ModelConfig, stack: Stack) -> Any:
    base = config.mup_base_widths()
    share_D, share_F = base["d_model"] / config.d_model, base["d_ff"] / config.d_ff
    widths = float(base["d_model"]), float(share_F * config.inner_width)
    return module_class(config, "feed_forward")(
        d_ff=config.inner_width,
        activation=config.activation,
        dropout=config.activation_dropout,
        use_bias=config.ffn_bias,
        dtype=jnp.dtype(config.dtype),
        gain=deepnorm_scaling(config, stack)[1],
        mup_base=None if share_D == share_F else widths,  # where both widths grow alike, Xavier's variance is muP's
    )


def layer(config: ModelConfig, stack: Stack) -> Any:
    return module_class(config, f"{stack}_layer")(
        attention_cls=functools.partial(attention, config, stack),
        feed_forward_cls=functools.partial(feed_forward, config, stack),
        placement=config.norm,
        norm_cls=norm_class(config),
        dropout=config.dropout,
        alpha=deepnorm_scaling(config, stack)[0],
        layer_dropout=config.layer_dropout,
    )


def deepnorm_scaling(config: ModelConfig, stack: Stack) -> tuple[float, float]:
    """DeepNorm's factors for encoder-decoder models (Wang et al. 2022, figure 2); 1 with other norms.

    The first multiplies x in residual sums; the second the initial weights of W^V, W^O and the feed-forward layer.
    """
    if config.norm != "deepnorm":
        return 1.0, 1.0
    encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
    if stack == "encoder":
        depth = (encoder**4 * decoder) ** (1 / 16)
        return 0.81 * depth, 0.87 / depth
    return (3 * decoder) ** (1 / 4), (12 * decoder) ** (-1 / 4)


def positions(config: ModelConfig, causal: bool) -> Positions:
    """The position encoding of a stack; `causal` in the decoder."""
    encoding: type[Positions] = module_class(config, "positions", ENCODINGS[config.positions])
    return encoding.from_config(config, causal)


def position_limit(config: ModelConfig) -> int | None:
    """The length of the longest sequence that the position encoding supports; None without a limit."""
    return positions(config, causal=False).limit


def encoder(config: ModelConfig) -> Encoder:
    layer_cls = functools.partial(layer, config, "encoder")
    return Encoder(layer_cls, config.num_encoder_layers, **_stack_fields(config, causal=False))


def decoder(config: ModelConfig) -> Decoder:
    layer_cls, divisor = functools.partial(layer, config, "decoder"), config.d_model / config.base_d_model
    return Decoder(layer_cls, config.num_decoder_layers, **_stack_fields(config, causal=True), output_divisor=divisor)


def _stack_fields(config: ModelConfig, causal: bool) -> dict[str, Any]:
    return {
        "positions_cls": functools.partial(positions, config, causal),
        "dropout": config.dropout,
        "final_norm_cls": norm_class(config) if config.is_pre_norm else None,
        "share_layers": config.share_layers,
    }


def embedding(config: ModelConfig, vocab_size: int, is_output: bool = False) -> Any:
    """An embedding of the model. An output's table is only multiplied, never looked up: it begins as "normal"."""
    return module_class(config, "embedding")(
        vocab_size=vocab_size,
        d_model=config.d_model,
        is_scaled=config.scale_embeddings,
        initial="normal" if is_output else config.embedding_init,
        base_d_model=config.base_d_model,
        dtype=jnp.dtype(config.dtype),
    )
