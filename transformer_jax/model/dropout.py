"""Dropout (section 5.4), cheap enough not to be felt."""

import jax
import jax.numpy as jnp
from flax import linen as nn

# Random bits are the cost of dropout. Sixteen an element in place of the usual thirty-two halve it;
# the rate is then a multiple of 1 / 65536, and the survivors are scaled by exactly that rate.
BITS = jnp.uint16
LEVELS = 2**16


class Dropout(nn.Module):
    """Zeroes each element with probability `rate`, independently, and scales the others so that the mean is kept."""

    rate: float

    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        if deterministic or self.rate == 0.0:
            return x
        threshold = min(round(self.rate * LEVELS), LEVELS - 1)  # a rate just below 1 must leave a survivor
        keep = jax.random.bits(self.make_rng("dropout"), x.shape, BITS) >= jnp.asarray(threshold, BITS)
        return jnp.where(keep, x * (LEVELS / (LEVELS - threshold)), jnp.zeros_like(x))
