"""What is left out of the training text: unreadable, unsuitable and repeated pairs, and those that are held out.

Filters are explicit, counted by reason, and off or mild by default.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import numpy as np

from transformer_jax.config import CleaningConfig
from transformer_jax.data.corpora.corpus import Chunk, Pair
from transformer_jax.errors import BadInput
from transformer_jax.files.lines import listed

EXAMPLES_KEPT = 5


class Rejections:
    """The number of pairs left out for each reason, and where the first few of them are."""

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


def require_readable(chunk: Chunk, advice: str = "") -> None:
    """Raises an error that names the unreadable pairs, if there are any."""
    if chunk.faults:
        raise BadInput(listed([chunk.faults[index] for index in sorted(chunk.faults)], advice))


def clean(chunk: Chunk, config: CleaningConfig, rejections: Rejections) -> list[int]:
    """The indices of the pairs to keep; the others are counted under the first filter that rejects them."""
    if config.unreadable != "drop":
        require_readable(chunk, "data.cleaning.unreadable=drop leaves such lines out")
    of_texts, of_pairs = _rules(config)
    kept = []
    for index, pair in enumerate(chunk.pairs):
        if index in chunk.faults:
            rejections.add("unreadable", chunk.faults[index])
            continue
        found = next(((why, side) for why, fails in of_texts.items() for side in (0, 1) if fails(pair[side])), None)
        found = found or next(((why, 0) for why, fails in of_pairs.items() if fails(*pair)), None)
        if found:
            rejections.add(found[0], chunk.place(index, side=found[1]))
        else:
            kept.append(index)
    return kept


def _rules(config: CleaningConfig) -> tuple[dict[str, Callable[[str], bool]], dict[str, Callable[[str, str], bool]]]:
    """The filters that are on, for either text and for the pair: each is true of what is left out."""
    of_texts: dict[str, Callable[[str], bool]] = {}
    of_pairs: dict[str, Callable[[str, str], bool]] = {}
    if config.drop_empty:
        of_texts["empty"] = lambda text: not text or text.isspace()
    if (limit := config.max_characters) is not None:
        of_texts["too long"] = lambda text: len(text) > limit
    if (most := config.max_ratio) is not None:
        of_pairs["length ratio"] = lambda source, target: _ratio(len(source), len(target)) > most
    if config.drop_copies:
        of_pairs["copy of the source"] = lambda source, target: source == target
    return of_texts, of_pairs


def _ratio(one: int, other: int) -> float:
    return max(one, other) / max(min(one, other), 1)


class HeldOut:
    """The pairs with the smallest keys: chosen by content, so that no copy of one can remain in the training text."""

    def __init__(self, capacity: int, excluded: Collection[Pair] = ()):
        self._capacity = capacity
        self._excluded = excluded
        self._pairs: dict[int, Pair] = {}
        self._largest = np.iinfo(np.uint64).max
        self.copies: Counter[Pair] = Counter()  # how often each of the pairs was offered

    def offer(self, keys: np.ndarray, pairs: Sequence[Pair]) -> None:
        if not self._capacity:
            return
        for index in np.flatnonzero(keys <= self._largest).tolist():
            if pairs[index] not in self._excluded:
                self._pairs[int(keys[index])] = pairs[index]
                self.copies[pairs[index]] += 1
        if len(self._pairs) > self._capacity:
            smallest = sorted(self._pairs)[: self._capacity]
            self._pairs = {key: self._pairs[key] for key in smallest}
            self._largest = smallest[-1]

    def take(self, count: int) -> list[Pair]:
        """The next `count` pairs."""
        return [self._pairs.pop(key) for key in sorted(self._pairs)[:count]]


def pair_keys(pairs: Sequence[Pair], seed: int) -> np.ndarray:
    """A 64-bit hash of each pair, different for every seed."""
    seeded = hashlib.blake2b(digest_size=8, key=str(seed).encode())
    digests = []
    for source, target in pairs:
        digest = seeded.copy()
        digest.update(f"{source}\0{target}".encode())
        digests.append(digest.digest())
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
