"""Dropout (section 5.4), cheap enough not to be felt."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.extend.random import threefry2x32_p

# Random bits are the cost of dropout. Sixteen an element in place of the usual thirty-two halve it;
# the rate is then a multiple of 1 / 65536, and the survivors are scaled by exactly that rate.
BITS = jnp.uint16
LEVELS = 2**16
# A number of the config; an array, not known while the program is made, where runs of different rates train together.
Rate = float | jax.Array


def is_rate(rate: Rate) -> bool:
    """Whether it is a share of all elements, as far as is known."""
    return isinstance(rate, jax.Array) or 0 <= rate < 1


def drops(rate: Rate) -> bool:
    """Whether dropout at this rate may do anything."""
    return isinstance(rate, jax.Array) or rate > 0


class Dropout(nn.Module):
    """Zeroes each element with probability `rate`, independently, and scales the others so that the mean is kept."""

    rate: Rate

    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        if deterministic or not drops(self.rate):
            return x
        threshold = jnp.minimum(jnp.round(self.rate * LEVELS), LEVELS - 1)  # a rate just below 1 must leave a survivor
        keep = random_bits(self.make_rng("dropout"), x.shape) >= threshold.astype(BITS)
        scale = LEVELS / (LEVELS - threshold)
        # In float32: 1 / 0.9 is 1.1094 in bfloat16, and survivors that are all 0.16 % too small change the mean.
        scaled = x.astype(jnp.promote_types(x.dtype, jnp.float32)) * scale
        return jnp.where(keep, scaled.astype(x.dtype), jnp.zeros_like(x))


def random_bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Sixteen random bits an element. They follow from the key, the element's row in the batch and its place in that
    row alone, on however many devices the rows lie.

    Threefry makes 64 bits of a key and two numbers. All are used here; `jax.random.bits` throws 48 of them away.
    """
    rows, places = shape[0], math.prod(shape[1:])
    own_rows = _rows_before(rows) + jnp.arange(rows, dtype=jnp.uint32)
    blocks = jnp.arange(-(-places // 4), dtype=jnp.uint32)
    first, second = jax.random.key_data(key)[:2]
    words = threefry2x32_p.bind(*jnp.broadcast_arrays(first, second, own_rows[:, None], blocks[None]))
    bits = jnp.concatenate([(word >> shift).astype(BITS) for word in words for shift in (0, 16)], axis=1)
    return bits[:, :places].reshape(shape)


def _rows_before(rows: int) -> jax.Array:
    """How many rows of the batch are on the devices before this one, where each runs the model for its own rows."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    return (jax.lax.axis_index(axes) * rows if axes else jnp.zeros((), int)).astype(jnp.uint32)
