"""Dropout (section 5.4), whose masks do not depend on the devices.

A mask is a function of the key, the element's row (of the microbatch, or of its blocks in a window), its place in the
row, and the row's length. The first axis of x must be the rows: dropout on a parameter would differ between devices.

Random bits are its cost, and sixteen per element, instead of thirty-two, halve it. The rate is then a multiple of
1 / 65536, and the kept elements are scaled by exactly that rate.
"""

import contextlib
import math
import numbers
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.extend.random import threefry2x32_p

from transformer_jax.model.meshes import divided_like

BITS = jnp.uint16
LEVELS = 2**16
# A number of the config; a traced array where runs of different rates train in one program.
Rate = float | jax.Array
_ROW_AXES: ContextVar[tuple[str, ...] | None] = ContextVar("row_axes", default=None)


def drops(rate: Rate) -> bool:
    """Whether dropout at this rate may have an effect."""
    return isinstance(rate, jax.Array) or rate > 0


class Dropout(nn.Module):
    """Zeroes each element independently with probability `rate`, and scales the others so that the mean is the same."""

    rate: Rate

    def __post_init__(self) -> None:
        is_known = not isinstance(self.rate, jax.Array)
        if is_known and not (isinstance(self.rate, numbers.Real) and 0 <= self.rate < 1):
            raise ValueError(f"dropout = {self.rate!r}: must be a number, at least 0 and below 1")
        super().__post_init__()

    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        if deterministic or not drops(self.rate):
            return x
        threshold = jnp.minimum(jnp.round(self.rate * LEVELS), LEVELS - 1)  # a rate just below 1 must keep some
        keep = random_bits(self.make_rng("dropout"), x.shape, _row_axes(x)) >= threshold.astype(BITS)
        keep = divided_like(keep, x, *range(x.ndim))
        scale = LEVELS / (LEVELS - threshold)
        # In float32: 1 / 0.9 is 1.1094 in bfloat16, and a scale that is 0.16 % off changes the mean.
        scaled = x.astype(jnp.promote_types(x.dtype, jnp.float32)) * scale
        return jnp.where(keep, scaled.astype(x.dtype), jnp.zeros_like(x))


def random_bits(key: jax.Array, shape: tuple[int, ...], row_axes: tuple[Any, ...] = ()) -> jax.Array:
    """Sixteen random bits per element. Inside a `jax.shard_map` `row_axes` divide the rows.

    Of the 64 bits of Threefry `jax.random.bits` would discard 48.
    """
    rows, width = shape[0] if shape else 1, math.prod(shape[1:])
    before = jax.lax.axis_index(row_axes) * rows if row_axes else jnp.zeros((), int)
    batch_rows = before.astype(jnp.uint32) + jnp.arange(rows, dtype=jnp.uint32)
    blocks = jnp.arange(-(-width // 4), dtype=jnp.uint32)
    first, second = jax.random.key_data(key)[:2]
    # Adding zeros lets all four vary over the same axes of the mesh, as `shard_map` wants.
    zeros = 0 * (first + second + batch_rows[:, None] + blocks[None])
    words = threefry2x32_p.bind(*(each + zeros for each in (first, second, batch_rows[:, None], blocks[None])))
    bits = jnp.concatenate([(word >> shift).astype(BITS) for word in words for shift in (0, 16)], axis=1)
    return bits[:, :width].reshape(shape)


@contextlib.contextmanager
def rows_divided_over(axes: tuple[str, ...]) -> Iterator[None]:
    """While this is traced inside a `jax.shard_map` with `check_vma=False`, these axes of the mesh divide the rows.

    Only they count: devices along other axes compute with the same rows, and must drop the same elements. With
    `check_vma=True` JAX knows this, and the context is not needed.
    """
    token = _ROW_AXES.set(axes)
    try:
        yield
    finally:
        _ROW_AXES.reset(token)


def _row_axes(x: jax.Array) -> tuple[Any, ...]:
    """The axes of the mesh that divide the rows of x inside a `jax.shard_map`."""
    axes, manual = _ROW_AXES.get(), jax.sharding.get_abstract_mesh().manual_axes
    if axes is not None or not manual:
        return axes if axes and manual else ()
    varying = jax.typeof(x).manual_axis_type.varying
    if not varying:
        raise ValueError(
            f"dropout inside a shard_map over {', '.join(map(str, manual))} with check_vma=False: say which of these "
            "axes divide the rows, as in `with transformer_jax.rows_divided_over(('data',)):`"
        )
    return tuple(axis for axis in manual if axis in varying)
