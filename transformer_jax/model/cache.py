"""The cache of attention in decoding: the keys and values of earlier tokens, or of the encoder's output."""

from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.model.checks import check_shapes
from transformer_jax.model.meshes import divided_like

# The state between decoding steps: "keys" BGKL and "values" BGVL, with G heads of keys and values; the cache
# of self-attention also has "filled", the number of slots L in use. Slots come last because the products with them run
# through memory in that order: with BLGK each step would first copy the whole cache into it.
Cache = dict[str, jax.Array]


def empty(batch: int, heads: int, d_k: int, d_v: int, length: int, dtype: Any) -> Cache:
    return {
        "keys": jnp.zeros((batch, heads, d_k, length), dtype),
        "values": jnp.zeros((batch, heads, d_v, length), dtype),
        "filled": jnp.zeros((), jnp.int32),
    }


def of_memory(k_BSGK: jax.Array, v_BSGV: jax.Array) -> Cache:
    return {"keys": jnp.moveaxis(k_BSGK, 1, -1), "values": jnp.moveaxis(v_BSGV, 1, -1)}


def is_of_memory(cache: Cache | None) -> bool:
    """Whether this is a cache of cross-attention, which is only read."""
    return cache is not None and "filled" not in cache


def appended(cache: Cache, k_BTGK: jax.Array, v_BTGV: jax.Array) -> Cache:
    """The cache with new keys and values in its next free slots; NaN if there are too few."""
    check_shapes(cache_BGKL=cache["keys"], keys_BTGK=k_BTGK)
    check_shapes(cache_BGVL=cache["values"], values_BTGV=v_BTGV)
    new, slots = k_BTGK.shape[1], cache["keys"].shape[-1]
    if new > slots:
        raise ValueError(f"cache has {slots} slots, for {new} new tokens: new_cache needs a length of at least {new}")
    filled = jnp.asarray(cache["filled"], jnp.int32)
    after = filled + new
    written = {"filled": after}
    for name, heads in (("keys", k_BTGK), ("values", jnp.where(after > slots, jnp.nan, v_BTGV))):
        new_BGKT = jnp.moveaxis(heads, 1, -1).astype(cache[name].dtype)
        old_BGKL, start = divided_like(cache[name], new_BGKT, 0, 1), (0, 0, 0, filled)
        written[name] = jax.lax.dynamic_update_slice(old_BGKL, new_BGKT, [jnp.int32(place) for place in start])
    return written


def heads_of(cache: Cache) -> list[jax.Array]:
    """Its keys and values, BLGK and BLGV."""
    return [jnp.moveaxis(cache[name], -1, 1) for name in ("keys", "values")]
