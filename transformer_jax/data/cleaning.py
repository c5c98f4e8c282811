"""Pairs left out of the training text: rejected by filters, counted by reason, or held out.

Filters are explicit, and off or mild by default.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from transformer_jax.config import CleaningConfig
from transformer_jax.data.corpora.corpus import Chunk, Pair
from transformer_jax.errors import BadInput
from transformer_jax.files.lines import listed

EXAMPLES_KEPT = 5
# For each reason the number of pairs left out, and where the first few of them are, as the manifest has it.
Rejected = dict[str, dict]


def require_readable(chunk: Chunk, advice: str = "") -> None:
    """Raises an error that names the unreadable pairs, if there are any."""
    if chunk.faults:
        raise BadInput(listed([chunk.faults[index] for index in sorted(chunk.faults)], advice))


def clean(chunk: Chunk, config: CleaningConfig, rejected: Rejected, seen: set[int]) -> list[Pair]:
    """The pairs to keep; the others are counted under the first filter that rejects them.

    `seen` are the keys of the pairs so far, if duplicates are dropped.
    """
    if config.unreadable != "drop":
        require_readable(chunk, "data.cleaning.unreadable=drop leaves such lines out")
    kept = []
    for index, pair in enumerate(chunk.pairs):
        found = ("unreadable", 0) if index in chunk.faults else _unsuitable(pair, config)
        if not found and config.drop_duplicates:
            (key,) = pair_keys([pair])
            found = ("duplicate", 0) if key in seen else None
            seen.add(key)
        if not found:
            kept.append(pair)
            continue
        reason, side = found
        facts = rejected.setdefault(reason, {"pairs": 0, "first": []})
        facts["pairs"] += 1
        if facts["pairs"] <= EXAMPLES_KEPT:
            facts["first"].append(chunk.faults.get(index) or chunk.place(index, side))
    return kept


def _unsuitable(pair: Pair, config: CleaningConfig) -> tuple[str, int] | None:
    """The first filter that rejects a pair, and the side at fault."""
    lengths = len(pair[0]), len(pair[1])
    for side in (0, 1):
        if config.drop_empty and not pair[side].strip():
            return "empty", side
    for side in (0, 1):
        if config.max_characters is not None and lengths[side] > config.max_characters:
            return "too long", side
    if config.max_ratio is not None and max(lengths) / max(min(lengths), 1) > config.max_ratio:
        return "length ratio", 0
    if config.drop_copies and pair[0] == pair[1]:
        return "copy of the source", 0
    return None


class HeldOut:
    """The pairs with the smallest keys: chosen by content, so that no copy of one can remain in the training text."""

    def __init__(self, seed: int, capacity: int, excluded: Collection[Pair] = ()):
        self._seed, self._capacity, self._excluded = seed, capacity, excluded
        self._pairs: dict[int, Pair] = {}
        self._largest = 1 << 64
        self.copies: Counter[Pair] = Counter()  # how often each of the pairs was offered

    def offer(self, pairs: Sequence[Pair]) -> None:
        if not self._capacity:
            return
        for key, pair in zip(pair_keys(pairs, self._seed), pairs, strict=True):
            if key <= self._largest and pair not in self._excluded:
                self._pairs[key] = pair
                self.copies[pair] += 1
        if len(self._pairs) > self._capacity:
            smallest = sorted(self._pairs)[: self._capacity]
            self._pairs = {key: self._pairs[key] for key in smallest}
            self._largest = smallest[-1]

    def take(self, count: int) -> list[Pair]:
        return [self._pairs.pop(key) for key in sorted(self._pairs)[:count]]


def pair_keys(pairs: Sequence[Pair], seed: int = 0) -> Iterator[int]:
    """A 64-bit hash of each pair, different for every seed."""
    seeded = hashlib.blake2b(digest_size=8, key=str(seed).encode())
    for source, target in pairs:
        digest = seeded.copy()
        digest.update(f"{source}\0{target}".encode())
        yield int.from_bytes(digest.digest(), "little")
