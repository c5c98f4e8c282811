"""Dropout (section 5.4) from sixteen random bits per element."""

import contextlib
import math
from collections.abc import Iterator
from contextvars import ContextVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.extend.random import threefry2x32_p

# Random bits are the cost of dropout, and sixteen per element, instead of thirty-two, halve it. The rate is then a
# multiple of 1 / 65536, and the kept elements are scaled by exactly that rate.
BITS = jnp.uint16
LEVELS = 2**16
# A number of the config; a traced array where runs of different rates train in one program.
Rate = float | jax.Array
_ROW_AXES: ContextVar[tuple[str, ...] | None] = ContextVar("row_axes", default=None)


def check_rate(rate: Rate) -> None:
    """Raises ValueError unless this is a valid rate, as far as is known."""
    if not isinstance(rate, jax.Array) and not 0 <= rate < 1:
        raise ValueError(f"dropout = {rate}: must be at least 0 and below 1")


def drops(rate: Rate) -> bool:
    """Whether dropout at this rate may have an effect."""
    return isinstance(rate, jax.Array) or rate > 0


class Dropout(nn.Module):
    """Zeroes each element independently with probability `rate`, and scales the others so that the mean is the same."""

    rate: Rate

    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        check_rate(self.rate)
        if deterministic or not drops(self.rate):
            return x
        threshold = jnp.minimum(jnp.round(self.rate * LEVELS), LEVELS - 1)  # a rate just below 1 must keep some
        keep = random_bits(self.make_rng("dropout"), x.shape) >= threshold.astype(BITS)
        scale = LEVELS / (LEVELS - threshold)
        # In float32: 1 / 0.9 is 1.1094 in bfloat16, and a scale that is 0.16 % off changes the mean.
        scaled = x.astype(jnp.promote_types(x.dtype, jnp.float32)) * scale
        return jnp.where(keep, scaled.astype(x.dtype), jnp.zeros_like(x))


def random_bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Sixteen random bits per element, from the key, the element's row in the batch and its index in the row.

    They do not depend on the number of devices. Threefry makes 64 bits from a key and two numbers, all of which are
    used here; `jax.random.bits` discards 48 of them.
    """
    rows, width = shape[0] if shape else 1, math.prod(shape[1:])
    batch_rows = _rows_before(rows) + jnp.arange(rows, dtype=jnp.uint32)
    blocks = jnp.arange(-(-width // 4), dtype=jnp.uint32)
    first, second = jax.random.key_data(key)[:2]
    words = threefry2x32_p.bind(*jnp.broadcast_arrays(first, second, batch_rows[:, None], blocks[None]))
    bits = jnp.concatenate([(word >> shift).astype(BITS) for word in words for shift in (0, 16)], axis=1)
    return bits[:, :width].reshape(shape)


@contextlib.contextmanager
def rows_divided_over(axes: tuple[str, ...]) -> Iterator[None]:
    """While this is traced inside a `jax.shard_map`, the rows of a batch are divided over these axes of the mesh.

    Only they count: devices along other axes compute with the same rows, and must drop the same elements.
    """
    token = _ROW_AXES.set(axes)
    try:
        yield
    finally:
        _ROW_AXES.reset(token)


def _rows_before(rows: int) -> jax.Array:
    """The number of rows of the batch on the devices before this one."""
    axes, manual = _ROW_AXES.get(), jax.sharding.get_abstract_mesh().manual_axes
    if axes is None and manual:
        raise ValueError(
            f"dropout inside a shard_map over {', '.join(map(str, manual))}: say which of these axes divide the rows, "
            "as in `with transformer_jax.model.dropout.rows_divided_over(('data',)):`"
        )
    return (jax.lax.axis_index(axes) * rows if axes and manual else jnp.zeros((), int)).astype(jnp.uint32)
