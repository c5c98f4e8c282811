"""Which targets the three searches may return, how targets are scored, and what a search is given and returns.

A search knows no model, only a `Step`. Everything is pure and of static shape, for the caller to `jax.jit`.
docs/search.md states the guarantees.

Letters: B sentences, K beam, R rows of the decoder (B, or B * K in a beam), T target positions, C candidates,
V vocabulary (N elsewhere in this package: here N counts the n-best).
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from transformer_jax.search.loop import Cache, Stage

FREE, UNENDED = -1, -2  # at this position no token is forced, and, if UNENDED, <eos> is forbidden
SPECIAL_TOKENS = 3  # <pad>, <bos> and <eos>: the only tokens that `SearchRules.allows` may forbid

# A target of n generated tokens, <eos> included, scores log P / penalty(n).
LENGTH_PENALTIES: dict[str, Callable[[Any, Any], Any]] = {
    "gnmt": lambda n, alpha: ((5 + n) / 6) ** alpha,  # Wu et al. 2016, equation 14; the paper's, with alpha 0.6
    "average": lambda n, alpha: n**alpha,  # alpha 1: the mean log-probability of a token
    "none": lambda n, alpha: np.ones_like(n),
}


class Step(Protocol):
    """The model, one position at a time: `step(tokens_R, cache) -> (logits_RV, cache)`.

    - `tokens_R` is the last token of every row, at first `bos_id`. A row is a sentence or, in a beam, one of the
      beam_size targets of a sentence, which are side by side. Rows of finished sentences get any token, in greedy
      search and sampling `pad_id`; their results do not count.
    - `logits_RV` predict the token that follows, unnormalized. -inf forbids a token. With a NaN in its logits, a
      sentence has the score NaN and is not finished.
    - `cache` is any pytree of arrays. The returned one has the same structure, shapes and types.
    - It is called `max_length` times at most: the cache needs room for that.
    - It is pure: traced once, in a `lax.while_loop`.
    """

    def __call__(self, tokens_R: Array, cache: Cache, /) -> tuple[Array, Cache]: ...


class SearchResult(NamedTuple):
    """The N best targets of every sentence, best first. Lengths count generated tokens, `<eos>` and prefix included."""

    tokens_BNT: Array  # without <bos>, with <eos>, then <pad>
    scores_BN: Array  # log-probability / length penalty; -inf in an empty slot
    log_probabilities_BN: Array  # under the model's own distribution: nothing filtered, no temperature
    lengths_BN: Array
    finished_BN: Array  # False: the slot is empty, or holds a target that the model rules out

    def without_scores(self, is_void_B: Array) -> SearchResult:
        """The result with NaN as the scores of these sentences, which are then not finished."""
        void_B1 = jnp.where(is_void_B, jnp.nan, 0.0)[:, None]
        return self._replace(
            scores_BN=self.scores_BN + void_B1,
            log_probabilities_BN=self.log_probabilities_BN + void_B1,
            finished_BN=self.finished_BN & ~is_void_B[:, None],
        )


@dataclasses.dataclass(frozen=True)
class SearchRules:
    """Which targets a search may return, and how it scores them. Lengths count generated tokens, `<eos>` included.

    - `batch_size`, `max_length`: the number of sentences, and the most tokens of any target.
    - `bos_id`, `eos_id`, `pad_id`: `<pad>` and `<bos>` are never generated, unless they have the same id as `<eos>`.
    - `length_penalty`, `alpha`: one of `LENGTH_PENALTIES`, and its exponent, which may be traced.
    - `min_length`, `max_lengths`: `<eos>` is forbidden before `min_length` tokens and forced at `max_lengths`. Each is
      a number, or an array with one per sentence. A limit below the minimum, or too short for the prefix, is increased.
    - `prefix`: the first tokens of each sentence, [batch_size, less than max_length], padded with `<pad>` at the end.
    - `first_tokens`: what the first step gets in place of `<bos>`, [batch_size]: the last tokens of prompts whose other
      tokens are in the cache already. They are not part of a target.
    - `no_repeat_ngram_size`: no target contains the same n tokens in a row twice, except where a token is forced.
    - `stages`, `tail`: make the search faster (see loop.py), and change results only by rounding; `tail` is at most
      `batch_size`.
    """

    batch_size: int
    max_length: int
    bos_id: int
    eos_id: int
    pad_id: int
    length_penalty: str = "gnmt"
    alpha: float | Array = 0.6
    min_length: ArrayLike = 0
    max_lengths: ArrayLike | None = None
    prefix: ArrayLike | None = None
    stages: Sequence[Stage] = ()
    tail: int | None = None
    first_tokens: ArrayLike | None = None
    no_repeat_ngram_size: int | None = None

    def __post_init__(self) -> None:
        if self.length_penalty not in LENGTH_PENALTIES:
            raise ValueError(f"length_penalty = {self.length_penalty!r}: must be one of {', '.join(LENGTH_PENALTIES)}")
        check_sizes(batch_size=self.batch_size, max_length=self.max_length, tail=self.tail)
        check_sizes(no_repeat_ngram_size=self.no_repeat_ngram_size)
        for name in ("bos_id", "eos_id", "pad_id"):
            if is_known(token := getattr(self, name)) or token is None:
                try:
                    object.__setattr__(self, name, operator.index(token))
                except TypeError:
                    raise ValueError(f"{name} = {token!r}: must be the id of one token") from None
        shortest = np.asarray(self.min_length if is_known(self.min_length) else 0)
        if np.any((shortest < 0) | (shortest > self.max_length)):
            raise ValueError(f"min_length = {shortest}: must be at least 0 and at most max_length, {self.max_length}")
        is_number = np.ndim(self.alpha) == 0 and not isinstance(self.alpha, str)
        if not is_number or (is_known(self.alpha) and not np.isfinite(self.alpha)):
            raise ValueError(f"alpha = {self.alpha!r}: must be one finite number for all sentences")
        if is_known(self.alpha):
            with np.errstate(over="ignore", under="ignore"):
                last = np.float32(LENGTH_PENALTIES[self.length_penalty](np.float64(self.max_length), float(self.alpha)))
            if not 0 < last < np.inf:
                raise ValueError(
                    f"alpha = {self.alpha!r}: the penalty of {self.max_length} tokens is {last} in float32"
                )
        for name in ("min_length", "max_lengths", "first_tokens"):
            if np.ndim(lengths := getattr(self, name)):
                check_shape(name, lengths, (self.batch_size,))
        for name in ("prefix", "first_tokens", "min_length", "max_lengths"):
            kind = getattr(given := getattr(self, name), "dtype", None) or np.asarray(given).dtype
            if given is not None and not jnp.issubdtype(kind, jnp.integer):
                raise ValueError(f"{name} is {kind}: must be whole numbers, such as int32")
        if self.prefix is not None:
            check_shape("prefix", self.prefix, (self.batch_size, min(np.shape(self.prefix)[-1], self.max_length - 1)))
        if is_known(self.prefix):
            prefix_BP = np.asarray(self.prefix)
            is_end_BP = np.isin(prefix_BP, (self.pad_id, self.eos_id))
            if np.any(is_end_BP[:, :-1] & (prefix_BP != self.pad_id)[:, 1:]):
                raise ValueError("prefix has a token after <pad> or <eos>: pad it at its end")
            if self.bos_id not in (self.pad_id, self.eos_id) and np.any(prefix_BP == self.bos_id):
                raise ValueError("prefix has <bos>, with which every target begins anyway: leave it out")

    def check_logits(self, logits_RV: ArrayLike, rows: int) -> Array:
        """The logits in float32. Raises ValueError unless they are [rows, vocabulary] and all known ids are in it."""
        check_shape("logits", logits_RV, (rows, *np.shape(logits_RV)[-1:]))
        vocabulary = np.shape(logits_RV)[1]
        for name in ("bos_id", "eos_id", "pad_id", "prefix", "first_tokens"):
            ids = getattr(self, name)
            if is_known(ids) and np.any((np.asarray(ids) < 0) | (np.asarray(ids) >= vocabulary)):
                raise ValueError(f"{name} is {ids}: ids must be between 0 and {vocabulary - 1}")
        return jnp.asarray(logits_RV, jnp.float32)

    def constraints(self) -> dict[str, Array]:
        """`limits_B`, the maximum length, and `forced_BT`: the token at each position, or FREE or UNENDED."""
        size, max_length = self.batch_size, self.max_length
        limits_B = jnp.broadcast_to(
            jnp.asarray(max_length if self.max_lengths is None else self.max_lengths, jnp.int32), size
        )
        shortest_B = jnp.maximum(jnp.broadcast_to(jnp.asarray(self.min_length, jnp.int32), size), 1)
        ends_too_soon_BT = jnp.arange(1, max_length + 1)[None, :] < shortest_B[:, None]
        forced_BT = jnp.where(ends_too_soon_BT, UNENDED, FREE).astype(jnp.int32)
        if self.prefix is not None:
            prefix_BP = jnp.asarray(self.prefix, jnp.int32)
            is_given_BP = prefix_BP != self.pad_id
            # No negative id is FREE or UNENDED: it is beyond every vocabulary.
            prefix_BP = jnp.where(prefix_BP < 0, jnp.iinfo(jnp.int32).max, prefix_BP)
            unforced_BP = forced_BT[:, : prefix_BP.shape[1]]
            forced_BT = forced_BT.at[:, : prefix_BP.shape[1]].set(jnp.where(is_given_BP, prefix_BP, unforced_BP))
            shortest_B = jnp.maximum(shortest_B, jnp.sum(is_given_BP, axis=1) + 1)
        limits_B = jnp.clip(limits_B, shortest_B, max_length)
        is_last_BT = jnp.arange(max_length)[None, :] == limits_B[:, None] - 1
        return {"limits_B": limits_B, "forced_BT": jnp.where(is_last_BT, self.eos_id, forced_BT)}

    def first_B(self) -> Array:
        """The tokens of the first step."""
        first = self.bos_id if self.first_tokens is None else jnp.asarray(self.first_tokens)
        return jnp.broadcast_to(first, self.batch_size).astype(jnp.int32)

    def blocked(self, tokens_RT: Array, position: Array, vocabulary: int) -> Array | None:
        """The tokens, RV, that would complete the same n tokens in a row for a second time; None without this rule."""
        size, (rows, length) = self.no_repeat_ngram_size, tokens_RT.shape
        if size is None or size >= length:
            return None
        starts_S = jnp.arange(length - size + 1)
        is_same_RS = jnp.broadcast_to(starts_S + size <= position, (rows, starts_S.size))
        for place in range(size - 1):  # the newest n - 1 tokens are compared with those at every start
            newest_R1 = lax.dynamic_slice_in_dim(tokens_RT, position - size + 1 + place, 1, axis=1)
            is_same_RS &= tokens_RT[:, place : place + starts_S.size] == newest_R1
        blocked_RV = jnp.zeros((rows, vocabulary), bool)
        return blocked_RV.at[jnp.arange(rows)[:, None], tokens_RT[:, size - 1 :]].max(is_same_RS)

    def allows(self, tokens: Array, forced: Array) -> Array:
        """Whether each token may be generated where none is forced: where `forced`, of its rank, is FREE or UNENDED."""
        is_eos = tokens == self.eos_id
        is_special = ((tokens == self.pad_id) | (tokens == self.bos_id)) & ~is_eos
        return ~(is_special | (is_eos & (forced == UNENDED)))

    def penalties_T(self) -> Array:
        """The length penalties of 1, 2, ... `max_length` generated tokens: entry n - 1 belongs to n tokens.

        They are monotone, as the bound of beam search needs it, although powers in float32 are rounded. NaN stands for
        those that are not above 0 and finite.
        """
        lengths = np.arange(1, self.max_length + 1, dtype=np.float64)
        penalties = jnp.asarray(LENGTH_PENALTIES[self.length_penalty](lengths, self.alpha), jnp.float32)
        if isinstance(self.alpha, Array):
            penalties = jnp.where(self.alpha > 0, lax.cummax(penalties), lax.cummin(penalties))
        return jnp.where((penalties > 0) & (penalties < jnp.inf), penalties, jnp.nan)


def is_known(value: Any) -> bool:
    """Whether there is a value at hand: not for a tracer, nor for an array on other hosts."""
    return value is not None and not isinstance(value, jax.core.Tracer) and getattr(value, "is_fully_addressable", True)


def check_shape(name: str, array: Any, shape: tuple[int, ...]) -> None:
    if np.shape(array) != shape:
        raise ValueError(f"{name} has the shape {np.shape(array)}: must be {shape}")


def check_sizes(**sizes: Any) -> None:
    """Raises ValueError unless each, which a program is compiled for, is a whole number of at least 1, or None.

    In jax.export the batch may have any size.
    """
    for name, size in sizes.items():
        if name == "batch_size" and jax.export.is_symbolic_dim(size):
            continue
        if isinstance(size, jax.core.Tracer):
            raise ValueError(
                f"{name} is traced: must be known when the search is compiled (static_argnames of jax.jit)"
            )
        if size is not None and (isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1):
            raise ValueError(f"{name} = {size!r}: must be a whole number, at least 1")
