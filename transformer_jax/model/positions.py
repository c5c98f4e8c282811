"""Position encodings: the functions of arrays that they compute, their interface, and modules that use them.

Positions are integers "BT", one row per sentence or a single row for all (not always 0, 1, 2 ...: packing restarts them
in each segment).
"""

import bisect
import math
import operator
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import ArrayLike

from transformer_jax.errors import closest
from transformer_jax.model.checks import check_choice, check_multiple, check_positive, check_shapes
from transformer_jax.model.layers import xavier
from transformer_jax.model.meshes import product, reshaped, rows_of
from transformer_jax.model_config import ModelConfig

# How pairs of numbers lie in a vector.
ORDERS = ("interleaved", "halves")


def sinusoidal_positions(length: int, d_model: int) -> jax.Array:
    """Section 3.5, [length, d_model]: sin(pos / 10000^(2i/d_model)) at 2i, the cosine of the same at 2i + 1."""
    return sinusoid(jnp.arange(length), d_model)


def sinusoid(positions: ArrayLike, d_model: int, order: str = "interleaved") -> jax.Array:
    """The paper's sinusoids at any positions, on a new last axis.

    `order`: "interleaved", sine and cosine in turn, or "halves", all sines first, as in Tensor2Tensor and Marian.
    """
    check_choice(ORDERS, order=order)
    turns = angles(positions, d_model)
    join: Any = {"interleaved": jnp.stack, "halves": jnp.concatenate}[order]
    paired: jax.Array = join([jnp.sin(turns), jnp.cos(turns)], axis=-1)
    return reshaped(paired, *jnp.shape(positions), d_model)


