"""Beam search (section 6.1). Length penalties, the proof of the stopping rule, and ties are in docs/decoding.md."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from transformer_jax.search.greedy import greedy_search
from transformer_jax.search.rules import SPECIAL_TOKENS, SearchResult, SearchRules, Step, check_int, next_logits
from transformer_jax.search.stages import Cache, run_stages
from transformer_jax.search.vocabulary import is_possible, largest_entries, log_probabilities

Reorder = Callable[[Cache, Array], Cache]  # (cache, parents_BK) -> cache


def gather_beams(cache: Cache, parents_BK: Array) -> Cache:
    """The cache with every leaf whose leading axis counts rows (B * K) rearranged to continue the parents."""
    batch_size, beam_size = parents_BK.shape
    rows_R = (jnp.arange(batch_size)[:, None] * beam_size + parents_BK).reshape(-1)

    def gather(leaf: Array) -> Array:
        if leaf.ndim == 0 or leaf.shape[0] != rows_R.size:
            return leaf
        return leaf.at[rows_R].get(mode="promise_in_bounds")  # no bounds check on what may be the largest arrays

    return jax.tree.map(gather, cache)


def repeat_beams(cache: Cache, beam_size: int) -> Cache:
    """A cache of B rows as one of B * K rows, those of a sentence side by side; scalar leaves stay as they are."""
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, beam_size, axis=0) if leaf.ndim else leaf, cache)


def beam_search(
    step: Step,
    cache: Cache,
    rules: SearchRules,
    beam_size: int = 4,
    n_best: int = 1,
    early_stop: bool = True,
    reorder: Reorder = gather_beams,
) -> SearchResult:
    """Keeps the K most probable unfinished targets of each sentence; returns the N finished ones of highest score.

    `step` sees batch_size * beam_size rows, those of a sentence side by side, and `cache` is laid out for that already
    (by `repeat_beams`, or better, with what beams share stored once per sentence). `reorder` makes row k of a sentence
    continue the target of row parents_BK[b, k]. A beam of one is greedy search: the one target ends as soon as `<eos>`
    is its most probable token.
    """
    check_int("beam_size", beam_size)
    check_int("n_best", n_best)
    if beam_size < 1:
        raise ValueError(f"beam_size is {beam_size}: must be >= 1")
    if not 1 <= n_best <= beam_size:
        raise ValueError(f"n_best is {n_best}: must be between 1 and beam_size, which is {beam_size}")
    if beam_size == 1:
        return greedy_search(step, cache, rules)
    penalties_T = rules.penalties_T()

    def is_live(beam: _Beam) -> Array:
        if early_stop:
            return _reachable_scores(beam, penalties_T) > beam.found.scores_BN[:, -1]
        return beam.log_probabilities_BK[:, 0] > -jnp.inf

    def advance(carry: tuple[_Beam, Cache]) -> tuple[_Beam, Cache]:
        beam, cache = carry
        logits_RV, new_cache = next_logits(step, beam.last_BK.reshape(-1), cache, rules)
        if reorder is gather_beams:
            _check_rows(cache, new_cache, *beam.last_BK.shape)
        candidates = _continuations(beam, rules, logits_RV)
        beam, parents_BK = _select(beam, candidates, candidates.tokens_BC == rules.eos_id, penalties_T)
        return beam, reorder(new_cache, parents_BK)

    start = _first_beam(rules, beam_size, n_best)
    return run_stages(start, cache, rules.division.anywhere(is_live), advance, rules.stages, rules.tail).found


def _check_rows(cache: Cache, new_cache: Cache, sentences: int, beam_size: int) -> None:
    """Raises ValueError for an array that `step` changes and `gather_beams` does not reorder.

    Sentences may come first: what all beams of a sentence share. Not in [sentences, rows], which is [layers, rows].
    """
    rows = sentences * beam_size
    leaves = jax.tree_util.tree_leaves_with_path(new_cache)
    for (path, leaf), given in zip(leaves, jax.tree.leaves(cache), strict=True):
        shape = jnp.shape(leaf)
        is_laid_out = not shape or shape[0] == rows or (shape[0] == sentences and shape[1:2] != (rows,))
        if leaf is not given and not is_laid_out:
            raise ValueError(
                f"cache{jax.tree_util.keystr(path)} has the shape {shape}: must have {rows} rows first "
                "(batch_size times beam_size) to follow the beams; another layout needs its own reorder(cache, parents)"
            )


class _Beam(NamedTuple):
    """The live targets of every sentence, most probable first (-inf: no target), and the best that have ended."""

    position: Array
    last_BK: Array
    tokens_BKT: Array
    log_probabilities_BK: Array
    found: SearchResult
    limits_B: Array
    forced_BT: Array


def _first_beam(rules: SearchRules, beam_size: int, n_best: int) -> _Beam:
    """One live target for each sentence, the empty one; nothing found."""
    size, max_length = rules.batch_size, rules.max_length
    nothing_BN = jnp.full((size, n_best), -jnp.inf, jnp.float32)
    found = SearchResult(
        tokens_BNT=jnp.full((size, n_best, max_length), rules.pad_id, jnp.int32),
        scores_BN=nothing_BN,
        log_probabilities_BN=nothing_BN,
        lengths_BN=jnp.zeros((size, n_best), jnp.int32),
        finished_BN=jnp.zeros((size, n_best), bool),
    )
    last_BK = jnp.full((size, beam_size), rules.bos_id, jnp.int32)
    tokens_BKT = jnp.full((size, beam_size, max_length), rules.pad_id, jnp.int32)
    log_probabilities_BK = jnp.full((size, beam_size), -jnp.inf, jnp.float32).at[:, 0].set(0.0)
    return _Beam(jnp.int32(0), last_BK, tokens_BKT, log_probabilities_BK, found, *rules.limits_and_forced())


class _Candidates(NamedTuple):
    """The 2 K best continuations of each sentence, best first; of equals the lowest parent, then the lowest token."""

    log_probabilities_BC: Array
    parents_BC: Array
    tokens_BC: Array


def _continuations(beam: _Beam, rules: SearchRules, logits_RV: Array) -> _Candidates:
    """Ranks the continuations of all live targets of a sentence by log-probability."""
    batch_size, beam_size = beam.last_BK.shape
    # No target can fill more than the K live places and one ending, and two of its best may be <pad> and <bos>.
    tokens_RC = largest_entries(logits_RV, beam_size + SPECIAL_TOKENS, rules.division.vocabulary)[1]
    per_beam = tokens_RC.shape[1]
    forced_B11 = beam.forced_BT[:, beam.position][:, None, None]
    is_free_B11 = forced_B11 < 0
    tokens_BKC = jnp.where(is_free_B11, tokens_RC.reshape(batch_size, beam_size, per_beam), forced_B11)
    is_first_C = jnp.arange(per_beam) == 0
    allowed_BKC = jnp.where(is_free_B11, rules.allows(tokens_BKC, forced_B11), is_first_C[None, None, :])
    tokens_RC = tokens_BKC.reshape(-1, per_beam)
    gains_RC = log_probabilities(logits_RV, tokens_RC, rules.division.vocabulary)
    totals_BKC = beam.log_probabilities_BK[:, :, None] + gains_RC.reshape(tokens_BKC.shape)
    totals_BC = jnp.where(allowed_BKC, totals_BKC, -jnp.inf).reshape(batch_size, -1)
    totals_BC, order_BC = lax.top_k(totals_BC, min(2 * beam_size, totals_BC.shape[1]))
    return _Candidates(totals_BC, order_BC // per_beam, _take(tokens_BKC.reshape(batch_size, -1), order_BC))


def _select(beam: _Beam, candidates: _Candidates, is_ending_BC: Array, penalties_T: Array) -> tuple[_Beam, Array]:
    """The next beam, and its parents: endings among the K best compete for `found`, the K best others stay live."""
    beam_size, n_best = beam.last_BK.shape[1], beam.found.scores_BN.shape[1]
    totals_BC, parents_BC, tokens_BC = candidates
    targets_BCT = _take(beam.tokens_BKT, parents_BC).at[:, :, beam.position].set(tokens_BC)

    ended_BK = jnp.where(is_ending_BC, totals_BC, -jnp.inf)[:, :beam_size]
    ended = SearchResult(
        targets_BCT[:, :beam_size],
        ended_BK / penalties_T[beam.position],
        ended_BK,
        jnp.full_like(ended_BK, beam.position + 1, jnp.int32),
        is_possible(ended_BK),
    )
    # What was found before stands first, so it wins a tie, and an empty slot is never overwritten by a non-ending.
    both = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), beam.found, ended)
    best_BN = lax.top_k(both.scores_BN, n_best)[1]
    found = jax.tree.map(lambda leaf: _take(leaf, best_BN), both)

    live_BK, kept_BK = lax.top_k(jnp.where(is_ending_BC, -jnp.inf, totals_BC), beam_size)
    next_beam = beam._replace(
        position=beam.position + 1,
        last_BK=_take(tokens_BC, kept_BK),
        tokens_BKT=_take(targets_BCT, kept_BK),
        log_probabilities_BK=live_BK,
        found=found,
    )
    return next_beam, _take(parents_BC, kept_BK)


def _take(values: Array, indices_BK: Array) -> Array:
    """values[b, indices[b, k]] for arrays with any number of trailing axes."""
    return jnp.take_along_axis(values, indices_BK.reshape(indices_BK.shape + (1,) * (values.ndim - 2)), axis=1)


def _reachable_scores(beam: _Beam, penalties_T: Array) -> Array:
    """An upper bound on the score of whatever the live targets of a sentence may become.

    Log-probabilities can only fall, and a negative number divided by a penalty is greatest where the penalty is: since
    penalties are monotone in the length, with the very next token or at the sentence's limit.
    """
    next_penalty = penalties_T[jnp.minimum(beam.position, penalties_T.size - 1)]
    greatest_penalty_B = jnp.maximum(next_penalty, penalties_T[beam.limits_B - 1])
    return beam.log_probabilities_BK[:, 0] / greatest_penalty_B
