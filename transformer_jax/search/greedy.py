"""Greedy search, and the loop that it shares with sampling: one growing target for each sentence."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from transformer_jax.search.rules import (
    SPECIAL_TOKENS,
    Constraints,
    SearchResult,
    SearchRules,
    Step,
    checked_logits,
    next_logits,
)
from transformer_jax.search.stages import Cache, run_stages
from transformer_jax.search.vocabulary import is_possible, largest_entries, log_probabilities


def greedy_search(
    step: Step, cache: Cache, rules: SearchRules, *, first_logits: ArrayLike | None = None
) -> SearchResult:
    """Takes the most probable token at every position until it is `<eos>`; of equals, the lowest id.

    `first_logits`, [batch_size, vocabulary], are those after a prompt that the cache already holds: the search begins
    with them instead of a step on `<bos>`. The prompt is no part of a target, its length or its score.
    """

    def choose(logits_BV: Array, rollout: Rollout) -> Array:
        best_BC = largest_entries(logits_BV, 1 + SPECIAL_TOKENS, rules.division.vocabulary)[1]
        first_allowed_B1 = jnp.argmax(rules.allows(best_BC, rollout.forced_B1), axis=1, keepdims=True)
        return jnp.take_along_axis(best_BC, first_allowed_B1, axis=1)[:, 0]

    return roll_out(step, cache, rules, choose, first_logits)


class Rollout(NamedTuple):
    """One growing target for each sentence, and the number of positions decoded so far."""

    position: Array
    last_B: Array
    ended_B: Array
    tokens_BT: Array
    log_probabilities_B: Array
    constraints: Constraints
    draws: Any  # of sampling, with an entry for each sentence; else None

    @property
    def forced_B1(self) -> Array:
        """The token of this position, or FREE or UNENDED."""
        return self.constraints.forced_BT[:, self.position][:, None]


def roll_out(
    step: Step,
    cache: Cache,
    rules: SearchRules,
    choose: Callable[[Array, Rollout], Array],
    first_logits: ArrayLike | None,
    draws: Any = None,
) -> SearchResult:
    """Appends what `choose(logits_BV, rollout)` returns until every sentence has ended."""
    size, penalties_T = rules.batch_size, rules.penalties_T()
    rollout = Rollout(
        position=jnp.int32(0),
        last_B=jnp.full(size, rules.bos_id, jnp.int32),
        ended_B=jnp.zeros(size, bool),
        tokens_BT=jnp.full((size, rules.max_length), rules.pad_id, jnp.int32),
        log_probabilities_B=jnp.zeros(size, jnp.float32),
        constraints=rules.constraints(),
        draws=draws,
    )

    def append(rollout: Rollout, logits_BV: Array) -> Rollout:
        ended_B, forced_B = rollout.ended_B, rollout.forced_B1[:, 0]
        chosen_B = jnp.where(forced_B < 0, choose(logits_BV, rollout).astype(jnp.int32), forced_B)
        gained_B = log_probabilities(logits_BV, chosen_B[:, None], rules.division.vocabulary)[:, 0]
        chosen_B = jnp.where(ended_B, rules.pad_id, chosen_B)
        return rollout._replace(
            position=rollout.position + 1,
            last_B=chosen_B,
            ended_B=ended_B | (chosen_B == rules.eos_id),
            tokens_BT=rollout.tokens_BT.at[:, rollout.position].set(chosen_B),
            log_probabilities_B=rollout.log_probabilities_B + jnp.where(ended_B, 0.0, gained_B),
        )

    def advance(carry: tuple[Rollout, Cache]) -> tuple[Rollout, Cache]:
        rollout, cache = carry
        logits_BV, cache = next_logits(step, rollout.last_B, cache, rules)
        return append(rollout, logits_BV), cache

    def is_live(rollout: Rollout) -> Array:
        return ~rollout.ended_B

    if first_logits is not None:
        rollout = append(rollout, checked_logits(first_logits, size, rules))
    rollout = run_stages(rollout, cache, rules.division.anywhere(is_live), advance, rules.stages, rules.tail)
    lengths_B = jnp.argmax(rollout.tokens_BT == rules.eos_id, axis=1).astype(jnp.int32) + 1
    return SearchResult(
        rollout.tokens_BT[:, None, :],
        (rollout.log_probabilities_B / penalties_T[lengths_B - 1])[:, None],
        rollout.log_probabilities_B[:, None],
        lengths_B[:, None],
        is_possible(rollout.log_probabilities_B)[:, None],
    )
