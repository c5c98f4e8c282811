"""The layers of section 3.1 and 3.3: feed-forward, residual with normalisation, encoder layer, decoder layer."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer_jax.model import parts
from transformer_jax.model.attention import Cache, MultiHeadAttention
from transformer_jax.model.dropout import Dropout
from transformer_jax.model.linear import Linear
from transformer_jax.model.norm import LayerNorm
from transformer_jax.model.positions import Places
from transformer_jax.model_config import ModelConfig

# What a decoder layer remembers between decoding steps: its two attentions' caches.
LayerCache = dict[str, Cache]

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),  # the definition, with erf; JAX's default is a fit to it
    "swish": jax.nn.swish,
    "swiglu": jax.nn.swish,
}


class FeedForward(nn.Module):
    """Equation 2: max(0, x W_1 + b_1) W_2 + b_2, at each position alike.

    "swiglu" (Shazeer 2020) multiplies swish(x W_g) into the inner layer: a third matrix.
    """

    d_ff: int
    activation: str = "relu"
    dropout: float = 0.0
    use_bias: bool = True
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x_BTD: jax.Array, deterministic: bool = True) -> jax.Array:
        inner_BTF = Linear(self.use_bias, self.dtype, name="inner")(x_BTD, self.d_ff)
        if self.activation == "swiglu":
            gate_BTF = Linear(self.use_bias, self.dtype, name="gate")(x_BTD, self.d_ff)
            inner_BTF = inner_BTF * ACTIVATIONS["swiglu"](gate_BTF)
        else:
            inner_BTF = ACTIVATIONS[self.activation](inner_BTF)
        inner_BTF = Dropout(self.dropout)(inner_BTF, deterministic)
        return Linear(self.use_bias, self.dtype, name="outer")(inner_BTF, x_BTD.shape[-1])


def norm_of(config: ModelConfig) -> LayerNorm:
    return LayerNorm(config.norm_epsilon, config.dtype)


class Residual(nn.Module):
    """The connection around each sub-layer, in two halves: y = enter(x), then leave(x, sublayer(y)).

    Post-norm (section 3.1 and 5.4): LayerNorm(x + Dropout(Sublayer(x))).
    Pre-norm: x + Dropout(Sublayer(LayerNorm(x))).
    """

    config: ModelConfig

    def setup(self) -> None:
        self.norm = norm_of(self.config)
        self.drop = Dropout(self.config.dropout)

    def enter(self, x: jax.Array) -> jax.Array:
        return self.norm(x) if self.config.norm == "pre" else x

    def leave(self, x: jax.Array, sublayer: jax.Array, deterministic: bool) -> jax.Array:
        total = x + self.drop(sublayer, deterministic)
        return self.norm(total) if self.config.norm == "post" else total


def attention_of(config: ModelConfig) -> Any:
    """The attention that a config describes."""
    attention = parts.choose(
        config.parts.attention, MultiHeadAttention, "attention", ("__call__", "remember", "new_cache")
    )
    return attention(
        num_heads=config.num_heads,
        d_k=config.key_size,
        d_v=config.value_size,
        dropout=config.attention_dropout,
        use_bias=config.attention_bias,
        dtype=jnp.dtype(config.dtype),
        implementation=config.attention_implementation,
    )


def feed_forward_of(config: ModelConfig) -> Any:
    """The feed-forward layer that a config describes."""
    return parts.choose(config.parts.feed_forward, FeedForward, "feed_forward")(
        d_ff=config.d_ff,
        activation=config.activation,
        dropout=config.activation_dropout,
        use_bias=config.ffn_bias,
        dtype=jnp.dtype(config.dtype),
    )


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward (section 3.1)."""

    config: ModelConfig

    def setup(self) -> None:
        self.self_attention = attention_of(self.config)
        self.self_attention_residual = Residual(self.config)
        self.feed_forward = feed_forward_of(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(
        self,
        x_BSD: jax.Array,
        mask: jax.Array | None,
        places: Places | None = None,
        head_mask_H: jax.Array | None = None,
        deterministic: bool = True,
    ) -> jax.Array:
        y = self.self_attention_residual.enter(x_BSD)
        y = self.self_attention(y, y, mask, deterministic=deterministic, places=places, head_mask_H=head_mask_H)
        x_BSD = self.self_attention_residual.leave(x_BSD, y, deterministic)

        y = self.feed_forward(self.feed_forward_residual.enter(x_BSD), deterministic)
        return self.feed_forward_residual.leave(x_BSD, y, deterministic)


class DecoderLayer(nn.Module):
    """Self-attention, attention to the encoder's output ("memory"), then feed-forward (section 3.1).

    With a cache (from `new_cache`) x holds only new tokens, and `memory` is not needed again.
    """

    config: ModelConfig

    def setup(self) -> None:
        self.self_attention = attention_of(self.config)
        self.self_attention_residual = Residual(self.config)
        self.cross_attention = attention_of(self.config)
        self.cross_attention_residual = Residual(self.config)
        self.feed_forward = feed_forward_of(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(
        self,
        x_BTD: jax.Array,
        memory_BSD: jax.Array | None,
        mask: jax.Array | None,
        memory_mask: jax.Array | None,
        cache: LayerCache | None = None,
        places: Places | None = None,
        head_masks_H: tuple[jax.Array | None, jax.Array | None] = (None, None),
        deterministic: bool = True,
    ) -> tuple[jax.Array, LayerCache | None]:
        own = None if cache is None else cache["self"]
        cross = None if cache is None else cache["cross"]

        y = self.self_attention_residual.enter(x_BTD)
        y = self.self_attention(y, y, mask, own, deterministic, places=places, head_mask_H=head_masks_H[0])
        if cache is not None:
            y, own = y
        x_BTD = self.self_attention_residual.leave(x_BTD, y, deterministic)

        y = self.cross_attention_residual.enter(x_BTD)
        memory_BSD = memory_BSD if cache is None else None  # the cache holds what attention needs of it
        y = self.cross_attention(y, memory_BSD, memory_mask, cross, deterministic, head_mask_H=head_masks_H[1])
        if cache is not None:
            y, cross = y
        x_BTD = self.cross_attention_residual.leave(x_BTD, y, deterministic)

        y = self.feed_forward(self.feed_forward_residual.enter(x_BTD), deterministic)
        x_BTD = self.feed_forward_residual.leave(x_BTD, y, deterministic)
        return x_BTD, {"self": own, "cross": cross} if own is not None and cross is not None else None

    def new_cache(self, memory_BSD: jax.Array, length: int) -> LayerCache:
        """Room for `length` target tokens, and the memory's keys and values."""
        batch, _, d_model = memory_BSD.shape
        own = self.self_attention.new_cache(batch, length, d_model)
        return {"self": own, "cross": self.cross_attention.remember(memory_BSD)}
