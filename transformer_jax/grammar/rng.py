"""Random choices that are the same on every platform and Python version."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

_Item = TypeVar("_Item")


class Rng:
    """Choices drawn from `random.Random(text).random()`, a sequence that Python guarantees not to change."""

    def __init__(self, seed_text: str):
        self._uniform = random.Random(seed_text).random

    def chance(self, probability: float) -> bool:
        return self._uniform() < probability

    def below(self, limit: int) -> int:
        """An integer from 0 to limit - 1."""
        return int(self._uniform() * limit)

    def pick(self, items: Sequence[_Item]) -> _Item:
        return items[self.below(len(items))]

    def weighted(self, weights: Sequence[tuple[_Item, float]]) -> _Item:
        """One of the items, with probability proportional to its weight."""
        left = self._uniform() * sum(weight for _, weight in weights)
        for item, weight in weights:
            left -= weight
            if left < 0:
                return item
        return weights[-1][0]
