"""What the position encodings compute, as functions of arrays: no config, no parameters."""

import math

import jax
import jax.numpy as jnp

from transformer_jax.model.shapes import check_positive, check_shapes
from transformer_jax.model.sinusoid import angles


def apply_rotary(x_BTHK: jax.Array, positions_BT: jax.Array, theta: float = 10_000.0) -> jax.Array:
    """Rotary positions (Su et al. 2021): each pair of neighbours (2i, 2i + 1) of a query or key, rotated.

    The angle is position / theta^(2i / d_k). `positions_BT` has a row for each sentence, or a single one, or is "T".
    Llama's code in Hugging Face has the pairs (i, i + d_k / 2) instead.
    """
    positions_BT = positions_BT[None] if getattr(positions_BT, "ndim", 0) == 1 else positions_BT
    check_shapes(x_BTHK=x_BTHK, positions_BT=positions_BT)
    if x_BTHK.shape[-1] % 2:
        raise ValueError(f"x has d_k = {x_BTHK.shape[-1]}: must be even, for pairs of numbers are rotated")
    check_positive(theta=theta)
    angles_BT1P = angles(positions_BT, x_BTHK.shape[-1], theta)[:, :, None]
    cos, sin = jnp.cos(angles_BT1P), jnp.sin(angles_BT1P)
    even, odd = x_BTHK[..., 0::2], x_BTHK[..., 1::2]
    turned = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return turned.reshape(x_BTHK.shape).astype(x_BTHK.dtype)


def relative_distances(queries_BT: jax.Array, keys_BS: jax.Array) -> jax.Array:
    """The position of each key relative to each query, BTS: negative before it, positive after it."""
    check_shapes(queries_BT=queries_BT)
    check_shapes(keys_BS=keys_BS)
    return keys_BS[:, None, :] - queries_BT[:, :, None]


def relative_buckets(distances: jax.Array, buckets: int = 32, furthest: int = 128, causal: bool = False) -> jax.Array:
    """T5's bucket of each distance (Raffel et al. 2020): a row of a table of `buckets` biases.

    Near distances have a bucket each, far ones share logarithmically wider buckets, up to `furthest`. If `causal`, keys
    after the query have none of their own: all buckets are for the past.
    """
    count = buckets if causal else buckets // 2
    exact = count // 2
    if exact < 1:
        raise ValueError(f"buckets = {buckets}: must be at least {2 if causal else 4}")
    if furthest <= exact:
        raise ValueError(f"furthest = {furthest}: must be above {exact}, for nearer distances have a bucket each")
    offset = jnp.zeros_like(distances) if causal else jnp.where(distances > 0, count, 0)
    steps = jnp.maximum(-distances, 0) if causal else jnp.abs(distances)
    spread = jnp.log(jnp.maximum(steps, 1) / exact) / math.log(furthest / exact)
    far = jnp.minimum(exact + (spread * (count - exact)).astype(jnp.int32), count - 1)
    return offset + jnp.where(steps < exact, steps, far)


def alibi_slopes(heads: int) -> list[float]:
    """ALiBi's slope of each head (Press et al. 2022): 2^(-8/h), 2^(-16/h) ...

    Where h is no power of two, those of the next lower power, then every second slope of the next higher one.
    """
    check_positive(heads=heads)
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return slopes if power == heads else slopes + alibi_slopes(2 * power)[0::2][: heads - power]


def alibi_bias(heads: int, queries_BT: jax.Array, keys_BS: jax.Array) -> jax.Array:
    """What ALiBi adds to the scores, BHTS: minus the slope times the distance, in both directions."""
    distance_B1TS = jnp.abs(relative_distances(queries_BT, keys_BS))[:, None].astype(jnp.float32)
    return -jnp.asarray(alibi_slopes(heads))[None, :, None, None] * distance_B1TS
