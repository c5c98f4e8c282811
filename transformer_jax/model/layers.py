"""The layers of section 3.1 and 3.3: feed-forward, encoder layer, decoder layer."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer_jax.model import custom_modules
from transformer_jax.model.attention import Cache, Context, MultiHeadAttention
from transformer_jax.model.dropout import Dropout
from transformer_jax.model.linear import Linear, xavier
from transformer_jax.model.norm import norm_of
from transformer_jax.model.residual import Residual, Stack, depth_scaling
from transformer_jax.model.shapes import check_floating, check_positive
from transformer_jax.model_config import ModelConfig

# The caches of a decoder layer's two attentions, "self" and "cross".
LayerCache = dict[str, Cache]

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),  # with erf, as defined; JAX's default approximates it
    "swish": jax.nn.swish,
}
GATES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "glu": jax.nn.sigmoid,
    "bilinear": lambda gate: gate,
    "reglu": ACTIVATIONS["relu"],
    "geglu": ACTIVATIONS["gelu"],
    "swiglu": ACTIVATIONS["swish"],
}


class FeedForward(nn.Module):
    """Equation 2: max(0, x W_1 + b_1) W_2 + b_2, applied to each position separately.

    With a gate (Shazeer 2020, section 2) the inner layer is x W_1 times, in "swiglu", swish(x W_g), with a third matrix
    W_g; "glu" has the sigmoid, "bilinear" no function, "reglu" and "geglu" relu and gelu.
    """

    d_ff: int
    activation: str = "relu"
    dropout: float = 0.0
    use_bias: bool = True
    dtype: Any = jnp.float32
    gain: float = 1.0  # of the initial weights
    mup_base: tuple[float, float] | None = None  # d_model and d_ff of muP's base model

    @nn.compact
    def __call__(self, x_BTD: jax.Array, deterministic: bool = True) -> jax.Array:
        check_positive(d_ff=self.d_ff)
        check_floating(x=x_BTD, dtype=self.dtype)
        base_DF, linear = self.mup_base, functools.partial(Linear, self.use_bias, self.dtype)
        into, out_of = xavier(self.gain, base_DF), xavier(self.gain, base_DF and base_DF[::-1])
        inner_BTF = linear(into, name="inner")(x_BTD, self.d_ff)
        if self.activation not in {**ACTIVATIONS, **GATES}:
            raise ValueError(f"activation = {self.activation!r}: must be one of {', '.join([*ACTIVATIONS, *GATES])}")
        if self.activation in GATES:
            gate_BTF = linear(into, name="gate")(x_BTD, self.d_ff)
            inner_BTF = inner_BTF * GATES[self.activation](gate_BTF)
        else:
            inner_BTF = ACTIVATIONS[self.activation](inner_BTF)
        inner_BTF = Dropout(self.dropout)(inner_BTF, deterministic)
        return linear(out_of, name="outer")(inner_BTF, x_BTD.shape[-1])


# The methods that use these fields: what overrides one must use them as well, where they are not at their defaults.
ATTENTION_USES = {
    "dropout": ("with_context", "attend"),
    "num_key_value_heads": ("with_context", "attend", "keys", "values"),
    "softcap": ("with_context", "attend"),
    "qk_norm": ("with_context", "queries", "keys"),
    "scale": ("with_context", "attend"),
}
FEED_FORWARD_USES = dict.fromkeys(("activation", "dropout", "use_bias", "gain", "mup_base"), ("__call__",))


def attention_of(config: ModelConfig, stack: Stack | None = None) -> Any:
    """The attention module of a config, in the encoder or in the decoder."""
    later = {
        "num_key_value_heads": config.key_value_heads if config.key_value_heads != config.num_heads else None,
        "softcap": config.attention_softcap,
        "qk_norm": functools.partial(norm_of, config) if config.qk_norm else None,
        "scale": None if config.mup_base_d_model is None else config.score_scale,
    }
    fields = {
        "num_heads": config.num_heads,
        "d_k": config.key_size,
        "d_v": config.value_size,
        "dropout": config.attention_dropout,
        "use_bias": config.attention_bias,
        "dtype": jnp.dtype(config.dtype),
        # What runs on a mesh has it decided by the mesh's devices; a model used alone does not ask where it is.
        "implementation": "plain" if config.attention_implementation == "auto" else config.attention_implementation,
        **_gain(config, stack),
        **{name: value for name, value in later.items() if value is not None},
    }
    methods = ("with_context", "remember", "new_cache")
    attention = custom_modules.choose(config, "attention", MultiHeadAttention, methods, fields=tuple(fields))
    called, with_context = (
        custom_modules.overrides(attention, MultiHeadAttention, name) for name in ("__call__", "with_context")
    )
    if called and not with_context:
        problem = "overrides __call__, which layers do not call; with_context(query, key_value, context) is what they "
        raise custom_modules.unfit(config, "attention", problem + "call (docs/parts.md)")
    custom_modules.refuse_ignored_fields(config, "attention", attention, MultiHeadAttention, fields, ATTENTION_USES)
    return attention(**fields)


def feed_forward_of(config: ModelConfig, stack: Stack | None = None) -> Any:
    """The feed-forward module of a config, in the encoder or in the decoder."""
    fields = {
        "d_ff": config.inner_width,
        "activation": config.activation,
        "dropout": config.activation_dropout,
        "use_bias": config.ffn_bias,
        "dtype": jnp.dtype(config.dtype),
        **_gain(config, stack),
        **_mup_base(config),
    }
    feed_forward = custom_modules.choose(config, "feed_forward", FeedForward, fields=tuple(fields))
    custom_modules.refuse_ignored_fields(config, "feed_forward", feed_forward, FeedForward, fields, FEED_FORWARD_USES)
    return feed_forward(**fields)


def _gain(config: ModelConfig, stack: Stack | None) -> dict[str, float]:
    """The field of DeepNorm, without which custom modules may lack it."""
    beta = depth_scaling(config, stack).beta
    return {} if beta == 1 else {"gain": beta}


def _mup_base(config: ModelConfig) -> dict[str, tuple[float, float]]:
    """The field of muP, which is not needed where both widths grow alike: Xavier's variance then is as muP's."""
    base = config.mup_base_widths()
    share_D, share_F = base["d_model"] / config.d_model, base["d_ff"] / config.d_ff
    widths = float(base["d_model"]), float(share_F * config.inner_width)
    return {} if share_D == share_F else {"mup_base": widths}


class _Layer(nn.Module):
    """What both layers are built from: a subclass replaces one component by overriding the method that makes it."""

    config: ModelConfig
    stack: ClassVar[Stack]

    def make_attention(self) -> Any:
        return attention_of(self.config, self.stack)

    def make_feed_forward(self) -> Any:
        return feed_forward_of(self.config, self.stack)

    def make_residual(self) -> Any:
        return Residual(self.config, self.stack)


class EncoderLayer(_Layer):
    """Self-attention, then feed-forward (section 3.1)."""

    stack = "encoder"

    def setup(self) -> None:
        self.self_attention = self.make_attention()
        self.self_attention_residual = self.make_residual()
        self.feed_forward = self.make_feed_forward()
        self.feed_forward_residual = self.make_residual()

    def __call__(self, x_BSD: jax.Array, context: Context) -> jax.Array:
        y = self.self_attention_residual.enter(x_BSD)
        y, _ = self.self_attention.with_context(y, y, context)
        x_BSD = self.self_attention_residual.leave(x_BSD, y, context.deterministic)

        y = self.feed_forward(self.feed_forward_residual.enter(x_BSD), context.deterministic)
        return self.feed_forward_residual.leave(x_BSD, y, context.deterministic)


class DecoderLayer(_Layer):
    """Self-attention, cross-attention to the encoder's output ("memory"), then feed-forward (section 3.1).

    With a cache (from `new_cache`) x holds only new tokens, and the memory is in the cache. The caches of self- and
    cross-attention are in their contexts; the result has both of them, or None.
    """

    stack = "decoder"

    def make_cross_attention(self) -> Any:
        return self.make_attention()

    def setup(self) -> None:
        self.self_attention = self.make_attention()
        self.self_attention_residual = self.make_residual()
        self.cross_attention = self.make_cross_attention()
        self.cross_attention_residual = self.make_residual()
        self.feed_forward = self.make_feed_forward()
        self.feed_forward_residual = self.make_residual()

    def __call__(
        self, x_BTD: jax.Array, memory_BSD: jax.Array | None, context: Context, cross_context: Context
    ) -> tuple[jax.Array, LayerCache | None]:
        y = self.self_attention_residual.enter(x_BTD)
        y, own = self.self_attention.with_context(y, y, context)
        x_BTD = self.self_attention_residual.leave(x_BTD, y, context.deterministic)

        y = self.cross_attention_residual.enter(x_BTD)
        y, cross = self.cross_attention.with_context(y, memory_BSD, cross_context)
        x_BTD = self.cross_attention_residual.leave(x_BTD, y, context.deterministic)

        y = self.feed_forward(self.feed_forward_residual.enter(x_BTD), context.deterministic)
        x_BTD = self.feed_forward_residual.leave(x_BTD, y, context.deterministic)
        return x_BTD, {"self": own, "cross": cross} if own is not None and cross is not None else None

    def new_cache(self, memory_BSD: jax.Array, length: int) -> LayerCache:
        """Room for `length` target tokens, and the memory's keys and values."""
        batch, _, d_model = memory_BSD.shape
        own = self.self_attention.new_cache(batch, length, d_model)
        return {"self": own, "cross": self.cross_attention.remember(memory_BSD)}
