"""The largest entries of each row of a wide array: what a search looks at of a vocabulary."""

import jax.numpy as jnp
from jax import Array, lax

# For larger vocabularies the C largest of each row are found among the C blocks with the largest maxima: one cheap
# pass over all logits in place of a sort (on CPU 4 to 8 times faster than `lax.top_k`, which is faster than `argmax`).
_BLOCK = 64


def largest_entries(values_RV: Array, count: int) -> Array:
    """The indices of the `count` largest values of each row, largest first; of equals, the lowest index first."""
    rows, width = values_RV.shape
    count = min(count, width)
    if width <= count * _BLOCK:
        return lax.top_k(values_RV, count)[1]
    padding = ((0, 0), (0, -width % _BLOCK))
    maxima = lax.reduce_window(values_RV, -jnp.inf, lax.max, (1, _BLOCK), (1, _BLOCK), padding)
    # Sorted, so that positions in the gathered blocks are in the order of the indices and ties break the same way.
    blocks = jnp.sort(lax.top_k(maxima, count)[1], axis=1)
    indices = (blocks[:, :, None] * _BLOCK + jnp.arange(_BLOCK)[None, None, :]).reshape(rows, -1)
    gathered = values_RV.at[jnp.arange(rows)[:, None], indices].get(mode="fill", fill_value=-jnp.inf)
    return jnp.take_along_axis(indices, lax.top_k(gathered, count)[1], axis=1)
