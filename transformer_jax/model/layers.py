"""What a stack is built from (sections 3.1 and 3.3): feed-forward, residual connection, encoder and decoder layer."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jax.typing import ArrayLike

from transformer_jax.model.attention import Cache, Context
from transformer_jax.model.dropout import Dropout, Rate
from transformer_jax.model.linear import Linear, xavier
from transformer_jax.model.norm import LayerNorm
from transformer_jax.model.shapes import check_floating, check_positive

# The caches of a decoder layer's two attentions, "self" and "cross".
LayerCache = dict[str, Cache]
# A class of modules, or a functools.partial of one: called without arguments it makes a module.
ModuleClass = Callable[[], Any]
NormPlacement = Literal["post", "pre", "sandwich", "deepnorm"]
# The name of the residual sums for a `jax.checkpoint` policy.
RESIDUAL = "residual_sum"

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

    `d_ff` is the inner width, `dropout` the rate at which its numbers are dropped (the paper has none), `gain`
    multiplies the initial weights (DeepNorm), and `mup_base` has d_model and d_ff of muP's base model.

    With a gate (Shazeer 2020, section 2) the inner layer is x W_1 times, in "swiglu", swish(x W_g), with a third matrix
    W_g; "glu" has the sigmoid, "bilinear" no function, "reglu" and "geglu" relu and gelu.
    """

    d_ff: int
    activation: str = "relu"
    dropout: float = 0.0
    use_bias: bool = True
    dtype: Any = jnp.float32
    gain: float = 1.0
    mup_base: tuple[float, float] | None = None

    @nn.compact
    def __call__(self, x_BTD: ArrayLike, deterministic: bool = True) -> jax.Array:
        check_positive(d_ff=self.d_ff)
        check_floating(x=x_BTD, dtype=self.dtype)
        x_BTD = jnp.asarray(x_BTD)
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


class Residual(nn.Module):
    """The connection around each sub-layer, in two halves: y = pre(x), then add(x, sublayer(y)).

    - `placement`: where its norms are.
        - "post" (sections 3.1 and 5.4): LayerNorm(x + Dropout(Sublayer(x))).
        - "pre": x + Dropout(Sublayer(LayerNorm(x))).
        - "sandwich" (Ding et al. 2021, CogView): x + LayerNorm(Dropout(Sublayer(LayerNorm(x)))), with dropout where
          their code has it.
        - "deepnorm" (Wang et al. 2022): LayerNorm(alpha x + Dropout(Sublayer(x))).
    - `norm_cls`: makes the norm.
    - `dropout`: the rate at which the sub-layer's output is dropped.
    - `alpha`: DeepNorm's factor of x, from `deepnorm_scaling`.
    """

    placement: NormPlacement = "post"
    norm_cls: ModuleClass = LayerNorm
    dropout: Rate = 0.0
    alpha: float = 1.0

    def setup(self) -> None:
        self.norm = self.norm_cls()
        if self.placement == "sandwich":
            self.output_norm = self.norm_cls()
        self.drop = Dropout(self.dropout)

    def pre(self, x: jax.Array) -> jax.Array:
        return self.norm(x) if self.placement in ("pre", "sandwich") else x

    def add(self, x: jax.Array, sublayer: jax.Array, deterministic: bool) -> jax.Array:
        sublayer = self.drop(sublayer, deterministic)
        if self.placement == "sandwich":
            sublayer = self.output_norm(sublayer)
        if self.placement == "deepnorm":
            x = self.alpha * x
        x = checkpoint_name(x + sublayer, RESIDUAL)
        return x if self.placement in ("pre", "sandwich") else self.norm(x)


class _Layer(nn.Module):
    """What both layers are built from. A subclass may have another class of residual connections."""

    residual_class: ClassVar[type[Residual]] = Residual

    attention_cls: ModuleClass
    feed_forward_cls: ModuleClass
    placement: NormPlacement = "post"
    norm_cls: ModuleClass = LayerNorm
    dropout: Rate = 0.0
    alpha: float = 1.0

    def make_attention(self) -> Any:
        return self.attention_cls()

    def make_feed_forward(self) -> Any:
        return self.feed_forward_cls()

    def make_residual(self) -> Any:
        return self.residual_class(self.placement, self.norm_cls, self.dropout, self.alpha)


class EncoderLayer(_Layer):
    """Self-attention, then feed-forward (section 3.1).

    - `attention_cls`, `feed_forward_cls`: make the sub-layers, as in `functools.partial(MultiHeadAttention, 8)`.
    - `placement`, `norm_cls`, `dropout`, `alpha`: of the residual connection around each of them, see `Residual`.
    """

    def setup(self) -> None:
        self.self_attention = self.make_attention()
        self.self_attention_residual = self.make_residual()
        self.feed_forward = self.make_feed_forward()
        self.feed_forward_residual = self.make_residual()

    def __call__(self, x_BSD: jax.Array, context: Context) -> jax.Array:
        y = self.self_attention_residual.pre(x_BSD)
        y, _ = self.self_attention.with_context(y, y, context)
        x_BSD = self.self_attention_residual.add(x_BSD, y, context.deterministic)

        y = self.feed_forward(self.feed_forward_residual.pre(x_BSD), context.deterministic)
        return self.feed_forward_residual.add(x_BSD, y, context.deterministic)


class DecoderLayer(_Layer):
    """Self-attention, cross-attention to the encoder's output ("memory"), then feed-forward (section 3.1).

    Its fields are those of `EncoderLayer`; `make_cross_attention` may be overridden for another kind of attention.
    With a cache (from `new_cache`) x holds only new tokens, and the memory is in the cache. The caches of self- and
    cross-attention are in their contexts; the result has both of them, or None.
    """

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
        y = self.self_attention_residual.pre(x_BTD)
        y, own = self.self_attention.with_context(y, y, context)
        x_BTD = self.self_attention_residual.add(x_BTD, y, context.deterministic)

        y = self.cross_attention_residual.pre(x_BTD)
        y, cross = self.cross_attention.with_context(y, memory_BSD, cross_context)
        x_BTD = self.cross_attention_residual.add(x_BTD, y, context.deterministic)

        y = self.feed_forward(self.feed_forward_residual.pre(x_BTD), context.deterministic)
        x_BTD = self.feed_forward_residual.add(x_BTD, y, context.deterministic)
        return x_BTD, {"self": own, "cross": cross} if own is not None and cross is not None else None

    def new_cache(self, memory_BSD: jax.Array, length: int) -> LayerCache:
        """Room for `length` target tokens, and the memory's keys and values."""
        batch, _, d_model = memory_BSD.shape
        own = self.self_attention.new_cache(batch, length, d_model)
        return {"self": own, "cross": self.cross_attention.project_memory(memory_BSD)}
