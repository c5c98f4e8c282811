"""Beam search (section 6.1). Length penalties, the proof of the stopping rule, and ties are in docs/search.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from transformer_jax.search.loop import Cache, run_stages
from transformer_jax.search.sampling import greedy_search
from transformer_jax.search.targets import SPECIAL_TOKENS, SearchResult, SearchRules, Step, check_sizes
from transformer_jax.search.vocabulary import RULED_OUT, is_possible, largest_entries, log_probabilities

Reorder = Callable[[Cache, Array], Cache]  # (cache, parents_BK) -> cache


class Beam(NamedTuple):
    """The live targets of every sentence, most probable first (-inf: no target), and the best that have ended."""

    position: Array
    last_BK: Array
    tokens_BKT: Array
    log_probabilities_BK: Array
    found: SearchResult
    had_nan_B: Array  # among the logits of a live target
    limits_B: Array  # these two from `SearchRules.constraints`
    forced_BT: Array


def beam_search(
    step: Step,
    cache: Cache,
    rules: SearchRules,
    beam_size: int = 4,
    n_best: int = 1,
    *,
    reorder: Reorder,
) -> SearchResult:
    """Keeps the K most probable unfinished targets of each sentence; returns the N finished ones of highest score.

    `step` (see `Step`) gets batch_size * beam_size rows, with the rows of a sentence side by side. `cache` must have
    these rows already: `repeat_beams` makes them.

    `reorder(cache, parents_BK)` makes row k of a sentence continue the target of row parents_BK[b, k]. Use
    `reorder=gather_beams` if rows are the first axis of all arrays in the cache; otherwise say which axis they are:
    `reorder=functools.partial(gather_beams, axes={"layers": 1, "constants": None})`.

    With a beam of one this is greedy search.
    """
    check_sizes(beam_size=beam_size, n_best=n_best)
    if n_best > beam_size:
        raise ValueError(f"n_best is {n_best}: must be between 1 and beam_size, which is {beam_size}")
    if beam_size == 1:
        return greedy_search(step, cache, rules)
    penalties_T = rules.penalties_T()

    def is_live(beam: Beam) -> Array:
        """Whether a live target may still become better than the worst of the N that were found."""
        return _reachable_scores(beam, penalties_T) > beam.found.scores_BN[:, -1]

    def advance(carry: tuple[Beam, Cache]) -> tuple[Beam, Cache]:
        beam, cache = carry
        logits_RV, cache = step(beam.last_BK.reshape(-1), cache)
        beam, parents_BK = _extended(beam, logits_RV, rules, penalties_T)
        return beam, reorder(cache, parents_BK)

    beam = _first_beam(rules, beam_size, n_best)
    beam = run_stages(beam, cache, is_live, advance, rules.stages, rules.tail)
    return beam.found.without_scores(beam.had_nan_B | jnp.any(jnp.isnan(penalties_T)))


def _first_beam(rules: SearchRules, beam_size: int, n_best: int) -> Beam:
    """One live target for each sentence, the empty one; nothing found."""
    size, max_length = rules.batch_size, rules.max_length
    nothing_BN = jnp.full((size, n_best), -jnp.inf, jnp.float32)
    return Beam(
        position=jnp.int32(0),
        last_BK=jnp.broadcast_to(rules.first_B()[:, None], (size, beam_size)),
        tokens_BKT=jnp.full((size, beam_size, max_length), rules.pad_id, jnp.int32),
        log_probabilities_BK=jnp.full((size, beam_size), -jnp.inf, jnp.float32).at[:, 0].set(0.0),
        found=SearchResult(
            tokens_BNT=jnp.full((size, n_best, max_length), rules.pad_id, jnp.int32),
            scores_BN=nothing_BN,
            log_probabilities_BN=nothing_BN,
            lengths_BN=jnp.zeros((size, n_best), jnp.int32),
            finished_BN=jnp.zeros((size, n_best), bool),
        ),
        had_nan_B=jnp.zeros(size, bool),
        **rules.constraints(),
    )


def _extended(beam: Beam, logits_RV: Array, rules: SearchRules, penalties_T: Array) -> tuple[Beam, Array]:
    """The beam one token further, and the parents_BK of its live targets."""
    (batch_size, beam_size), n_best = beam.last_BK.shape, beam.found.scores_BN.shape[1]
    logits_RV = rules.check_logits(logits_RV, batch_size * beam_size)

    # 1. The best tokens after each target. No target can fill more than the K live places and one ending, and two of
    #    its best may be <pad> and <bos>. Where a token is forced, it is the only one.
    blocked_RV = rules.blocked(beam.tokens_BKT.reshape(batch_size * beam_size, -1), beam.position, logits_RV.shape[1])
    choosable_RV = logits_RV if blocked_RV is None else jnp.where(blocked_RV, -jnp.inf, logits_RV)
    tokens_RC = largest_entries(choosable_RV, beam_size + SPECIAL_TOKENS)[1]
    per_beam = tokens_RC.shape[1]
    forced_B11 = beam.forced_BT[:, beam.position][:, None, None]
    is_free_B11 = forced_B11 < 0
    tokens_BKC = jnp.where(is_free_B11, tokens_RC.reshape(batch_size, beam_size, per_beam), forced_B11)
    is_first_C = jnp.arange(per_beam) == 0
    allowed_BKC = rules.allows(tokens_BKC, forced_B11)
    if blocked_RV is not None:
        allowed_BKC &= ~jnp.take_along_axis(blocked_RV, tokens_RC, axis=1).reshape(tokens_BKC.shape)
    allowed_BKC = jnp.where(is_free_B11, allowed_BKC, is_first_C[None, None, :])

    # 2. Their log-probabilities. No order is defined with NaN: it counts as ruled out, and is reported.
    gains_RC = log_probabilities(logits_RV, tokens_BKC.reshape(-1, per_beam))
    gains_BKC = gains_RC.reshape(tokens_BKC.shape)
    is_nan_BKC = jnp.isnan(gains_BKC)
    has_nan_B = jnp.any(is_nan_BKC & (beam.log_probabilities_BK > -jnp.inf)[:, :, None], axis=(1, 2))
    totals_BKC = beam.log_probabilities_BK[:, :, None] + jnp.where(is_nan_BKC, RULED_OUT, gains_BKC)

    # 3. The 2 K best continuations of each sentence, best first; of equals the lowest parent, then the lowest token.
    totals_BC = jnp.where(allowed_BKC, totals_BKC, -jnp.inf).reshape(batch_size, -1)
    totals_BC, order_BC = lax.top_k(totals_BC, min(2 * beam_size, totals_BC.shape[1]))
    parents_BC, tokens_BC = order_BC // per_beam, _take(tokens_BKC.reshape(batch_size, -1), order_BC)
    targets_BCT = _take(beam.tokens_BKT, parents_BC).at[:, :, beam.position].set(tokens_BC)
    is_ending_BC = tokens_BC == rules.eos_id

    # 4. Endings among the K best compete with what was found before, which stands first, so that it wins a tie, and an
    #    empty slot is never overwritten by a non-ending.
    ended_BK = jnp.where(is_ending_BC, totals_BC, -jnp.inf)[:, :beam_size]
    ended = SearchResult(
        targets_BCT[:, :beam_size],
        ended_BK / penalties_T[beam.position],
        ended_BK,
        jnp.full_like(ended_BK, beam.position + 1, jnp.int32),
        is_possible(ended_BK),
    )
    both = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), beam.found, ended)
    best_BN = lax.top_k(both.scores_BN, n_best)[1]

    # 5. The K best others stay live.
    live_BK, kept_BK = lax.top_k(jnp.where(is_ending_BC, -jnp.inf, totals_BC), beam_size)
    extended = beam._replace(
        position=beam.position + 1,
        last_BK=_take(tokens_BC, kept_BK),
        tokens_BKT=_take(targets_BCT, kept_BK),
        log_probabilities_BK=live_BK,
        found=jax.tree.map(lambda leaf: _take(leaf, best_BN), both),
        had_nan_B=beam.had_nan_B | has_nan_B,
    )
    return extended, _take(parents_BC, kept_BK)


def _take(values: Array, indices_BK: Array) -> Array:
    """values[b, indices[b, k]] for arrays with any number of trailing axes."""
    return jnp.take_along_axis(values, indices_BK.reshape(indices_BK.shape + (1,) * (values.ndim - 2)), axis=1)


def _reachable_scores(beam: Beam, penalties_T: Array) -> Array:
    """An upper bound on the score of whatever the live targets of a sentence may become.

    Log-probabilities can only fall, and a negative number divided by a penalty is greatest where the penalty is: since
    penalties are monotone in the length, with the very next token or at the sentence's limit.
    """
    next_penalty = penalties_T[jnp.minimum(beam.position, penalties_T.size - 1)]
    greatest_penalty_B = jnp.maximum(next_penalty, penalties_T[beam.limits_B - 1])
    return beam.log_probabilities_BK[:, 0] / greatest_penalty_B


# The cache.


def gather_beams(cache: Cache, parents_BK: Array, axes: Any = 0) -> Cache:
    """The cache with its rows (B * K) rearranged to continue the parents.

    `axes` says where the rows are, as `in_axes` does for `jax.vmap`: an axis, None for arrays without rows, or a tree
    of these. Arrays without an axis stay as they are.
    """
    batch_size, beam_size = parents_BK.shape
    rows_R = (jnp.arange(batch_size)[:, None] * beam_size + parents_BK).reshape(-1)

    def gather(leaf: Array, axis: int) -> Array:
        if leaf.shape[axis] != rows_R.size:
            raise ValueError(
                f"an array of the cache has the shape {leaf.shape}: must have {rows_R.size} rows (batch_size times "
                f"beam_size) as axis {axis}; gather_beams(..., axes=...) says where they are"
            )
        # No bounds check on what may be the largest arrays.
        return jnp.asarray(leaf).at[(slice(None),) * (axis % leaf.ndim) + (rows_R,)].get(mode="promise_in_bounds")

    return _map_rows(gather, cache, axes)


def repeat_beams(cache: Cache, beam_size: int, axes: Any = 0) -> Cache:
    """Repeats each of the B rows of a cache K times, side by side; `axes` as in `gather_beams`."""
    return _map_rows(lambda leaf, axis: jnp.repeat(leaf, beam_size, axis), cache, axes)


def _map_rows(function: Callable[[Array, int], Array], cache: Cache, axes: Any) -> Cache:
    def of_subtree(axis: int | None, leaves: Any) -> Any:
        if axis is None:
            return leaves
        return jax.tree.map(lambda leaf: function(leaf, axis) if jnp.ndim(leaf) else leaf, leaves)

    return jax.tree.map(of_subtree, axes, cache, is_leaf=lambda axis: axis is None)
