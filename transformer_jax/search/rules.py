"""Which tokens may stand where in a target.

`<pad>` and `<bos>` never; `<eos>` neither before the minimum length nor, alone permitted there, after the limit; where
the caller forces a prefix, only that.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import Array

FREE = -1  # no token is forced at this position


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["limits_B", "forced_BT"],
    meta_fields=["bos_id", "eos_id", "pad_id", "min_length"],
)
@dataclasses.dataclass(frozen=True)
class Rules:
    """What greedy search, sampling and beam search all keep to."""

    bos_id: int
    eos_id: int
    pad_id: int
    min_length: int
    limits_B: Array  # the greatest permitted length of each sentence
    forced_BT: Array  # the one token permitted at a position, or FREE

    @classmethod
    def build(
        cls,
        batch_size: int,
        max_length: int,
        bos_id: int,
        eos_id: int,
        pad_id: int,
        max_lengths: Array | None,
        min_length: int,
        prefix: Array | None,
    ) -> "Rules":
        """Check what the caller asked for. The prefix and, at each sentence's limit, `<eos>` become forced tokens."""
        if batch_size < 1 or max_length < 1:
            raise ValueError(f"batch_size is {batch_size} and max_length {max_length}: both must be >= 1")
        if not 0 <= min_length <= max_length:
            raise ValueError(f"min_length is {min_length}: must be between 0 and max_length, which is {max_length}")
        if pad_id == eos_id:
            raise ValueError(f"pad_id and eos_id are both {pad_id}: a target could never end")
        limits_B = jnp.full(batch_size, max_length) if max_lengths is None else jnp.asarray(max_lengths)
        check_shape("max_lengths", limits_B, (batch_size,))
        forced_BT = jnp.full((batch_size, max_length), FREE, jnp.int32)
        shortest_B = jnp.full(batch_size, max(min_length, 1))
        if prefix is not None:
            prefix_BP = jnp.asarray(prefix, jnp.int32)
            prefix_width = prefix_BP.size // batch_size
            check_shape("prefix", prefix_BP, (batch_size, prefix_width))
            if prefix_width >= max_length:
                raise ValueError(f"prefix has {prefix_width} positions: must be less than max_length, {max_length}")
            forced_BT = forced_BT.at[:, :prefix_width].set(jnp.where(prefix_BP == pad_id, FREE, prefix_BP))
            shortest_B = jnp.maximum(shortest_B, jnp.sum(prefix_BP != pad_id, axis=1) + 1)
        limits_B = jnp.clip(limits_B, shortest_B, max_length)
        is_last_BT = jnp.arange(max_length)[None, :] == limits_B[:, None] - 1
        return cls(bos_id, eos_id, pad_id, min_length, limits_B, jnp.where(is_last_BT, eos_id, forced_BT))

    def allows(self, tokens: Array, position: Array) -> Array:
        """Whether each token may be generated at `position` (the first is 0) where none is forced."""
        is_special = (tokens == self.pad_id) | ((tokens == self.bos_id) & (tokens != self.eos_id))
        ends_too_soon = (tokens == self.eos_id) & (position + 1 < self.min_length)
        return ~(is_special | ends_too_soon)


def check_shape(name: str, array: Array, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}: must be {shape}")
