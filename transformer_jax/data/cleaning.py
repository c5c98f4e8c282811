"""Filters on training pairs: explicit, counted by reason, and off or mild unless asked for."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable

import numpy as np

from transformer_jax.config import CleaningConfig
from transformer_jax.data.corpora.chunks import Chunk
from transformer_jax.errors import BadInput

EXAMPLES_KEPT = 5

Rule = Callable[[str, str], bool]


class Rejections:
    """How many pairs were left out, for which reason, and where the first few of them stand."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    def add(self, reason: str, place: str) -> None:
        self.counts[reason] += 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < EXAMPLES_KEPT:
            examples.append(place)

    def to_json(self) -> dict[str, dict]:
        return {
            reason: {"pairs": self.counts[reason], "first": self.examples[reason]} for reason in sorted(self.counts)
        }


class Cleaner:
    """Says which pairs of a chunk stay."""

    def __init__(self, config: CleaningConfig):
        self._drop_unreadable = config.unreadable == "drop"
        self._rules = _rules(config)

    def keep(self, chunk: Chunk, rejections: Rejections) -> list[int]:
        """The indices of the pairs that stay; of the others the first broken rule is counted."""
        if chunk.faults and not self._drop_unreadable:
            raise BadInput(chunk.faults[min(chunk.faults)])
        kept = []
        for index, (source, target) in enumerate(zip(chunk.sources, chunk.targets, strict=True)):
            if index in chunk.faults:
                rejections.add("unreadable", chunk.faults[index])
                continue
            for reason, breaks in self._rules:
                if breaks(source, target):
                    rejections.add(reason, chunk.place(index))
                    break
            else:
                kept.append(index)
        return kept


def _rules(config: CleaningConfig) -> list[tuple[str, Rule]]:
    """The filters that are on, each true of a pair that has to go."""
    rules: list[tuple[str, Rule]] = []
    if config.drop_empty:
        rules.append(("empty", lambda source, target: not source or not target or source.isspace() or target.isspace()))
    if (limit := config.max_characters) is not None:
        rules.append(("too long", lambda source, target: len(source) > limit or len(target) > limit))
    if (ratio := config.max_ratio) is not None:
        rules.append(("length ratio", lambda source, target: _ratio(source, target) > ratio))
    if config.drop_copies:
        rules.append(("copy of the source", lambda source, target: source == target))
    return rules


def _ratio(source: str, target: str) -> float:
    shorter, longer = sorted((len(source), len(target)))
    return longer / max(shorter, 1)


@dataclasses.dataclass
class SeenKeys:
    """A growing set of 64-bit keys at 8 bytes each; a Python set would take ten times that.

    The keys lie in sorted runs, each at least twice as long as the next, so that a key is moved only a logarithmic
    number of times.
    """

    runs: list[np.ndarray] = dataclasses.field(default_factory=list)

    def add(self, keys: np.ndarray) -> np.ndarray:
        """Adds the keys and returns a bool for each: whether it is new, also among those before it in `keys`."""
        new = np.zeros(len(keys), bool)
        unique, first = np.unique(keys, return_index=True)
        new[first] = True
        for run in self.runs:
            new &= ~contains(run, keys)
        self.runs.append(unique[new[first]])
        while len(self.runs) > 1 and len(self.runs[-2]) < 2 * len(self.runs[-1]):
            merged = np.concatenate([self.runs.pop(), self.runs.pop()])
            merged.sort()
            self.runs.append(merged)
        return new


def contains(ordered: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Which of the keys are in the sorted array."""
    if not len(ordered):
        return np.zeros(len(keys), bool)
    positions = np.searchsorted(ordered, keys)
    return ordered[np.minimum(positions, len(ordered) - 1)] == keys