def angles(positions: ArrayLike, width: int, theta: float = 10_000.0) -> jax.Array:
    """pos / theta^(2i / width) for i = 0 .. width/2 - 1, on a new last axis."""
    check_positive(width=width, theta=theta)
    check_multiple(2, "for pairs of numbers", width=width)
    positions = jnp.asarray(positions)
    wavelengths = theta ** (jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    return positions[..., None].astype(jnp.float32) / jnp.expand_dims(wavelengths, tuple(range(positions.ndim)))


def apply_rotary(
    x_BTHK: ArrayLike, positions_BT: ArrayLike, theta: float = 10_000.0, order: str = "interleaved"
) -> jax.Array:
    """Rotary positions (Su et al. 2021): pairs of numbers of a query or key, rotated by position / theta^(2i / d_k).

    `positions_BT` is [batch or 1, length], or [length]. `order`: pair i is "interleaved", (2i, 2i + 1), or in "halves",
    (i, i + d_k / 2), as in the weights of Llama and others at Hugging Face.
    """
    check_choice(ORDERS, order=order)
    x_BTHK, positions_BT = jnp.asarray(x_BTHK), jnp.asarray(positions_BT)
    positions_BT = positions_BT[None] if positions_BT.ndim == 1 else positions_BT
    check_shapes(x_BTHK=x_BTHK, positions_PT=positions_BT)
    angles_BT1P = angles(positions_BT, x_BTHK.shape[-1], theta)[:, :, None]
    cos, sin = jnp.cos(angles_BT1P), jnp.sin(angles_BT1P)
    if order == "interleaved":
        first, second = x_BTHK[..., 0::2], x_BTHK[..., 1::2]
    else:
        first, second = jnp.split(x_BTHK, 2, axis=-1)
    turned = [first * cos - second * sin, first * sin + second * cos]
    joined = jnp.stack(turned, axis=-1) if order == "interleaved" else jnp.concatenate(turned, axis=-1)
    return reshaped(joined, *x_BTHK.shape).astype(x_BTHK.dtype)


def relative_distances(queries_BT: ArrayLike, keys_BS: ArrayLike) -> jax.Array:
    """The position of each key relative to each query, BTS: negative before it, positive after it."""
    # From an int32 on: the difference of unsigned positions would wrap around.
    return jnp.int32(0) + jnp.asarray(keys_BS)[:, None, :] - jnp.asarray(queries_BT)[:, :, None]


def relative_buckets(distances: ArrayLike, buckets: int = 32, furthest: int = 128, causal: bool = False) -> jax.Array:
    """T5's bucket of each distance (Raffel et al. 2020): a row of a table of `buckets` biases.

    Near distances have a bucket each, far ones share logarithmically wider buckets, up to `furthest`. If `causal`, all
    buckets are for the past.
    """
    distances = jnp.asarray(distances)
    buckets, furthest = operator.index(buckets), operator.index(furthest)  # whose powers are beyond numpy's integers
    count = buckets if causal else buckets // 2
    exact = count // 2
    if not 1 <= exact < furthest:
        raise ValueError(f"buckets = {buckets}, furthest = {furthest}: must be at least 4, and above {exact}")
    offset = jnp.zeros_like(distances) if causal else jnp.where(distances > 0, count, 0)
    steps = jnp.maximum(-distances, 0) if causal else jnp.abs(distances)
    # Far bucket k begins where (steps / exact)^n >= (furthest / exact)^k. A logarithm might be rounded to below that.
    n, far_steps = count - exact, range(exact, furthest)

    def first(k: int) -> int:
        return exact + bisect.bisect_left(far_steps, exact**n * furthest**k, key=lambda s: s**n * exact**k)

    far = exact + sum((steps >= first(k)).astype(jnp.int32) for k in range(1, n))
    return offset + jnp.where(steps < exact, steps, far)


def alibi_slopes(heads: int) -> list[float]:
    """ALiBi's slope of each head (Press et al. 2022): 2^(-8/h), 2^(-16/h) ...

    If h is no power of two: the slopes of the next lower power, then every second slope of the next higher one.
    """
    check_positive(heads=heads)
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return slopes if power == heads else slopes + alibi_slopes(2 * power)[0::2][: heads - power]


def alibi_bias(heads: int, queries_BT: ArrayLike, keys_BS: ArrayLike) -> jax.Array:
    """ALiBi's bias of the scores, BHTS: minus the slope times the distance, in both directions."""
    distance_B1TS = jnp.abs(relative_distances(queries_BT, keys_BS))[:, None].astype(jnp.float32)
    return -jnp.asarray(alibi_slopes(heads), jnp.float32)[None, :, None, None] * distance_B1TS


class Positions(nn.Module):
    """No positions, and the base class of every encoding: it overrides one or more of the methods below."""

    # Whether each layer has its own parameters, or all layers of a stack share them.
    per_layer: ClassVar[bool] = False
    # Whether `moved_values` is called; attention must then compute its weights explicitly.
    moves_values: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in vars(cls).keys() - cls.__annotations__.keys() - vars(Positions).keys():
            if name[0] != "_" and (meant := closest(name, ATTRIBUTES)):
                hint = f"did you mean {meant}? If not, let its name begin with _"
                raise TypeError(f"{cls.__name__}.{name}: Positions has no such attribute; {hint}")
        if cls.overrides("moved_values") and not cls.moves_values:
            raise TypeError(f"{cls.__name__}.moved_values: needs `moves_values = True` in the class")

    @classmethod
    def from_config(cls, config: ModelConfig, causal: bool) -> "Positions":
        """The encoding of a stack of this model; `causal` in the decoder. A class with fields overrides it."""
        return cls()

    def embed(self, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        """The stack's input with positions in it."""
        return x_BTD

    def rotate(self, x_BTHK: jax.Array, positions_BT: jax.Array) -> jax.Array:
        """Queries, or keys, rotated according to their positions."""
        return x_BTHK

    def bias(self, q_BTHK: jax.Array, queries_BT: jax.Array, keys_BS: jax.Array) -> jax.Array | None:
        """The bias that is added to the scaled scores: broadcasts to BHTS."""
        return None

    def content_queries(self, q_BTHK: jax.Array) -> jax.Array:
        """The queries as they are multiplied with the keys; `bias` has them without this change."""
        return q_BTHK

    def moved_values(self, weights_BHTS: jax.Array, queries_BT: jax.Array, keys_BS: jax.Array) -> Any:
        """The sum that is added to the heads' outputs, BTHV."""
        return None

    @property
    def limit(self) -> int | None:
        """The length of the longest sequence that it can encode; None without a limit."""
        return None

    @classmethod
    def overrides(cls, *methods: str) -> bool:
        """Whether the class has its own version of one of these methods."""
        return any(getattr(cls, method) is not getattr(Positions, method) for method in methods)


# The methods of an encoding that act on attention's scores, that act in attention, and all.
OF_SCORES = ("bias", "content_queries", "moved_values")
IN_ATTENTION = ("rotate", *OF_SCORES)
ALL_METHODS = ("embed", *IN_ATTENTION)
ATTRIBUTES = (*ALL_METHODS, "from_config", "limit", "moves_values", "per_layer")


def check_encoding(encoding: Any, methods: Sequence[str], hint: str) -> None:
    """Raises an error if an encoding overrides none of these methods, so that it would have no effect."""
    if not isinstance(encoding, Positions):
        raise TypeError(f"encoding is {encoding!r}: must be a position encoding, as in Context(encoding=Rotary())")
    if type(encoding) is not Positions and not encoding.overrides(*methods):
        raise ValueError(f"{type(encoding).__name__} has none of the methods {', '.join(methods)}: {hint}")


class Sinusoidal(Positions):
    """Section 3.5: fixed sinusoids, times `scale`, added to the embeddings. Any length."""

    order: str = "interleaved"
    scale: float = 1.0

    @classmethod
    def from_config(cls, config: ModelConfig, causal: bool) -> Positions:
        return cls(config.sinusoids, config.base_d_model**-0.5 if config.scale_positions else 1.0)

    def embed(self, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        return x_BTD + (self.scale * sinusoid(positions_BT, x_BTD.shape[-1], self.order)).astype(x_BTD.dtype)


class Learned(Positions):
    """A trained vector per position, added to the embeddings (Table 3, row E). Ends at `max_length`.

    Their initial variance is 1 / d_model, or with muP 1 / `base_d_model`.
    """

    max_length: int
    base_d_model: int | None = None

    @classmethod
    def from_config(cls, config: ModelConfig, causal: bool) -> Positions:
        return cls(config.max_length, config.base_d_model)

    @nn.compact
    def embed(self, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        size = nn.initializers.normal((self.base_d_model or x_BTD.shape[-1]) ** -0.5)
        table = self.param("table", size, (self.max_length, x_BTD.shape[-1]), jnp.float32)
        return x_BTD + rows_of(table, positions_BT).astype(x_BTD.dtype)

    @property
    def limit(self) -> int:
        return self.max_length


class Rotary(Positions):
    """Su et al. 2021: queries and keys are rotated by `apply_rotary`."""

    theta: float = 10_000.0
    order: str = "interleaved"

    def rotate(self, x_BTHK: jax.Array, positions_BT: jax.Array) -> jax.Array:
        return apply_rotary(x_BTHK, positions_BT, self.theta, self.order)


class Relative(Positions):
    """Shaw et al. 2018: trained vectors for the distance between query and key, added to keys and to values.

    Distances are clipped to `reach`. Each layer has its own vectors, shared by its heads. `scale` is attention's, by
    default 1 / sqrt(d_k); `mup_base`: d_k and d_v of muP's base model.
    """

    per_layer = True
    moves_values = True
    d_k: int
    d_v: int
    reach: int = 16
    scale: float | None = None
    mup_base: tuple[int, int] | None = None
    dtype: Any = jnp.float32

    @classmethod
    def from_config(cls, config: ModelConfig, causal: bool) -> Positions:
        base = config.mup_base_widths()
        mup_base = int(base["d_k"]), int(base["d_v"])
        sizes = config.key_size, config.value_size
        return cls(*sizes, scale=config.score_scale, mup_base=mup_base, dtype=jnp.dtype(config.dtype))

    def setup(self) -> None:
        rows, (base_K, base_V) = 2 * self.reach + 1, self.mup_base or (self.d_k, self.d_v)
        self.keys_RK = self.param("keys", xavier(base_shape=(rows, base_K)), (rows, self.d_k))
        self.values_RV = self.param("values", xavier(base_shape=(rows, base_V)), (rows, self.d_v))

    def bias(self, q_BTHK: jax.Array, queries_BT: jax.Array, keys_BS: jax.Array) -> jax.Array:
        # The score of every query and distance, from which each key selects its distance's (their section 3.3).
        scores_BHTR = product("bthk,rk->bhtr", q_BTHK, self.keys_RK.astype(q_BTHK.dtype), jnp.float32)
        scores_BHTR = scores_BHTR * (self.scale or self.d_k**-0.5)
        rows_B1TS = self._rows(queries_BT, keys_BS)[:, None]
        # Zeros of the scores' shape: on a mesh the rows are then divided as the scores are.
        rows_BHTS = rows_B1TS + jnp.zeros_like(scores_BHTR[..., :1], jnp.int32)
        return jnp.take_along_axis(scores_BHTR, rows_BHTS, axis=-1)

    def moved_values(self, weights_BHTS: jax.Array, queries_BT: jax.Array, keys_BS: jax.Array) -> jax.Array:
        # The total weight of each distance, times that distance's vector.
        weights_BHTS, values_RV = weights_BHTS.astype(self.dtype), self.values_RV.astype(self.dtype)
        chosen_BTSR = jax.nn.one_hot(self._rows(queries_BT, keys_BS), 2 * self.reach + 1, dtype=self.dtype)
        chosen_BTSR = jnp.broadcast_to(chosen_BTSR, (weights_BHTS.shape[0], *chosen_BTSR.shape[1:]))
        return product("bhtr,rv->bthv", product("bhts,btsr->bhtr", weights_BHTS, chosen_BTSR), values_RV)

    def _rows(self, queries_BT: jax.Array, keys_BS: jax.Array) -> jax.Array:
        return jnp.clip(relative_distances(queries_BT, keys_BS), -self.reach, self.reach) + self.reach


class TransformerXL(Positions):
    """Dai et al. 2019: the score of query i and key j is (q_i + u) k_j + (q_i + v) W_R r(i - j), over sqrt(d_k).

    r are the sinusoids of the distance, as wide as the model. u, v (per head) and W_R are trained, and each layer has
    its own (in their formula the layers share u and v). Without their recurrence there is no memory of earlier
    segments; and it acts in the encoder too, in both directions. `scale` replaces 1 / sqrt(d_k).

    No r is made for each pair of positions. With sin((i - j) w) = sin(i w) cos(j w) - cos(i w) sin(j w), and its cosine
    alike, (q_i + v) W_R is rotated by the query's position and multiplied with the sinusoids of the key's.
    """

    per_layer = True
    d_model: int
    num_heads: int
    d_k: int
    scale: float | None = None

    @classmethod
    def from_config(cls, config: ModelConfig, causal: bool) -> Positions:
        return cls(config.d_model, config.num_heads, config.key_size, config.score_scale)

    def setup(self) -> None:
        width, zeros = self.num_heads * self.d_k, nn.initializers.zeros_init()
        self.kernel_DF = self.param("kernel", xavier(), (self.d_model, width))
        self.u_F, self.v_F = (
            self.param(name, zeros, (width,), jnp.float32) for name in ("content_bias", "distance_bias")
        )

    def content_queries(self, q_BTHK: jax.Array) -> jax.Array:
        return q_BTHK + reshaped(self.u_F, 1, 1, *q_BTHK.shape[2:]).astype(q_BTHK.dtype)

    def bias(self, q_BTHK: jax.Array, queries_BT: jax.Array, keys_BS: jax.Array) -> jax.Array:
        dtype = q_BTHK.dtype
        kernel_DHK = reshaped(self.kernel_DF, self.d_model, *q_BTHK.shape[2:]).astype(dtype)
        q_BTHK = q_BTHK + reshaped(self.v_F, 1, 1, *q_BTHK.shape[2:]).astype(dtype)
        factors_BTHD = product("bthk,dhk->bthd", q_BTHK, kernel_DHK, jnp.float32)
        of_sin, of_cos = factors_BTHD[..., 0::2], factors_BTHD[..., 1::2]  # of the distance, sine and cosine in turn
        angles_BT1P = angles(queries_BT, self.d_model)[:, :, None]
        sin, cos = jnp.sin(angles_BT1P), jnp.cos(angles_BT1P)
        turned_BTHD = jnp.concatenate([of_cos * sin - of_sin * cos, of_sin * sin + of_cos * cos], axis=-1)
        turned_BTHD, keys_BSD = turned_BTHD.astype(dtype), sinusoid(keys_BS, self.d_model, "halves").astype(dtype)
        if keys_BSD.shape[0] == 1:  # one row for all sentences, which are then one product
            scores_BHTS = product("bthd,sd->bhts", turned_BTHD, keys_BSD[0], jnp.float32)
        else:
            scores_BHTS = product("bthd,bsd->bhts", turned_BTHD, keys_BSD, jnp.float32)
        return scores_BHTS * (self.scale or self.d_k**-0.5)


class T5(Positions):
    """Raffel et al. 2020: a trained number for each head and bucket of distance, see `relative_buckets`.

    All layers share the table. Unlike in T5 itself, scores keep their 1 / sqrt(d_k).
    """

    causal: bool = False
    buckets: int = 32
    furthest: int = 128

    @classmethod
    def from_config(cls, config: ModelConfig, causal: bool) -> Positions:
        return cls(causal)

    @nn.compact
    def bias(self, q_BTHK: jax.Array, queries_BT: jax.Array, keys_BS: jax.Array) -> jax.Array:
        table_RH = self.param("table", nn.initializers.normal(0.02), (self.buckets, q_BTHK.shape[2]), jnp.float32)
        distances_BTS = relative_distances(queries_BT, keys_BS)
        rows_BTS = relative_buckets(distances_BTS, self.buckets, self.furthest, self.causal)
        return jnp.moveaxis(rows_of(table_RH, rows_BTS), -1, 1)


class ALiBi(Positions):
    """Press et al. 2022: scores fall linearly with distance, in both directions, with a fixed slope per head."""

    def bias(self, q_BTHK: jax.Array, queries_BT: jax.Array, keys_BS: jax.Array) -> jax.Array:
        return alibi_bias(q_BTHK.shape[2], queries_BT, keys_BS)


ENCODINGS: dict[str, type[Positions]] = {
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "none": Positions,
    "rotary": Rotary,
    "relative": Relative,
    "transformer_xl": TransformerXL,
    "t5": T5,
    "alibi": ALiBi,
}
