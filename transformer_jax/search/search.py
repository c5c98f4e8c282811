"""Greedy search, sampling and beam search over `step(tokens, cache) -> (logits, cache)`.

No model is imported here: `step` takes the last token of every row and an opaque cache, and returns the logits of the
next token and the new cache. Everything is pure and of static shape, for the caller to `jax.jit`. Length penalties,
the stopping rule with its proof, ties and guarantees are written out in docs/decoding.md.

Letters: B sentences, K beam, R rows of the decoder (B, or B * K in a beam), T target positions, C candidates,
V vocabulary (N elsewhere in this package: here N counts the n-best).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from transformer_jax.search.largest import largest_entries
from transformer_jax.search.penalties import penalty_table
from transformer_jax.search.rules import FREE, Rules, check_shape
from transformer_jax.search.stages import Cache, Stage, Tail, run_stages

Step = Callable[[Array, Cache], tuple[Array, Cache]]  # (tokens_R, cache) -> (logits_RV, cache)
Reorder = Callable[[Cache, Array], Cache]  # (cache, parents_BK) -> cache

# The log-probability of a token the model rules out (logit -inf). Finite, so that such a hypothesis still ranks below
# every possible one without making a NaN; -inf is kept for what the search itself forbids.
RULED_OUT = -1e9
SPECIAL_TOKENS = 3  # <pad>, <bos> and <eos>: the only ones that may be forbidden


class SearchResult(NamedTuple):
    """The N best targets of every sentence, best first. Lengths count generated tokens, `<eos>` and prefix included."""

    tokens_BNT: Array  # without <bos>, with <eos>, then <pad>
    scores_BN: Array  # log-probability / length penalty; -inf in a slot for which there is no hypothesis
    log_probabilities_BN: Array  # under the model's own distribution: nothing filtered, no temperature
    lengths_BN: Array
    finished_BN: Array  # False: the slot is empty, or holds a target that the model rules out


def greedy_search(
    step: Step,
    cache: Cache,
    *,
    batch_size: int,
    max_length: int,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    length_penalty: str = "gnmt",
    alpha: float = 0.6,
    max_lengths: Array | None = None,
    min_length: int = 0,
    prefix: Array | None = None,
    stages: Sequence[Stage] = (),
    tail: Tail | None = None,
) -> SearchResult:
    """Take the most probable token at every position until it is `<eos>`; of equals, the lowest id."""
    rules = Rules.build(batch_size, max_length, bos_id, eos_id, pad_id, max_lengths, min_length, prefix)
    penalties_T = jnp.asarray(penalty_table(length_penalty, alpha, max_length), jnp.float32)

    def choose(logits_BV: Array, rollout: _Rollout) -> Array:
        best_BC = largest_entries(logits_BV, 1 + SPECIAL_TOKENS)
        first_allowed_B1 = jnp.argmax(rules.allows(best_BC, rollout.position), axis=1, keepdims=True)
        return jnp.take_along_axis(best_BC, first_allowed_B1, axis=1)[:, 0]

    return _roll_out(step, cache, choose, _Rollout.start(rules), penalties_T, stages, tail)


def sample_search(
    step: Step,
    cache: Cache,
    key: Array,
    *,
    batch_size: int,
    max_length: int,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    sentence_ids: Array | None = None,
    length_penalty: str = "gnmt",
    alpha: float = 0.6,
    max_lengths: Array | None = None,
    min_length: int = 0,
    prefix: Array | None = None,
    stages: Sequence[Stage] = (),
    tail: Tail | None = None,
) -> SearchResult:
    """Draw every token from softmax(logits / temperature), cut to the `top_k` best and then to the nucleus `top_p`.

    A sentence's draws depend on `key` and its entry of `sentence_ids` (by default its row) alone: with the index in
    the corpus as its id, a sentence gets the same sample in whatever batch it comes.
    """
    if not 0 < temperature < float("inf"):
        raise ValueError(f"temperature is {temperature}: must be finite and > 0 (its limit 0 is greedy_search)")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k is {top_k}: must be >= 1, or None for the whole vocabulary")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}: must be in (0, 1]")
    rules = Rules.build(batch_size, max_length, bos_id, eos_id, pad_id, max_lengths, min_length, prefix)
    penalties_T = jnp.asarray(penalty_table(length_penalty, alpha, max_length), jnp.float32)
    ids_B = jnp.arange(batch_size) if sentence_ids is None else jnp.asarray(sentence_ids)
    check_shape("sentence_ids", ids_B, (batch_size,))
    keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, ids_B)

    def choose(logits_BV: Array, rollout: _Rollout) -> Array:
        allowed_V = rules.allows(jnp.arange(logits_BV.shape[1]), rollout.position)
        logits_BV = jnp.where(allowed_V[None, :], jnp.maximum(logits_BV, RULED_OUT), -jnp.inf)
        tokens_BC, logits_BC = _most_probable(logits_BV, temperature, top_k, top_p)
        keys_now_B = jax.vmap(jax.random.fold_in, (0, None))(rollout.keys_B, rollout.position)
        drawn_B = jax.vmap(jax.random.categorical)(keys_now_B, logits_BC)
        return jnp.take_along_axis(tokens_BC, drawn_B[:, None], axis=1)[:, 0]

    return _roll_out(step, cache, choose, _Rollout.start(rules, keys_B), penalties_T, stages, tail)


def beam_search(
    step: Step,
    cache: Cache,
    *,
    batch_size: int,
    max_length: int,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    beam_size: int = 4,
    length_penalty: str = "gnmt",
    alpha: float = 0.6,
    max_lengths: Array | None = None,
    min_length: int = 0,
    prefix: Array | None = None,
    n_best: int = 1,
    early_stop: bool = True,
    reorder: Reorder | None = None,
    stages: Sequence[Stage] = (),
    tail: Tail | None = None,
) -> SearchResult:
    """Keep the K most probable unfinished hypotheses of each sentence; return the N finished ones of highest score.

    `step` sees batch_size * beam_size rows, those of a sentence side by side, and `cache` is laid out for that already
    (`repeat_beams`, or better, what does not differ between beams once per sentence). `reorder` makes row k of a
    sentence continue the hypothesis of row parents_BK[b, k]; the default is `gather_beams`. A beam of one is greedy
    search: the one hypothesis ends when `<eos>` is its most probable token, and no other is left to go on.
    """
    if beam_size < 1:
        raise ValueError(f"beam_size is {beam_size}: must be >= 1")
    if not 1 <= n_best <= beam_size:
        raise ValueError(f"n_best is {n_best}: must be between 1 and beam_size, which is {beam_size}")
    if beam_size == 1:
        return greedy_search(
            step, cache, batch_size=batch_size, max_length=max_length, bos_id=bos_id, eos_id=eos_id, pad_id=pad_id,
            length_penalty=length_penalty, alpha=alpha, max_lengths=max_lengths, min_length=min_length, prefix=prefix,
            stages=stages, tail=tail,
        )  # fmt: skip
    rules = Rules.build(batch_size, max_length, bos_id, eos_id, pad_id, max_lengths, min_length, prefix)
    penalties_T = jnp.asarray(penalty_table(length_penalty, alpha, max_length), jnp.float32)
    move = gather_beams if reorder is None else reorder

    def goes_on(beam: _Beam) -> Array:
        if early_stop:
            return _reachable_scores(beam, penalties_T) > beam.found.scores_BN[:, -1]
        return beam.log_probabilities_BK[:, 0] > -jnp.inf

    def advance(carry: tuple[_Beam, Cache]) -> tuple[_Beam, Cache]:
        beam, cache = carry
        logits_RV, cache = step(beam.last_BK.reshape(-1), cache)
        logits_BKV = logits_RV.astype(jnp.float32).reshape(*beam.last_BK.shape, -1)
        beam, parents_BK = _select(beam, _continuations(beam, logits_BKV), penalties_T)
        return beam, move(cache, parents_BK)

    return run_stages(_Beam.start(rules, beam_size, n_best), cache, goes_on, advance, stages, tail).found


def gather_beams(cache: Cache, parents_BK: Array) -> Cache:
    """Every leaf whose leading axis counts rows (B * K), rearranged to continue the parents; the others untouched."""
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


def _log_probabilities(logits_xV: Array, tokens_xC: Array) -> Array:
    """log softmax(logits)[tokens], without computing it for any other token. Never above 0, whatever the rounding."""
    normaliser_x1 = jax.nn.logsumexp(logits_xV, axis=-1, keepdims=True)
    logits_xC = jnp.take_along_axis(logits_xV, tokens_xC, axis=-1)
    return jnp.clip(logits_xC - jnp.maximum(normaliser_x1, RULED_OUT), RULED_OUT, 0.0)


def _most_probable(logits_BV: Array, temperature: float, top_k: int | None, top_p: float) -> tuple[Array, Array]:
    """The tokens that may be drawn, and their logits at this temperature; those outside the nucleus get -inf."""
    # The maximum goes first: a tiny temperature then underflows to -inf instead of overflowing.
    logits_BV = (logits_BV - jnp.max(logits_BV, axis=1, keepdims=True)) / temperature
    if top_k is None and top_p == 1:
        return jnp.broadcast_to(jnp.arange(logits_BV.shape[1])[None, :], logits_BV.shape), logits_BV
    tokens_BC = largest_entries(logits_BV, logits_BV.shape[1] if top_k is None else top_k)
    logits_BC = jnp.take_along_axis(logits_BV, tokens_BC, axis=1)
    probabilities_BC = jax.nn.softmax(logits_BC, axis=1)
    mass_before_BC = jnp.cumsum(probabilities_BC, axis=1) - probabilities_BC
    return tokens_BC, jnp.where(mass_before_BC < top_p, logits_BC, -jnp.inf)


class _Rollout(NamedTuple):
    """One growing target a sentence, with the number of positions decoded so far."""

    position: Array
    last_B: Array
    ended_B: Array
    tokens_BT: Array
    log_probabilities_B: Array
    rules: Rules
    keys_B: Any  # of what is drawn; None where nothing is

    @classmethod
    def start(cls, rules: Rules, keys_B: Any = None) -> "_Rollout":
        batch_size, max_length = rules.forced_BT.shape
        return cls(
            jnp.int32(0),
            jnp.full(batch_size, rules.bos_id, jnp.int32),
            jnp.zeros(batch_size, bool),
            jnp.full((batch_size, max_length), rules.pad_id, jnp.int32),
            jnp.zeros(batch_size, jnp.float32),
            rules,
            keys_B,
        )


def _roll_out(
    step: Step,
    cache: Cache,
    choose: Callable[[Array, _Rollout], Array],
    start: _Rollout,
    penalties_T: Array,
    stages: Sequence[Stage],
    tail: Tail | None,
) -> SearchResult:
    """Append what `choose(logits_BV, rollout)` returns until every sentence has ended."""

    def advance(carry: tuple[_Rollout, Cache]) -> tuple[_Rollout, Cache]:
        rollout, cache = carry
        position, rules, ended_B = rollout.position, rollout.rules, rollout.ended_B
        logits_BV, cache = step(rollout.last_B, cache)
        logits_BV = logits_BV.astype(jnp.float32)
        forced_B = rules.forced_BT[:, position]
        chosen_B = jnp.where(forced_B == FREE, choose(logits_BV, rollout).astype(jnp.int32), forced_B)
        gained_B = _log_probabilities(logits_BV, chosen_B[:, None])[:, 0]
        chosen_B = jnp.where(ended_B, rules.pad_id, chosen_B)
        return rollout._replace(
            position=position + 1,
            last_B=chosen_B,
            ended_B=ended_B | (chosen_B == rules.eos_id),
            tokens_BT=rollout.tokens_BT.at[:, position].set(chosen_B),
            log_probabilities_B=rollout.log_probabilities_B + jnp.where(ended_B, 0.0, gained_B),
        ), cache

    rollout = run_stages(start, cache, lambda rollout: ~rollout.ended_B, advance, stages, tail)
    lengths_B = jnp.argmax(rollout.tokens_BT == rollout.rules.eos_id, axis=1).astype(jnp.int32) + 1
    return SearchResult(
        rollout.tokens_BT[:, None, :],
        (rollout.log_probabilities_B / penalties_T[lengths_B - 1])[:, None],
        rollout.log_probabilities_B[:, None],
        lengths_B[:, None],
        _is_possible(rollout.log_probabilities_B)[:, None],
    )


def _is_possible(log_probabilities: Array) -> Array:
    return log_probabilities > RULED_OUT / 2


class _Beam(NamedTuple):
    """The live hypotheses of every sentence, most probable first (-inf: no hypothesis), and the best that ended."""

    position: Array
    last_BK: Array
    tokens_BKT: Array
    log_probabilities_BK: Array
    found: SearchResult
    rules: Rules

    @classmethod
    def start(cls, rules: Rules, beam_size: int, n_best: int) -> "_Beam":
        """One live hypothesis a sentence, the empty one; nothing found."""
        batch_size, max_length = rules.forced_BT.shape
        nothing_BN = jnp.full((batch_size, n_best), -jnp.inf, jnp.float32)
        return cls(
            jnp.int32(0),
            jnp.full((batch_size, beam_size), rules.bos_id, jnp.int32),
            jnp.full((batch_size, beam_size, max_length), rules.pad_id, jnp.int32),
            jnp.full((batch_size, beam_size), -jnp.inf, jnp.float32).at[:, 0].set(0.0),
            SearchResult(
                jnp.full((batch_size, n_best, max_length), rules.pad_id, jnp.int32),
                nothing_BN,
                nothing_BN,
                jnp.zeros((batch_size, n_best), jnp.int32),
                jnp.zeros((batch_size, n_best), bool),
            ),
            rules,
        )


class _Candidates(NamedTuple):
    """The 2 K best continuations of each sentence, best first; of equals the lowest parent, then the lowest token."""

    log_probabilities_BC: Array
    parents_BC: Array
    tokens_BC: Array


def _continuations(beam: _Beam, logits_BKV: Array) -> _Candidates:
    """Rank the continuations of all live hypotheses of a sentence by log-probability."""
    rules = beam.rules
    batch_size, beam_size, vocabulary = logits_BKV.shape
    # No hypothesis can fill more than the K live places and one ending, and two of its best may be <pad> and <bos>.
    tokens = largest_entries(logits_BKV.reshape(-1, vocabulary), beam_size + SPECIAL_TOKENS)
    per_beam = tokens.shape[1]
    forced_B11 = rules.forced_BT[:, beam.position][:, None, None]
    is_free_B11 = forced_B11 == FREE
    tokens_BKC = jnp.where(is_free_B11, tokens.reshape(batch_size, beam_size, per_beam), forced_B11)
    is_first_C = jnp.arange(per_beam) == 0
    allowed_BKC = jnp.where(is_free_B11, rules.allows(tokens_BKC, beam.position), is_first_C[None, None, :])
    totals_BKC = beam.log_probabilities_BK[:, :, None] + _log_probabilities(logits_BKV, tokens_BKC)
    totals_BC = jnp.where(allowed_BKC, totals_BKC, -jnp.inf).reshape(batch_size, -1)
    totals_BC, order_BC = lax.top_k(totals_BC, min(2 * beam_size, totals_BC.shape[1]))
    return _Candidates(totals_BC, order_BC // per_beam, _take(tokens_BKC.reshape(batch_size, -1), order_BC))


def _select(beam: _Beam, candidates: _Candidates, penalties_T: Array) -> tuple[_Beam, Array]:
    """Let the endings among the K best compete for `found` and the K best others live on; also return their parents."""
    beam_size, n_best = beam.last_BK.shape[1], beam.found.scores_BN.shape[1]
    totals_BC, parents_BC, tokens_BC = candidates
    targets_BCT = _take(beam.tokens_BKT, parents_BC).at[:, :, beam.position].set(tokens_BC)
    is_ending_BC = tokens_BC == beam.rules.eos_id

    ended_BK = jnp.where(is_ending_BC, totals_BC, -jnp.inf)[:, :beam_size]
    ended = SearchResult(
        targets_BCT[:, :beam_size],
        ended_BK / penalties_T[beam.position],
        ended_BK,
        jnp.full_like(ended_BK, beam.position + 1, jnp.int32),
        _is_possible(ended_BK),
    )
    # What was found before stands first, so it wins a tie, and an empty slot is never overwritten by a non-ending.
    both = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), beam.found, ended)
    best_BN = lax.top_k(both.scores_BN, n_best)[1]
    found = jax.tree.map(lambda leaf: _take(leaf, best_BN), both)

    live_BK, kept_BK = lax.top_k(jnp.where(is_ending_BC, -jnp.inf, totals_BC), beam_size)
    last_BK, targets_BKT = _take(tokens_BC, kept_BK), _take(targets_BCT, kept_BK)
    return _Beam(beam.position + 1, last_BK, targets_BKT, live_BK, found, beam.rules), _take(parents_BC, kept_BK)


def _take(values: Array, indices_BK: Array) -> Array:
    """values[b, indices[b, k]] for arrays with any number of trailing axes."""
    return jnp.take_along_axis(values, indices_BK.reshape(indices_BK.shape + (1,) * (values.ndim - 2)), axis=1)


def _reachable_scores(beam: _Beam, penalties_T: Array) -> Array:
    """An upper bound on the score of whatever the live hypotheses of a sentence may still become.

    Their log-probabilities can only fall, and a negative number divided by a penalty is greatest where the penalty is:
    since penalties are monotone in the length, with the very next token or at the sentence's limit.
    """
    next_penalty = penalties_T[jnp.minimum(beam.position, penalties_T.size - 1)]
    greatest_penalty_B = jnp.maximum(next_penalty, penalties_T[beam.rules.limits_B - 1])
    return beam.log_probabilities_BK[:, 0] / greatest_penalty_B
