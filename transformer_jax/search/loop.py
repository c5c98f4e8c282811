"""How a search saves time: the cache grows from stage to stage, and finished sentences leave the batch.

A search advances all sentences of a batch at once, in programs of static shape, and would pay for cache slots that
most targets never reach, and for sentences that are finished while others are not. So the cache grows on the way, and
the last few unfinished sentences (the tail) are searched to their end alone. Results change only by rounding.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

Cache = Any  # a pytree of arrays that only the model's step understands
# The state of a search: a pytree with the field `position`, its leaves with sentences as their first axis or no axis.
S = TypeVar("S", bound=Any)


class Stage(NamedTuple):
    """A part of the search that needs only a smaller cache: after `positions` tokens `grow` makes it larger."""

    positions: int
    grow: Callable[[Cache], Cache]


def run_stages(
    search: S,
    cache: Cache,
    is_live: Callable[[S], Array],
    advance: Callable[[tuple[S, Cache]], tuple[S, Cache]],
    stages: Sequence[Stage] = (),
    tail: int | None = None,
) -> S:
    """Advances until no sentence is live. `is_live(search)` has an entry for each sentence.

    The tail begins in the last stage, as soon as at most `tail` sentences are live. If more are live at that stage's
    end, they take turns. Every leaf of the cache then has sentences or rows (side by side for a sentence) as its
    first axis, or no axis.
    """

    def advanced(search: S, cache: Cache, end: int | None = None, more_than: int = 0, is_live: Any = is_live) -> Any:
        """Advances while more than `more_than` sentences are live and, with an end, fewer tokens are decoded."""

        def goes_on(carry: tuple[S, Cache]) -> Array:
            enough = jnp.sum(is_live(carry[0])) > more_than
            return enough if end is None else enough & (carry[0].position < end)

        return lax.while_loop(goes_on, advance, (search, cache))

    if not stages:
        end, grow = None, lambda cache: cache
    else:
        for stage in stages[:-1]:
            search, cache = advanced(search, cache, stage.positions)
            cache = stage.grow(cache)
        end, grow = stages[-1]
    search, cache = advanced(search, cache, end, tail or 0)
    if tail is None:
        return search if end is None else advanced(search, grow(cache))[0]

    batch_size = is_live(search).size

    def rows(leaf: Array, chosen_C: Array) -> Array:
        """The chosen sentences of a leaf that has an axis, whether a sentence has one row or several."""
        if leaf.ndim == 0:
            return leaf
        return leaf.reshape(batch_size, -1, *leaf.shape[1:])[chosen_C].reshape(-1, *leaf.shape[1:])

    def finish_some(carry: tuple[S, Array]) -> tuple[S, Array]:
        search_all, waiting_B = carry
        chosen_C = jnp.argsort(~waiting_B, stable=True)[:tail]  # those that wait, filled up with any others
        is_waiting_C = waiting_B[chosen_C]
        some, some_cache = jax.tree.map(lambda leaf: rows(leaf, chosen_C), (search, cache))
        some, _ = advanced(some, grow(some_cache), is_live=lambda some: is_live(some) & is_waiting_C)
        target_C = jnp.where(is_waiting_C, chosen_C, batch_size)  # the others are finished: nothing to write back
        search_all = jax.tree.map(
            lambda old, new: old.at[target_C].set(new, mode="drop") if old.ndim else old, search_all, some
        )
        return search_all, waiting_B.at[chosen_C].set(False)

    return lax.while_loop(lambda carry: jnp.any(carry[1]), finish_some, (search, is_live(search)))[0]
