"""What the three searches share: which targets are allowed, how they are scored, and what is returned.

A search calls `step(tokens, cache) -> (logits, cache)` with the last token of every row and an opaque cache, and knows
no model. Everything is pure and of static shape, for the caller to `jax.jit`. docs/decoding.md states the guarantees.

Letters: B sentences, K beam, R rows of the decoder (B, or B * K in a beam), T target positions, C candidates,
V vocabulary (N elsewhere in this package: here N counts the n-best).
"""

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from flax.errors import TraceContextError
from jax import Array, lax

from transformer_jax.search.stages import Cache, Stage

Step = Callable[[Array, Cache], tuple[Array, Cache]]  # (tokens_R, cache) -> (logits_RV, cache)
FREE, UNENDED = -1, -2  # at this position no token is forced, and, if UNENDED, <eos> is forbidden
SPECIAL_TOKENS = 3  # <pad>, <bos> and <eos>: the only tokens that `SearchRules.allows` may forbid

# Log-probabilities only fall as a target grows, so that without a penalty short targets win. A target of n generated
# tokens, <eos> included, scores log P / penalty(n).
LENGTH_PENALTIES: dict[str, Callable[[int, float], float]] = {
    "gnmt": lambda n, alpha: ((5 + n) / 6) ** alpha,  # Wu et al. 2016, equation 14; the paper's, with alpha 0.6
    "average": lambda n, alpha: float(n) ** alpha,  # alpha 1: the mean log-probability of a token
    "none": lambda n, alpha: 1.0,
}
# Penalties outside this range would push float32 scores to zero or infinity, where all targets tie.
_SMALLEST, _LARGEST = 1e-30, 1e30


class SearchResult(NamedTuple):
    """The N best targets of every sentence, best first. Lengths count generated tokens, `<eos>` and prefix included."""

    tokens_BNT: Array  # without <bos>, with <eos>, then <pad>
    scores_BN: Array  # log-probability / length penalty; -inf in an empty slot
    log_probabilities_BN: Array  # under the model's own distribution: nothing filtered, no temperature
    lengths_BN: Array
    finished_BN: Array  # False: the slot is empty, or holds a target that the model rules out


class Division(NamedTuple):
    """The axes of a mesh that divide the vocabulary and the sentences of a search whose `step` sends messages.

    It is inside a `jax.shard_map` over the axes of the sentences.
    """

    vocabulary: str | None = None
    sentences: tuple[str, ...] = ()

    def anywhere(self, is_live: Callable[[Any], Array]) -> Callable[[Any], Array]:
        """`is_live`, true of all sentences as long as it is of one on any device: all run equally many steps."""
        if not self.sentences:
            return is_live

        def is_live_anywhere(search: Any) -> Array:
            is_live_B = is_live(search)
            return jnp.full_like(is_live_B, lax.psum(jnp.sum(is_live_B), self.sentences) > 0)

        return is_live_anywhere


UNDIVIDED = Division()


