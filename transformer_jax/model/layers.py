"""The parts of the encoder and the decoder: linear maps, norms, feed-forward, residuals, embeddings."""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jax.typing import ArrayLike

from transformer_jax.model import tpu
from transformer_jax.model.checks import check_choice, check_positive, check_type, check_whole
from transformer_jax.model.dropout import Dropout, Rate, drops
from transformer_jax.model.meshes import contracted, explicit_mesh, precision_of, reshaped, rows_of
from transformer_jax.model_config import EmbeddingInit

# A class of modules, or a functools.partial of one: called without arguments it makes a module.
ModuleClass = Callable[[], Any]
NormPlacement = Literal["post", "pre", "sandwich", "deepnorm"]
# The name of the residual sums for a `jax.checkpoint` policy.
RESIDUAL = "residual_sum"


# Linear maps.


def xavier(
    gain: float = 1.0, base_shape: tuple[float, float] | None = None, shared_by: int = 1
) -> nn.initializers.Initializer:
    """Xavier-uniform (Glorot and Bengio 2010), times a gain.

    `base_shape` is the shape of the matrix in muP's base model: beyond it the variance is proportional to 1 / fan_in.
    `shared_by`: the number of heads that each output serves; it begins as if each of them had its own.
    """

    def initialize(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
        base = base_shape or (shape[0], shape[1] * shared_by)
        variance = gain**2 * (sum(shape) / sum(base)) * (base[0] / shape[0])  # as a multiple of Xavier's
        return nn.initializers.variance_scaling(variance, "fan_avg", "uniform")(key, shape, dtype)

    return initialize


class Linear(nn.Module):
    """x W + b over the last `axes` axes of x, with outputs of these `features`. W is Xavier-uniform by default, b zero.

    The product is two-dimensional, over (all other axes, width): on CPUs that is 1.5 times as fast as flax's nn.Dense.
    On TPUs it is another (`tpu.py`).
    """

    use_bias: bool = True
    dtype: Any = jnp.float32
    kernel_init: nn.initializers.Initializer = xavier()

    @nn.compact
    def __call__(self, x: jax.Array, *features: int, axes: int = 1) -> jax.Array:
        others, widths = x.shape[:-axes], x.shape[-axes:]
        width, outputs = math.prod(widths), math.prod(features)
        kernel = self.param("kernel", self.kernel_init, (width, outputs)).astype(self.dtype)
        x = x.astype(self.dtype)
        if tpu.WANTED.get():
            y = tpu.product(x, kernel.reshape(*widths, *features), axes)
        elif explicit_mesh(x, kernel) is not None:
            y = contracted(x, reshaped(kernel, *widths, *features), axes)
        else:
            y = jnp.matmul(x.reshape(-1, width), kernel, precision=precision_of(x)).reshape(*others, *features)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros_init(), (outputs,), jnp.float32).astype(self.dtype)
            y = y + reshaped(bias, *(1 for _ in others), *features)
        return y


# Norms. A new one is a class with these two fields, an entry in NORMS, and a name in ModelConfig.norm_kind.


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis, in float32 (Ba et al. 2016)."""

    epsilon: float = 1e-6
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        check_positive(epsilon=self.epsilon)
        check_type(jnp.floating, x=x)
        scale = self.param("scale", nn.initializers.ones_init(), (x.shape[-1],), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros_init(), (x.shape[-1],), jnp.float32)
        unit = normalized(x.astype(jnp.float32), self.epsilon, is_centred=True)
        axes = (1,) * (x.ndim - 1)
        return (unit * scale.reshape(*axes, -1) + bias.reshape(*axes, -1)).astype(self.dtype)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * scale over the last axis, in float32 (Zhang and Sennrich 2019)."""

    epsilon: float = 1e-6
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        check_positive(epsilon=self.epsilon)
        check_type(jnp.floating, x=x)
        scale = self.param("scale", nn.initializers.ones_init(), (x.shape[-1],), jnp.float32)
        unit = normalized(x.astype(jnp.float32), self.epsilon, is_centred=False)
        return (unit * scale.reshape(*(1,) * (x.ndim - 1), -1)).astype(self.dtype)


