"""How a search runs from its first position to its last: the cache grows on the way, and sentences that are over leave.

A search advances all sentences of its batch at once, in programs of static shape. Two things would be paid for in vain:
slots of the cache that most targets never reach, and sentences that are over while others are not. So the cache grows
from stage to stage, and once few sentences go on, these alone are searched to the end. Neither changes any result, but
for rounding.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

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

    But not before the last stage; should more go on after that, they take turns. Every leaf of the cache has sentences
    as its first axis, or rows (those of a sentence side by side), or no axis.
    """

    sentences: int


def run_stages(
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
    batch_size = goes_on(search).size
    if tail is not None and not 1 <= tail.sentences <= batch_size:
        raise ValueError(f"tail has {tail.sentences} sentences: must be between 1 and the batch's {batch_size}")
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
        chosen_C = jnp.argsort(~waiting_B, stable=True)[: tail.sentences]  # those that wait, or else any others
        is_waiting_C = waiting_B[chosen_C]
        some, their_cache = _taken((search, cache), chosen_C, batch_size)

        def goes_on_in_turn(some: S) -> Array:
            return goes_on(some) & is_waiting_C

        some, _ = lax.while_loop(_more_than(0, goes_on_in_turn), advance, (some, last.grow(their_cache)))
        # The others only fill the places: they are over, or were searched to their end before.
        theirs_C = jnp.where(is_waiting_C, chosen_C, batch_size)
        return _put_back(ended, some, theirs_C), waiting_B.at[chosen_C].set(False)

    return lax.while_loop(lambda carry: jnp.any(carry[1]), some_to_the_end, (search, goes_on(search)))[0]


def _more_than(
    at_most: int, goes_on: Callable[[S], Array], positions: int = sys.maxsize
) -> Callable[[tuple[S, Cache]], Array]:
    """Whether more sentences go on than that, and fewer than `positions` tokens are decoded."""

    def is_running(carry: tuple[S, Cache]) -> Array:
        search, _ = carry
        is_wanted = jnp.sum(goes_on(search)) > at_most
        return is_wanted if positions == sys.maxsize else is_wanted & (search.position < positions)

    return is_running


def _taken(tree: Any, chosen_C: Array, batch_size: int) -> Any:
    """The chosen sentences of every leaf that has some, whether one row or several stand for a sentence."""

    def taken(leaf: Array) -> Array:
        if leaf.ndim == 0:
            return leaf
        if leaf.shape[0] % batch_size:
            raise ValueError(
                f"tail: an array of the cache has shape {leaf.shape}: must have {batch_size} sentences first"
            )
        return leaf.reshape(batch_size, -1, *leaf.shape[1:])[chosen_C].reshape(-1, *leaf.shape[1:])

    return jax.tree.map(taken, tree)


def _put_back(search: S, some: S, chosen_C: Array) -> S:
    """`search` with the chosen sentences as they are in `some`; what is of no one sentence stays as it was."""
    return jax.tree.map(lambda old, new: old.at[chosen_C].set(new, mode="drop") if old.ndim else old, search, some)