@dataclasses.dataclass(frozen=True)
class SearchRules:
    """Which targets a search may return, and how it scores them. Lengths count generated tokens, `<eos>` included.

    Ids are those of the step's vocabulary. `<pad>` and `<bos>` are never generated, and `<eos>` only from `min_length`
    on and from a sentence's entry of `min_lengths` on; at its limit, its entry of `max_lengths`, it is forced. `prefix`
    holds the forced first tokens of each sentence, filled up with `<pad>`; a minimum wins over a lower limit.
    `stages` and `tail` (see stages.py) make the search faster, and change results only by rounding.
    """

    batch_size: int
    max_length: int
    bos_id: int
    eos_id: int
    pad_id: int
    length_penalty: str = "gnmt"
    alpha: float = 0.6
    min_length: int = 0
    max_lengths: Array | None = None  # [batch_size]
    prefix: Array | None = None  # [batch_size, less than max_length]
    stages: Sequence[Stage] = ()
    tail: int | None = None
    division: Division = UNDIVIDED
    min_lengths: Array | None = None  # [batch_size]

    def __post_init__(self) -> None:
        if not jax.export.is_symbolic_dim(self.batch_size):
            check_int("batch_size", self.batch_size)
        if not isinstance(self.bos_id, jax.core.Tracer):
            check_int("bos_id", self.bos_id)
        for name in ("max_length", "eos_id", "pad_id", "min_length"):
            check_int(name, getattr(self, name))
        if self.batch_size < 1 or self.max_length < 1:
            raise ValueError(f"batch_size is {self.batch_size} and max_length {self.max_length}: both must be >= 1")
        if not 0 <= self.min_length <= self.max_length:
            raise ValueError(
                f"min_length is {self.min_length}: must be between 0 and max_length, which is {self.max_length}"
            )
        if self.pad_id == self.eos_id:
            raise ValueError(f"pad_id and eos_id are both {self.pad_id}: a target could never end")
        for name in ("min_lengths", "max_lengths"):
            if (lengths := getattr(self, name)) is not None:
                check_shape(name, lengths, (self.batch_size,))
                _check_integers(name, lengths)
        if self.prefix is not None:
            width = jnp.size(self.prefix) // self.batch_size
            check_shape("prefix", self.prefix, (self.batch_size, width))
            if width >= self.max_length:
                raise ValueError(f"prefix has {width} positions: must be less than max_length, {self.max_length}")
            _check_integers("prefix", self.prefix)
            if is_known(self.prefix):
                is_end_BP = np.isin(np.asarray(self.prefix), (self.pad_id, self.eos_id))
                if np.any(is_end_BP[:, :-1] & (np.asarray(self.prefix) != self.pad_id)[:, 1:]):
                    raise ValueError("prefix has a token after <pad> or <eos>: <pad> fills up its end")
        if self.tail is not None:
            check_int("tail", self.tail)
            if not 1 <= self.tail <= self.batch_size:
                raise ValueError(f"tail is {self.tail} sentences: must be between 1 and batch_size, {self.batch_size}")
        self.check_ids()

    def check_ids(self, vocabulary: int | None = None) -> None:
        """Raises ValueError if an id whose value is known is negative or, given its size, not in the vocabulary."""
        ids = {"bos_id": self.bos_id, "eos_id": self.eos_id, "pad_id": self.pad_id, "prefix": self.prefix}
        for name, given in ids.items():
            if given is None or not is_known(given):
                continue
            known = np.asarray(given)
            is_wrong = (known < 0) | (known >= (math.inf if vocabulary is None else vocabulary))
            if np.any(is_wrong):
                found = f"{name} has the id {known[is_wrong][0]}" if known.ndim else f"{name} is {known}"
                limit = (
                    ">= 0" if vocabulary is None else f"between 0 and {vocabulary - 1} (step gives {vocabulary} logits)"
                )
                raise ValueError(f"{found}: must be {limit}")

    def limits_and_forced(self) -> tuple[Array, Array]:
        """limits_B, the maximum length of each sentence, and forced_BT, its token at each position, FREE or UNENDED."""
        size, max_length = self.batch_size, self.max_length
        limits_B = jnp.full(size, max_length) if self.max_lengths is None else jnp.asarray(self.max_lengths)
        shortest_B = jnp.full(size, max(self.min_length, 1))
        if self.min_lengths is not None:
            shortest_B = jnp.maximum(shortest_B, jnp.asarray(self.min_lengths))
        ends_too_soon_BT = jnp.arange(1, max_length + 1)[None, :] < shortest_B[:, None]
        forced_BT = jnp.where(ends_too_soon_BT, UNENDED, FREE).astype(jnp.int32)
        if self.prefix is not None:
            prefix_BP = jnp.asarray(self.prefix, jnp.int32)
            is_given_BP = prefix_BP != self.pad_id
            unforced_BP = forced_BT[:, : prefix_BP.shape[1]]
            forced_BT = forced_BT.at[:, : prefix_BP.shape[1]].set(jnp.where(is_given_BP, prefix_BP, unforced_BP))
            shortest_B = jnp.maximum(shortest_B, jnp.sum(is_given_BP, axis=1) + 1)
        limits_B = jnp.clip(limits_B, shortest_B, max_length)
        is_last_BT = jnp.arange(max_length)[None, :] == limits_B[:, None] - 1
        return limits_B, jnp.where(is_last_BT, self.eos_id, forced_BT)

    def allows(self, tokens: Array, forced: Array) -> Array:
        """Whether each token may be generated where none is forced: where `forced`, of its rank, is FREE or UNENDED."""
        is_special = (tokens == self.pad_id) | ((tokens == self.bos_id) & (tokens != self.eos_id))
        ends_too_soon = (tokens == self.eos_id) & (forced == UNENDED)
        return ~(is_special | ends_too_soon)

    def penalties_T(self) -> Array:
        """The length penalties of 1, 2, ... `max_length` generated tokens: entry n - 1 belongs to n tokens."""
        penalties = [length_penalty(self.length_penalty, self.alpha, n) for n in range(1, self.max_length + 1)]
        return jnp.asarray(penalties, jnp.float32)


