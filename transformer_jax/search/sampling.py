"""Sampling, with a temperature, from the `top_k` best tokens or the nucleus of probability `top_p`."""

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.search.greedy import Rollout, roll_out
from transformer_jax.search.rules import SearchResult, SearchRules, Step, check_int, check_shape
from transformer_jax.search.stages import Cache
from transformer_jax.search.vocabulary import RULED_OUT, largest_entries


def sample_search(
    step: Step,
    cache: Cache,
    rules: SearchRules,
    keys: Array,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
) -> SearchResult:
    """Draws every token from softmax(logits / temperature), cut to the `top_k` best and then to the nucleus `top_p`.

    `keys` is one key, or one for each sentence. A sentence's sample depends on its own key alone; of one key, sentence
    b has `fold_in(key, b)`. With keys made of numbers in a corpus it does not matter which batch a sentence is in.
    """
    if not 0 < temperature < float("inf"):
        raise ValueError(f"temperature is {temperature}: must be finite and > 0 (its limit 0 is greedy_search)")
    if top_k is not None:
        check_int("top_k", top_k)
        if top_k < 1:
            raise ValueError(f"top_k is {top_k}: must be >= 1, or None for the whole vocabulary")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}: must be in (0, 1]")
    if not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):  # of jax.random.PRNGKey
        keys = jax.random.wrap_key_data(keys)
    keys_B = keys if keys.ndim else jax.vmap(jax.random.fold_in, (None, 0))(keys, jnp.arange(rules.batch_size))
    check_shape("keys", keys_B, (rules.batch_size,))

    def choose(logits_BV: Array, rollout: Rollout) -> Array:
        forced_B1 = rollout.forced_BT[:, rollout.position][:, None]
        allowed_BV = rules.allows(jnp.arange(logits_BV.shape[1])[None, :], forced_B1)
        logits_BV = jnp.where(allowed_BV, jnp.maximum(logits_BV, RULED_OUT), -jnp.inf)
        tokens_BC, logits_BC = _most_probable(logits_BV, temperature, top_k, top_p, rules.division.vocabulary)
        keys_now_B = jax.vmap(jax.random.fold_in, (0, None))(rollout.keys_B, rollout.position)
        drawn_B = jax.vmap(jax.random.categorical)(keys_now_B, logits_BC)
        return jnp.take_along_axis(tokens_BC, drawn_B[:, None], axis=1)[:, 0]

    return roll_out(step, cache, rules, choose, keys_B)


def _most_probable(
    logits_BV: Array, temperature: float, top_k: int | None, top_p: float, axis: str | None
) -> tuple[Array, Array]:
    """The tokens that may be drawn, and their logits at this temperature; those outside the nucleus get -inf."""
    # The maximum goes first: a tiny temperature then underflows to -inf instead of overflowing.
    logits_BV = (logits_BV - jnp.max(logits_BV, axis=1, keepdims=True)) / temperature
    if top_k is None and top_p == 1:
        return jnp.broadcast_to(jnp.arange(logits_BV.shape[1])[None, :], logits_BV.shape), logits_BV
    logits_BC, tokens_BC = largest_entries(logits_BV, logits_BV.shape[1] if top_k is None else top_k, axis)
    probabilities_BC = jax.nn.softmax(logits_BC, axis=1)
    mass_before_BC = jnp.cumsum(probabilities_BC, axis=1) - probabilities_BC
    return tokens_BC, jnp.where(mass_before_BC < top_p, logits_BC, -jnp.inf)
