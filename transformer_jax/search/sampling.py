"""Greedy search and sampling: one growing target for each sentence."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from transformer_jax.search.loop import Cache, run_stages
from transformer_jax.search.targets import (
    SPECIAL_TOKENS,
    SearchResult,
    SearchRules,
    Step,
    check_shape,
    check_sizes,
    is_known,
)
from transformer_jax.search.vocabulary import RULED_OUT, is_possible, largest_entries, log_probabilities

THREEFRY = "threefry2x32"  # JAX's usual random numbers


def greedy_search(step: Step, cache: Cache, rules: SearchRules) -> SearchResult:
    """Takes the most probable token at every position until it is `<eos>`; of equals, the lowest id."""

    def choose(logits_BV: Array, rollout: Rollout) -> Array:
        best_BC = largest_entries(logits_BV, 1 + SPECIAL_TOKENS)[1]
        first_allowed_B1 = jnp.argmax(rules.allows(best_BC, rollout.forced_B1), axis=1, keepdims=True)
        return jnp.take_along_axis(best_BC, first_allowed_B1, axis=1)[:, 0]

    return roll_out(step, cache, rules, choose)


def sample_search(
    step: Step,
    cache: Cache,
    rules: SearchRules,
    keys: Array,
    temperature: ArrayLike = 1.0,
    top_k: int | None = None,
    top_p: ArrayLike = 1.0,
) -> SearchResult:
    """Draws every token from softmax(logits / temperature), among the `top_k` best and the nucleus `top_p`.

    `keys` has one key per sentence, or is a single key, from which sentence b gets `fold_in(key, b)`. A sample depends
    only on the key of its sentence, not on the batch.

    `temperature` and `top_p` are numbers, or arrays with one per sentence, and may be traced. If a traced one is out of
    range, the score is NaN.
    """
    size = rules.batch_size
    heat: Any = temperature
    mass: Any = top_p
    is_valid = (heat > 0) & (heat < math.inf) & (mass > 0) & (mass <= 1)
    check_sizes(top_k=top_k)
    if is_known(is_valid) and not np.all(is_valid):
        raise ValueError(
            f"temperature is {temperature}, top_p {top_p}: must be above 0 and finite, and in (0, 1]; "
            "the limit of temperature 0 is greedy_search"
        )
    if not hasattr(keys, "dtype"):
        raise ValueError(f"keys is {keys!r}: must be a key, such as jax.random.key(0), or an array of them")
    if not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):  # of jax.random.PRNGKey
        keys = jax.random.wrap_key_data(keys)
    if str(jax.random.key_impl(keys)) != THREEFRY:  # with which alone the draws of a batch are those of each key
        keys = jax.random.wrap_key_data(jax.random.key_data(keys)[..., :2], impl=THREEFRY)
    keys_B = keys if keys.ndim else jax.vmap(jax.random.fold_in, (None, 0))(keys, jnp.arange(size))
    check_shape("keys", keys_B, (size,))
    is_valid_B = jnp.broadcast_to(is_valid, size)
    heat_B, mass_B = (jnp.where(is_valid_B, jnp.broadcast_to(value, size), 1.0) for value in (heat, mass))
    is_whole = top_k is None and is_known(top_p) and bool(np.all(mass == 1))

    def choose(logits_BV: Array, rollout: Rollout) -> Array:
        keys_B, heat_B, mass_B = rollout.draws
        allowed_BV = rules.allows(jnp.arange(logits_BV.shape[1])[None, :], rollout.forced_B1)
        # A NaN is as improbable as a logit of -inf: only allowed tokens are drawn, and the score is NaN.
        logits_BV = jnp.where(jnp.isnan(logits_BV), RULED_OUT, jnp.maximum(logits_BV, RULED_OUT))
        logits_BV = jnp.where(allowed_BV, logits_BV, -jnp.inf)
        # The maximum goes first: a tiny temperature then underflows to -inf instead of overflowing.
        heated_BV = (logits_BV - jnp.max(logits_BV, axis=1, keepdims=True)) / heat_B[:, None]
        # A high temperature must not make them probable.
        logits_BV = jnp.where(logits_BV == RULED_OUT, RULED_OUT, heated_BV)
        keys_now_B = jax.vmap(jax.random.fold_in, (0, None))(keys_B, rollout.position)
        if is_whole:
            return jax.vmap(jax.random.categorical)(keys_now_B, logits_BV)
        logits_BC, tokens_BC = largest_entries(logits_BV, top_k or logits_BV.shape[1])
        probabilities_BC = jax.nn.softmax(logits_BC, axis=1)
        mass_before_BC = jnp.cumsum(probabilities_BC, axis=1) - probabilities_BC
        nucleus_BC = jnp.where(mass_before_BC < mass_B[:, None], logits_BC, -jnp.inf)
        drawn_B = jax.vmap(jax.random.categorical)(keys_now_B, nucleus_BC)
        return jnp.take_along_axis(tokens_BC, drawn_B[:, None], axis=1)[:, 0]

    found = roll_out(step, cache, rules, choose, (keys_B, heat_B, mass_B))
    return found.without_scores(~is_valid_B)


class Rollout(NamedTuple):
    """One growing target for each sentence, and the number of positions decoded so far."""

    position: Array
    last_B: Array
    ended_B: Array
    tokens_BT: Array
    log_probabilities_B: Array
    limits_B: Array  # these two from `SearchRules.constraints`
    forced_BT: Array
    draws: Any  # of sampling, with an entry for each sentence; else None

    @property
    def forced_B1(self) -> Array:
        return self.forced_BT[:, self.position][:, None]


def roll_out(
    step: Step,
    cache: Cache,
    rules: SearchRules,
    choose: Callable[[Array, Rollout], Array],
    draws: Any = None,
) -> SearchResult:
    """Appends what `choose(logits_BV, rollout)` returns until every sentence has ended."""
    size, penalties_T = rules.batch_size, rules.penalties_T()
    rollout = Rollout(
        position=jnp.int32(0),
        last_B=rules.first_B(),
        ended_B=jnp.zeros(size, bool),
        tokens_BT=jnp.full((size, rules.max_length), rules.pad_id, jnp.int32),
        log_probabilities_B=jnp.zeros(size, jnp.float32),
        **rules.constraints(),
        draws=draws,
    )

    def advance(carry: tuple[Rollout, Cache]) -> tuple[Rollout, Cache]:
        rollout, cache = carry
        logits_BV, cache = step(rollout.last_B, cache)
        logits_BV = rules.check_logits(logits_BV, rollout.last_B.size)
        ended_B, forced_B = rollout.ended_B, rollout.forced_B1[:, 0]
        blocked_BV = rules.blocked(rollout.tokens_BT, rollout.position, logits_BV.shape[1])
        choosable_BV = logits_BV if blocked_BV is None else jnp.where(blocked_BV, -jnp.inf, logits_BV)
        chosen_B = jnp.where(forced_B < 0, choose(choosable_BV, rollout).astype(jnp.int32), forced_B)
        gained_B = log_probabilities(logits_BV, chosen_B[:, None])[:, 0]
        allowed_B = rules.allows(chosen_B, forced_B)
        if blocked_BV is not None:
            allowed_B &= ~jnp.take_along_axis(blocked_BV, chosen_B[:, None], axis=1)[:, 0]
        # There may be no token that is allowed.
        gained_B += jnp.where((forced_B >= 0) | allowed_B, 0.0, RULED_OUT)
        chosen_B = jnp.where(ended_B, rules.pad_id, chosen_B)
        appended = rollout._replace(
            position=rollout.position + 1,
            last_B=chosen_B,
            ended_B=ended_B | (chosen_B == rules.eos_id),
            tokens_BT=rollout.tokens_BT.at[:, rollout.position].set(chosen_B),
            log_probabilities_B=rollout.log_probabilities_B + jnp.where(ended_B, 0.0, gained_B),
        )
        return appended, cache

    rollout = run_stages(rollout, cache, lambda rollout: ~rollout.ended_B, advance, rules.stages, rules.tail)
    lengths_B = jnp.argmax(rollout.tokens_BT == rules.eos_id, axis=1).astype(jnp.int32) + 1
    return SearchResult(
        rollout.tokens_BT[:, None, :],
        (rollout.log_probabilities_B / penalties_T[lengths_B - 1])[:, None],
        rollout.log_probabilities_B[:, None],
        lengths_B[:, None],
        is_possible(rollout.log_probabilities_B)[:, None],
    )
