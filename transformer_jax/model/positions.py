"""Position encodings: eight of them behind the interface of `position_interface.py` (the paper's is section 3.5)."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer_jax.model.linear import xavier
from transformer_jax.model.position_functions import (
    alibi_bias,
    apply_rotary,
    relative_buckets,
    relative_distances,
)
from transformer_jax.model.position_interface import AttentionPositions, Positions
from transformer_jax.model.precision import precision_of
from transformer_jax.model.sinusoid import angles, sinusoid

Places = AttentionPositions  # the former name: custom modules import it


class Sinusoidal(Positions):
    """Section 3.5: fixed sinusoids added to the embeddings. Any length."""

    def embed(self, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        vectors = sinusoid(positions_BT, x_BTD.shape[-1], self.config.sinusoids)
        if self.config.scale_positions:
            vectors = vectors * self.config.base_d_model**-0.5
        return x_BTD + vectors.astype(x_BTD.dtype)


class Learned(Positions):
    """A trained vector for each position, added to the embeddings (Table 3, row E). Ends at `max_length`."""

    @nn.compact
    def embed(self, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        # The second axis need not be positions: in a step of beam search it holds the beams, all at one position.
        size = nn.initializers.normal(self.config.base_d_model**-0.5)
        table = self.param("table", size, (self.config.max_length, x_BTD.shape[-1]))
        # A position beyond the table must become NaN: the last row in its place would go unnoticed.
        vectors = table.at[positions_BT].get(mode="fill", fill_value=jnp.nan)
        return x_BTD + vectors.astype(x_BTD.dtype)

    def check_length(self, length: int) -> None:
        try:
            is_too_long = length > self.config.max_length
        except jax.errors.InconclusiveDimensionOperation:  # jax.export is tracing for any length
            raise ValueError(
                f"learned positions end at max_length = {self.config.max_length}: export with "
                f"jax.export.symbolic_shape(..., constraints=['{length} <= {self.config.max_length}'])"
            ) from None
        if is_too_long:
            raise ValueError(
                f"learned positions end at max_length = {self.config.max_length}, but {length} are asked for: "
                "raise model.max_length (and train), or use another position encoding"
            )


class Rotary(Positions):
    """Su et al. 2021: pairs of numbers in queries and keys are rotated by an angle that grows with the position.

    The angles are those of the sinusoids, over d_k; neighbours (2i, 2i + 1) are a pair.
    """

    def rotate(self, x_BTHK: jax.Array, positions_BT: jax.Array) -> jax.Array:
        return apply_rotary(x_BTHK, positions_BT)


class Relative(Positions):
    """Shaw et al. 2018: trained vectors for the distance between query and key, added to keys and to values.

    Distances are clipped to `reach`. Each layer has its own vectors, shared by its heads.
    """

    per_layer = True
    moves_values = True
    reach: int = 16

    def setup(self) -> None:
        rows, base = 2 * self.reach + 1, self.config.mup_base_widths()
        for_keys, for_values = (xavier(base_shape=(rows, int(base[width]))) for width in ("d_k", "d_v"))
        self.keys_RK = self.param("keys", for_keys, (rows, self.config.key_size))
        self.values_RV = self.param("values", for_values, (rows, self.config.value_size))

    def bias(self, q_BTHK: jax.Array, queries_BT: jax.Array, keys_BS: jax.Array) -> jax.Array:
        # The score of every query and distance, from which each key selects that of its distance (their section 3.3).
        product = {"preferred_element_type": jnp.float32, "precision": precision_of(q_BTHK)}
        scores_BHTR = jnp.einsum("bthk,rk->bhtr", q_BTHK, self.keys_RK.astype(q_BTHK.dtype), **product)
        scores_BHTR = scores_BHTR * self.config.score_scale
        rows_B1TS = self._rows(queries_BT, keys_BS)[:, None]
        shape_BHTS = (*scores_BHTR.shape[:3], rows_B1TS.shape[-1])
        return jnp.take_along_axis(scores_BHTR, jnp.broadcast_to(rows_B1TS, shape_BHTS), axis=-1)

    def moved_values(self, weights_BHTS: jax.Array, queries_BT: jax.Array, keys_BS: jax.Array) -> jax.Array:
        # The total weight of each distance, times that distance's vector.
        dtype = jnp.dtype(self.config.dtype)
        weights_BHTS, values_RV = weights_BHTS.astype(dtype), self.values_RV.astype(dtype)
        chosen_BTSR = jax.nn.one_hot(self._rows(queries_BT, keys_BS), 2 * self.reach + 1, dtype=dtype)
        chosen_BTSR = jnp.broadcast_to(chosen_BTSR, (weights_BHTS.shape[0], *chosen_BTSR.shape[1:]))
        weights_BHTR = jnp.einsum("bhts,btsr->bhtr", weights_BHTS, chosen_BTSR, precision=precision_of(values_RV))
        return jnp.einsum("bhtr,rv->bthv", weights_BHTR, values_RV, precision=precision_of(values_RV))

    def _rows(self, queries_BT: jax.Array, keys_BS: jax.Array) -> jax.Array:
        return jnp.clip(relative_distances(queries_BT, keys_BS), -self.reach, self.reach) + self.reach


class TransformerXL(Positions):
    """Dai et al. 2019: the score of query i and key j is (q_i + u) k_j + (q_i + v) W_R r(i - j), over sqrt(d_k).

    r are the sinusoids of the distance, as wide as the model. u, v (each head's) and W_R are trained, and each layer
    has its own (in their formula the layers share u and v). Without their recurrence there is no memory of earlier
    segments; and it acts in the encoder too, in both directions.

    No r is made for each pair of positions. With sin((i - j) w) = sin(i w) cos(j w) - cos(i w) sin(j w), and its cosine
    alike, (q_i + v) W_R is rotated by the query's position and multiplied with the sinusoids of the key's.
    """

    per_layer = True

    def setup(self) -> None:
        width = self.config.num_heads * self.config.key_size
        self.kernel_DF = self.param("kernel", xavier(), (self.config.d_model, width))
        zeros = nn.initializers.zeros_init()
        self.u_F, self.v_F = (self.param(name, zeros, (width,)) for name in ("content_bias", "distance_bias"))

    def content_queries(self, q_BTHK: jax.Array) -> jax.Array:
        return q_BTHK + self.u_F.reshape(1, 1, *q_BTHK.shape[2:]).astype(q_BTHK.dtype)

    def bias(self, q_BTHK: jax.Array, queries_BT: jax.Array, keys_BS: jax.Array) -> jax.Array:
        d_model, dtype = self.config.d_model, q_BTHK.dtype
        product = {"preferred_element_type": jnp.float32, "precision": precision_of(q_BTHK)}
        kernel_DHK = self.kernel_DF.reshape(d_model, *q_BTHK.shape[2:]).astype(dtype)
        q_BTHK = q_BTHK + self.v_F.reshape(1, 1, *q_BTHK.shape[2:]).astype(dtype)
        factors_BTHD = jnp.einsum("bthk,dhk->bthd", q_BTHK, kernel_DHK, **product)
        of_sin, of_cos = factors_BTHD[..., 0::2], factors_BTHD[..., 1::2]  # of the distance, sine and cosine in turn
        angles_BT1P = angles(queries_BT, d_model)[:, :, None]
        sin, cos = jnp.sin(angles_BT1P), jnp.cos(angles_BT1P)
        turned_BTHD = jnp.concatenate([of_cos * sin - of_sin * cos, of_sin * sin + of_cos * cos], axis=-1)
        turned_BTHD, keys_BSD = turned_BTHD.astype(dtype), sinusoid(keys_BS, d_model, "halves").astype(dtype)
        if keys_BSD.shape[0] == 1:  # one row for all sentences, which are then one product
            scores_BHTS = jnp.einsum("bthd,sd->bhts", turned_BTHD, keys_BSD[0], **product)
        else:
            scores_BHTS = jnp.einsum("bthd,bsd->bhts", turned_BTHD, keys_BSD, **product)
        return scores_BHTS * self.config.score_scale


class T5(Positions):
    """Raffel et al. 2020: a trained number for each head and bucket of distance, added to the scores.

    The buckets are those of `relative_buckets`. All layers share the table. Unlike in T5 itself, scores keep their
    1 / sqrt(d_k).
    """

    buckets: int = 32
    furthest: int = 128

    @nn.compact
    def bias(self, q_BTHK: jax.Array, queries_BT: jax.Array, keys_BS: jax.Array) -> jax.Array:
        table_RH = self.param("table", nn.initializers.normal(0.02), (self.buckets, self.config.num_heads))
        distances_BTS = relative_distances(queries_BT, keys_BS)
        rows_BTS = relative_buckets(distances_BTS, self.buckets, self.furthest, self.causal)
        return jnp.moveaxis(table_RH[rows_BTS], -1, 1)


class ALiBi(Positions):
    """Press et al. 2022: scores fall linearly with distance, with a fixed slope for each head.

    In the encoder the distance counts in both directions.
    """

    def bias(self, q_BTHK: jax.Array, queries_BT: jax.Array, keys_BS: jax.Array) -> jax.Array:
        return alibi_bias(self.config.num_heads, queries_BT, keys_BS)


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
