"""The same model and step written with flax linen's modules and optax, for comparison.

The paper's post-norm Transformer, one table for both embeddings and the output, no biases in attention; the logits of
the whole batch at once. `like_ours` converts this library's parameters to its layout;
tests/benchmarks/test_linen_model.py checks that both have the same value and gradient.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from transformer_jax import ModelConfig, inverse_sqrt_schedule, sinusoidal_positions


class Attention(nn.Module):
    config: ModelConfig

    @nn.compact
    def __call__(self, query: jax.Array, key_value: jax.Array, mask: jax.Array) -> jax.Array:
        attention = nn.MultiHeadDotProductAttention(
            self.config.num_heads, dtype=self.config.dtype, use_bias=False, name="attention"
        )
        return attention(query, key_value, mask=mask, deterministic=True)  # the paper drops no attention weights


class FeedForward(nn.Module):
    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Dense(self.config.d_ff, dtype=self.config.dtype, name="inner")(x))
        return nn.Dense(self.config.d_model, dtype=self.config.dtype, name="outer")(x)


class Residual(nn.Module):
    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array, sublayer: jax.Array, deterministic: bool) -> jax.Array:
        dropped = nn.Dropout(self.config.dropout)(sublayer, deterministic=deterministic)
        return nn.LayerNorm(self.config.norm_epsilon, dtype=self.config.dtype, name="norm")(x + dropped)


class LinenTransformer(nn.Module):
    """Logits_BTN of each next target token."""

    config: ModelConfig

    @nn.compact
    def __call__(self, source_BS: jax.Array, target_BT: jax.Array, deterministic: bool = True) -> jax.Array:
        config = self.config
        table = nn.Embed(config.vocab_size, config.d_model, dtype=config.dtype, name="table")

        def embed(tokens: jax.Array) -> jax.Array:
            x = table(tokens) * config.d_model**0.5
            x = x + sinusoidal_positions(tokens.shape[1], config.d_model).astype(x.dtype)[None]
            return nn.Dropout(config.dropout)(x, deterministic=deterministic)

        def sublayers(stack: str, layer: int, sublayer: str) -> tuple[Any, Any]:
            kind, name = FeedForward if sublayer == "feed_forward" else Attention, f"{stack}_{layer}_{sublayer}"
            return kind(config, name=name), Residual(config, name=f"{name}_residual")

        source_mask = nn.make_attention_mask(jnp.ones_like(source_BS) > 0, source_BS > 0)
        target_mask = nn.combine_masks(
            nn.make_causal_mask(target_BT), nn.make_attention_mask(target_BT > 0, target_BT > 0)
        )
        cross_mask = nn.make_attention_mask(jnp.ones_like(target_BT) > 0, source_BS > 0)
        x = embed(source_BS)
        for layer in range(config.num_encoder_layers):
            attention, residual = sublayers("encoder", layer, "self_attention")
            x = residual(x, attention(x, x, source_mask), deterministic)
            feed_forward, residual = sublayers("encoder", layer, "feed_forward")
            x = residual(x, feed_forward(x), deterministic)
        memory, x = x, embed(target_BT)
        for layer in range(config.num_decoder_layers):
            attention, residual = sublayers("decoder", layer, "self_attention")
            x = residual(x, attention(x, x, target_mask), deterministic)
            attention, residual = sublayers("decoder", layer, "cross_attention")
            x = residual(x, attention(x, memory, cross_mask), deterministic)
            feed_forward, residual = sublayers("decoder", layer, "feed_forward")
            x = residual(x, feed_forward(x), deterministic)
        return table.attend(x).astype(jnp.float32)


def smoothed_loss(logits: jax.Array, targets: jax.Array, epsilon: float = 0.1) -> jax.Array:
    """Mean loss over non-padding tokens."""
    aimed = optax.smooth_labels(jax.nn.one_hot(targets, logits.shape[-1]), epsilon)
    weights = targets > 0
    return jnp.sum(optax.softmax_cross_entropy(logits, aimed) * weights) / jnp.sum(weights)


def make_step(config: ModelConfig) -> tuple[Callable[[], Any], Callable[[Any, Any, Any, Any], tuple[Any, jax.Array]]]:
    """(a new state, the jitted step (state, source, target input, target output) -> (state, loss)), by optax's Adam."""
    model = LinenTransformer(config)
    adam = optax.adam(inverse_sqrt_schedule(config.d_model), b1=0.9, b2=0.98, eps=1e-9)

    def new_state() -> Any:
        tokens = np.ones((1, 2), np.int32)
        params = jax.jit(model.init)(jax.random.key(0), tokens, tokens)["params"]
        return params, adam.init(params), jax.random.key(1)

    def step(state: Any, source: jax.Array, target_input: jax.Array, target_output: jax.Array) -> Any:
        params, moments, key = state
        key, dropout = jax.random.split(key)

        def loss(params: Any) -> jax.Array:
            rngs = {"dropout": dropout}
            logits: Any = model.apply({"params": params}, source, target_input, deterministic=False, rngs=rngs)
            return smoothed_loss(logits, target_output)

        value, gradients = jax.value_and_grad(loss)(params)
        changes, moments = adam.update(gradients, moments, params)
        return (optax.apply_updates(params, changes), moments, key), value

    return new_state, jax.jit(step, donate_argnums=0)


def like_ours(params: Any, config: ModelConfig) -> Any:
    """Our parameters under its names: heads have a separate axis there."""
    theirs = {"table": {"embedding": params["source_embedding"]["table"]}}
    for stack in ("encoder", "decoder"):
        for layer, own in params[stack].items():
            number = layer.removeprefix("layers_")
            for name, part in own.items():
                theirs[f"{stack}_{number}_{name}"] = (
                    {"attention": {_named(kind): _by_heads(kind, leaf, config) for kind, leaf in part.items()}}
                    if name.endswith("attention")
                    else part
                )
    return theirs


def _named(projection: str) -> str:
    return "out" if projection == "output" else projection


def _by_heads(projection: str, leaf: Any, config: ModelConfig) -> Any:
    heads, width = config.num_heads, config.key_size
    kernel = leaf["kernel"]
    if projection == "output":
        return {"kernel": kernel.reshape(heads, width, config.d_model)}
    return {"kernel": kernel.reshape(config.d_model, heads, width)}