def next_logits(step: Step, tokens_R: Array, cache: Cache, rules: SearchRules) -> tuple[Array, Cache]:
    """The logits of a step, in float32, and its cache."""
    try:
        found = step(tokens_R, cache)
    except TraceContextError as error:
        error.add_note(
            "step runs inside a loop, where a ToNNX module made with rngs cannot draw from them. Make it without: "
            "ToNNX(module).lazy_init(*inputs, rngs=nnx.Rngs(0)), see docs/nnx.md."
        )
        raise
    if not isinstance(found, tuple) or len(found) != 2:
        raise ValueError(f"step returned {_kind(found)}: must be a tuple, (logits, cache)")
    logits_RV, new_cache = found
    if not isinstance(logits_RV, (Array, np.ndarray)):
        raise ValueError(
            f"step returned ({_kind(logits_RV)}, {_kind(new_cache)}): must be (logits, cache), in this order"
        )
    if logits_RV.ndim != 2 or logits_RV.shape[0] != tokens_R.shape[0]:
        raise ValueError(
            f"step returned logits of the shape {logits_RV.shape}: must be [rows, vocabulary], with a row for each of "
            f"the {tokens_R.shape[0]} tokens that it was given (batch_size times beam_size)"
        )
    rules.check_ids(logits_RV.shape[1])
    before, after = (
        {jax.tree_util.keystr(path): jax.typeof(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (cache, new_cache)
    )
    for path in sorted(before.keys() ^ after.keys()):
        what = "lacks" if path in before else "has"
        raise ValueError(
            f"step returned a cache that {what} cache{path}: must have the arrays of the cache it was given"
        )
    for path, given in before.items():
        if given.shape != after[path].shape:
            raise ValueError(
                f"step returned cache{path} with the shape {after[path].shape}: must be {given.shape}, as it was given"
            )
        if given.dtype != after[path].dtype and not given.weak_type:  # a weak type becomes what it must be
            raise ValueError(
                f"step returned cache{path} as {after[path].dtype}: must be {given.dtype}, as it was given"
            )
    return logits_RV.astype(jnp.float32), new_cache


def _kind(value: Any) -> str:
    return "an array" if isinstance(value, (Array, np.ndarray)) else type(value).__name__


def length_penalty(name: str, alpha: float, n: int) -> float:
    """The penalty `name` for `n` generated tokens, `<eos>` included."""
    if name not in LENGTH_PENALTIES:
        raise ValueError(f"length_penalty is {name!r}: must be one of {', '.join(LENGTH_PENALTIES)}")
    if not math.isfinite(alpha):
        raise ValueError(f"alpha is {alpha}: must be a finite number")
    try:
        penalty = LENGTH_PENALTIES[name](n, alpha)
    except OverflowError:
        penalty = math.inf
    if not _SMALLEST <= penalty <= _LARGEST:
        raise ValueError(f"alpha is {alpha}: the {name} penalty of {n} tokens is {penalty}, beyond float32")
    return penalty


def check_int(name: str, value: Any) -> None:
    if jax.export.is_symbolic_dim(value):
        raise ValueError(f"{name} is {value}: must be an int, not symbolic")
    try:
        operator.index(value)
    except TypeError:
        found = "not known while tracing" if isinstance(value, jax.core.Tracer) else repr(value)
        raise ValueError(f"{name} is {found}: must be an int") from None


def is_known(value: Any) -> bool:
    """Whether its values are at hand: not those of a tracer, nor of an array on other hosts."""
    return not isinstance(value, jax.core.Tracer) and getattr(value, "is_fully_addressable", True)


def _check_integers(name: str, values: Any) -> None:
    kind = jnp.result_type(values if hasattr(values, "dtype") else np.asarray(values))
    if jnp.size(values) and not jnp.issubdtype(kind, jnp.integer):
        raise ValueError(f"{name} has values of the type {kind}: must be integers")


def check_shape(name: str, array: Array, shape: tuple[int, ...]) -> None:
    if jnp.shape(array) != shape:
        raise ValueError(f"{name} has shape {jnp.shape(array)}: must be {shape}")