NORMS: dict[str, type[nn.Module]] = {"layer": LayerNorm, "rms": RMSNorm}


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def normalized(x: jax.Array, epsilon: float, is_centred: bool) -> jax.Array:
    """x with a mean square of 1 over the last axis; if `is_centred`, its mean is subtracted first."""
    return _unit_and_rate(x, epsilon, is_centred)[0]


@normalized.defjvp
def _derivative_of_norm(epsilon: float, is_centred: bool, inputs: Any, changes: Any) -> tuple[jax.Array, jax.Array]:
    """The tangent without its components along the result and, if centred, along 1, which have no effect.

    It needs only the result and one number per row; by default JAX keeps two more arrays as large as x.
    """
    (x,), (change,) = inputs, changes
    unit, rate = _unit_and_rate(x, epsilon, is_centred)
    along_one = jnp.mean(change, axis=-1, keepdims=True) if is_centred else 0.0
    along_unit = jnp.mean(change * unit, axis=-1, keepdims=True)
    return unit, rate * (change - along_one - unit * along_unit)


def _unit_and_rate(x: jax.Array, epsilon: float, is_centred: bool) -> tuple[jax.Array, jax.Array]:
    if is_centred:
        x = x - jnp.mean(x, axis=-1, keepdims=True)
    rate = jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + epsilon)
    return x * rate, rate


