"""Dropout (section 5.4), cheap enough not to be felt."""

import jax
import jax.numpy as jnp
from flax import linen as nn

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
        keep = jax.random.bits(self.make_rng("dropout"), x.shape, BITS) >= threshold.astype(BITS)
        scale = LEVELS / (LEVELS - threshold)
        return jnp.where(keep, x * scale.astype(x.dtype), jnp.zeros_like(x))
