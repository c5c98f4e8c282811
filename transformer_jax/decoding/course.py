"""How a search runs from its first position to its last: the cache grows on the way, and sentences that are over leave.

A search advances all sentences of its batch at once, in programs of static shape. Two things would be paid for in vain:
slots of the cache that most targets never reach, and sentences that are over while others are not. So the cache grows
from stage to stage, and once few sentences go on, these alone are searched to the end. Neither changes any result.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

NOWHERE = 2**31 - 1  # the place of a sentence that is not to be put back
Cache = Any  # a pytree of arrays that only the model's step understands


class Search(Protocol):
    """What a search knows of its sentences: a pytree whose leaves have them as their first axis, or no axis at all."""

    @property
    def position(self) -> Array: ...


S = TypeVar("S", bound=Search)


class Stage(NamedTuple):
    """A stretch of the search that gets by with a smaller cache: after `positions` tokens `grow` makes it larger."""

    positions: int
    grow: Callable[[Cache], Cache]


class Tail(NamedTuple):
    """The end of a search, with so many `sentences` at once: it begins when no more than these go on.

    Should more go on after the last stage, they take turns. The batch lies on `shares` devices, one part after the
    other, and each device keeps its sentences. Every leaf of the cache has sentences as its first axis, or rows (those
    of a sentence side by side), or no axis.
    """

    sentences: int
    shares: int = 1


def run(
    search: S,
    cache: Cache,
    goes_on: Callable[[S], Array],
    advance: Callable[[tuple[S, Cache]], tuple[S, Cache]],
    stages: Sequence[Stage] = (),
    tail: Tail | None = None,
) -> S:
    """Advance until no sentence goes on.

    `goes_on(search)` says it of each; `advance` takes all that it needs to know of a sentence from the search.
    """
    if tail is not None:
        _check(tail, goes_on(search).size)
    if not stages and tail is None:
        return lax.while_loop(_more_than(0, goes_on), advance, (search, cache))[0]
    *earlier, last = stages or [Stage(sys.maxsize, lambda cache: cache)]
    for stage in earlier:
        search, cache = lax.while_loop(_more_than(0, goes_on, stage.positions), advance, (search, cache))
        cache = stage.grow(cache)
    few = tail.sentences if tail else 0
    search, cache = lax.while_loop(_more_than(few, goes_on, last.positions), advance, (search, cache))
    if tail is None:
        return lax.while_loop(_more_than(0, goes_on), advance, (search, last.grow(cache)))[0]

    def some_to_the_end(carry: tuple[S, Array]) -> tuple[S, Array]:
        ended, waiting_B = carry
        chosen_PC, is_waiting_PC = _first_of_each_share(waiting_B, tail)
        some, their_cache = _taken((search, cache), chosen_PC, waiting_B.size)

        def goes_on_in_turn(some: S) -> Array:
            return goes_on(some) & is_waiting_PC.reshape(-1)

        some, _ = lax.while_loop(_more_than(0, goes_on_in_turn), advance, (some, last.grow(their_cache)))
        # The others only fill the places: they are over, or were searched to their end before.
        theirs_PC = jnp.where(is_waiting_PC, chosen_PC, NOWHERE)
        return _put_back((ended, waiting_B), (some, jnp.zeros(tail.sentences, bool)), theirs_PC)

    return lax.while_loop(lambda carry: jnp.any(carry[1]), some_to_the_end, (search, goes_on(search)))[0]


def _check(tail: Tail, batch_size: int) -> None:
    if not 1 <= tail.sentences <= batch_size:
        raise ValueError(f"{tail}: its sentences must be 1 to {batch_size}, the batch's")
    if tail.shares < 1 or tail.sentences % tail.shares or batch_size % tail.shares:
        raise ValueError(f"{tail}: its shares must divide its sentences and the batch's, which are {batch_size}")


def _more_than(
    few: int, goes_on: Callable[[S], Array], positions: int = sys.maxsize
) -> Callable[[tuple[S, Cache]], Array]:
    """Whether more than `few` sentences go on, and fewer than `positions` tokens are decoded."""

    def is_running(carry: tuple[S, Cache]) -> Array:
        search, _ = carry
        is_wanted = jnp.sum(goes_on(search)) > few if few else jnp.any(goes_on(search))
        return is_wanted if positions == sys.maxsize else is_wanted & (search.position < positions)

    return is_running


def _first_of_each_share(waiting_B: Array, tail: Tail) -> tuple[Array, Array]:
    """Places within each share: of the first sentences that wait and, where too few do, of others; and which do."""
    waiting_PB = waiting_B.reshape(tail.shares, -1)
    chosen_PC = jnp.argsort(~waiting_PB, axis=1, stable=True)[:, : tail.sentences // tail.shares]
    return chosen_PC, jnp.take_along_axis(waiting_PB, chosen_PC, axis=1)


def _taken(tree: Any, chosen_PC: Array, batch_size: int) -> Any:
    """The chosen sentences of every leaf that has some, whether one row or several stand for a sentence."""
    shares = chosen_PC.shape[0]

    def taken(leaf: Array) -> Array:
        if leaf.ndim == 0:
            return leaf
        of_shares = leaf.reshape(shares, batch_size // shares, -1, *leaf.shape[1:])
        # Within each share, so that no device needs what another has.
        return jax.vmap(jnp.take, (0, 0, None))(of_shares, chosen_PC, 0).reshape(-1, *leaf.shape[1:])

    return jax.tree.map(taken, tree)


def _put_back(tree: Any, some: Any, chosen_PC: Array) -> Any:
    """`tree` with the chosen sentences as they are in `some`; what is of no one sentence stays as it was."""
    shares = chosen_PC.shape[0]

    def changed(old: Array, new: Array) -> Array:
        if old.ndim == 0:
            return old
        old_parts, new_parts = (leaf.reshape(shares, -1, *leaf.shape[1:]) for leaf in (old, new))
        share_P1 = jnp.arange(shares)[:, None]
        return old_parts.at[share_P1, chosen_PC].set(new_parts, mode="drop").reshape(old.shape)

    return jax.tree.map(changed, tree, some)
