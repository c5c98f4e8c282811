"""A number for each array that changes when a bit of it does.

Orbax restores a checkpoint in which a bit has flipped without a word. These digests are sums over the array's bits, so
they are computed where the array lies, in one pass, and do not depend on how it is divided among devices or hosts.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.update.sharding import path_name


def digests(tree: Any) -> dict[str, int]:
    """The digest of every leaf, by its path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    values = jax.device_get(_digests([leaf for _, leaf in leaves]))
    return {path_name(path): int(value) for (path, _), value in zip(leaves, values, strict=True)}


@jax.jit
def _digests(leaves: list[jax.Array]) -> list[jax.Array]:
    return [_digest(leaf) for leaf in leaves]


def _digest(leaf: jax.Array) -> jax.Array:
    """The sum, modulo 2^32, of each element's bits times an odd number of its own place.

    A flipped bit changes the sum by an odd multiple of a power of two, which is never zero; elements that change
    places change it too.
    """
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):  # some optimizers remember one
        leaf = jax.random.key_data(leaf)
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[np.dtype(leaf.dtype).itemsize]
    bits = jax.lax.bitcast_convert_type(leaf, unsigned).astype(jnp.uint32).reshape(-1)
    odd = 2 * jax.lax.iota(jnp.uint32, bits.size) + 1
    return jnp.sum(bits * (odd ^ (odd << 16)), dtype=jnp.uint32)