# Feed-forward (section 3.3).

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

    `d_ff` is the inner width, `activation` a name or a function, `dropout` the rate at which the inner numbers are
    dropped (the paper has none), `gain` multiplies the initial weights (DeepNorm), and `mup_base` has d_model and d_ff
    of muP's base model.

    With a gate (Shazeer 2020, section 2) the inner layer is x W_1 times, in "swiglu", swish(x W_g), with a third matrix
    W_g; "glu" has the sigmoid, "bilinear" no function, "reglu" and "geglu" relu and gelu.
    """

    d_ff: int
    activation: str | Callable[[jax.Array], jax.Array] = "relu"
    dropout: Rate = 0.0
    use_bias: bool = True
    dtype: Any = jnp.float32
    gain: float = 1.0
    mup_base: tuple[float, float] | None = None

    @nn.compact
    def __call__(self, x_BTD: ArrayLike, deterministic: bool = True) -> jax.Array:
        check_type(jnp.floating, x=x_BTD)
        check_whole(d_ff=self.d_ff)
        activation = self.activation
        if isinstance(activation, str):
            check_choice([*ACTIVATIONS, *GATES], activation=activation)
        x_BTD = jnp.asarray(x_BTD)
        base_DF, linear = self.mup_base, functools.partial(Linear, self.use_bias, self.dtype)
        into, out_of = xavier(self.gain, base_DF), xavier(self.gain, base_DF and base_DF[::-1])
        inner_BTF = linear(into, name="inner")(x_BTD, self.d_ff)
        if not isinstance(activation, str):
            inner_BTF = activation(inner_BTF)
        elif activation in GATES:
            gate_BTF = linear(into, name="gate")(x_BTD, self.d_ff)
            inner_BTF = inner_BTF * GATES[activation](gate_BTF)
        else:
            inner_BTF = ACTIVATIONS[activation](inner_BTF)
        inner_BTF = Dropout(self.dropout)(inner_BTF, deterministic)
        return linear(out_of, name="outer")(inner_BTF, x_BTD.shape[-1])


# Residual connections (sections 3.1 and 5.4).


class Residual(nn.Module):
    """The connection around each sub-layer, in two halves: y = pre(x), then add(x, sublayer(y)).

    - `placement`: where its norms are.
        - "post", the paper's: LayerNorm(x + Dropout(Sublayer(x))).
        - "pre": x + Dropout(Sublayer(LayerNorm(x))).
        - "sandwich" (Ding et al. 2021, CogView): x + LayerNorm(Dropout(Sublayer(LayerNorm(x)))), with dropout where
          their code has it.
        - "deepnorm" (Wang et al. 2022): LayerNorm(alpha x + Dropout(Sublayer(x))).
    - `norm_cls`: makes the norm.
    - `dropout`: the rate at which the sub-layer's output is dropped.
    - `alpha`: DeepNorm's factor of x, from `deepnorm_scaling`.
    - `layer_dropout`: the rate at which a row skips the sub-layer (stochastic depth, Huang et al. 2016).
    """

    placement: NormPlacement = "post"
    norm_cls: ModuleClass = LayerNorm
    dropout: Rate = 0.0
    alpha: float = 1.0
    layer_dropout: Rate = 0.0

    def setup(self) -> None:
        check_choice(get_args(NormPlacement), placement=self.placement)
        if self.alpha != 1 and self.placement != "deepnorm":
            raise ValueError(f"alpha = {self.alpha}: only placement='deepnorm' has this factor")
        self.norm = self.norm_cls()
        if self.placement == "sandwich":
            self.output_norm = self.norm_cls()
        self.drop, self.skip = Dropout(self.dropout), Dropout(self.layer_dropout)

    def pre(self, x: jax.Array) -> jax.Array:
        return self.norm(x) if self.placement in ("pre", "sandwich") else x

    def add(self, x: jax.Array, sublayer: jax.Array, deterministic: bool) -> jax.Array:
        sublayer = self.drop(sublayer, deterministic)
        if self.placement == "sandwich":
            sublayer = self.output_norm(sublayer)
        if drops(self.layer_dropout):
            kept = self.skip(jnp.ones_like(sublayer[:, :1, :1], jnp.float32), deterministic)
            sublayer = (sublayer * kept).astype(sublayer.dtype)
        if self.placement == "deepnorm":
            x = self.alpha * x
        x = checkpoint_name(x + sublayer, RESIDUAL)
        return x if self.placement in ("pre", "sandwich") else self.norm(x)


# Embeddings (section 3.4).


class Embedding(nn.Module):
    """Token vectors times sqrt(d_model), and the table of the pre-softmax product.

    - `vocab_size`, `d_model`: rows and columns of the table.
    - `is_scaled`: whether vectors are multiplied by sqrt(d_model), or sqrt(base_d_model).
    - `initial`: the initial table, "normal" or one of Csordás et al. 2021, section 3.1: there "xavier" is scaled up by
      sqrt(d_model), and "kaiming" has its positions scaled down.
    - `base_d_model`: d_model of muP's base model.
    - `dtype`: the type of the vectors and of the product; the table is float32.
    """

    vocab_size: int
    d_model: int
    is_scaled: bool = True
    initial: EmbeddingInit = "normal"
    base_d_model: int | None = None
    dtype: Any = jnp.float32

    def setup(self) -> None:
        check_choice(get_args(EmbeddingInit), initial=self.initial)
        check_whole(vocab_size=self.vocab_size, d_model=self.d_model)
        width = self.base_d_model or self.d_model
        deviations = {"normal": width**-0.5, "unit": 1.0, "kaiming": (2 / width) ** 0.5}
        if self.initial == "xavier":
            initializer = xavier(base_shape=(self.vocab_size, width))
        else:
            initializer = nn.initializers.normal(deviations[self.initial])
        self.table_ND = self.param("table", initializer, (self.vocab_size, self.d_model), jnp.float32)

    def __call__(self, tokens_BT: ArrayLike) -> jax.Array:
        """The vectors of tokens; NaN for ids beyond the vocabulary."""
        check_type(jnp.integer, tokens=tokens_BT)
        vectors_BTD = rows_of(self.table_ND, tokens_BT)
        if self.is_scaled:  # before the cast: in bfloat16 the root of 300 is 0.3 % off
            vectors_BTD = vectors_BTD * (self.base_d_model or self.d_model) ** 0.5
        return vectors_BTD.astype(self.dtype)

    def logits(self, x_BTD: jax.Array) -> jax.Array:
        """Float32 scores for every token of the vocabulary."""
        table_DN = self.table_ND.T.astype(self.dtype)
        if explicit_mesh(x_BTD, table_DN) is not None:
            return contracted(x_BTD.astype(self.dtype), table_DN, dtype=jnp.float32)
        rows = x_BTD.reshape(-1, x_BTD.shape[-1]).astype(self.dtype)
        logits = jnp.matmul(rows, table_DN, preferred_element_type=jnp.float32, precision=precision_of(rows))
        return logits.reshape(*x_BTD.shape[:-1], self.vocab_size)
