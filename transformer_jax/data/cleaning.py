"""The first pass over a corpus: reads and checks every pair, cleans the training split, holds out validation and test
pairs, and writes the text as shards.

Filters are explicit, counted by reason, and off or mild by default.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.config import CleaningConfig, DataConfig
from transformer_jax.data.corpora.corpus import Chunk, Corpus, Labels, Pair
from transformer_jax.data_config import TASKS
from transformer_jax.errors import BadInput
from transformer_jax.files.atomic import write_atomically, write_record
from transformer_jax.files.progress import counting
from transformer_jax.files.record import read_record

EXAMPLES_KEPT = 5
LARGEST_SHARE_HELD_OUT = 10  # a split that is held out is at most one tenth of the corpus

Rule = Callable[[str, str], bool]


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


def require_readable(chunk: Chunk) -> None:
    if chunk.faults:
        raise BadInput(chunk.faults[min(chunk.faults)])


def clean(chunk: Chunk, config: CleaningConfig, rejections: Rejections) -> list[int]:
    """The indices of the pairs to keep; the others are counted under the first filter that rejects them."""
    if config.unreadable != "drop":
        require_readable(chunk)
    rules = _rules(config)
    kept = []
    for index, (source, target) in enumerate(chunk.pairs):
        if index in chunk.faults:
            rejections.add("unreadable", chunk.faults[index])
        elif reason := next((reason for reason, rejects in rules.items() if rejects(source, target)), None):
            rejections.add(reason, chunk.place(index))
        else:
            kept.append(index)
    return kept


def _rules(config: CleaningConfig) -> dict[str, Rule]:
    """The filters that are on, each true of a pair to leave out."""
    rules: dict[str, Rule] = {}
    if config.drop_empty:
        rules["empty"] = lambda source, target: not source or not target or source.isspace() or target.isspace()
    if (limit := config.max_characters) is not None:
        rules["too long"] = lambda source, target: len(source) > limit or len(target) > limit
    if (most := config.max_ratio) is not None:
        rules["length ratio"] = lambda source, target: _ratio(len(source), len(target)) > most
    if config.drop_copies:
        rules["copy of the source"] = lambda source, target: source == target
    return rules


def _ratio(one: int, other: int) -> float:
    return max(one, other) / max(min(one, other), 1)


@dataclasses.dataclass
class SeenKeys:
    """A growing set of 64-bit keys at 8 bytes each; a Python set would take ten times that.

    The keys are in sorted runs, each at least twice as long as the next, so that a key is moved only a logarithmic
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


class TextShards:
    """The cleaned text in numbered files, each small enough for memory, so that later work can resume."""

    def __init__(self, directory: Path, pairs_per_shard: int):
        self._directory = directory
        self.pairs_per_shard = pairs_per_shard

    @property
    def facts(self) -> dict[str, Any] | None:
        """The counts of the first pass; None until it is complete."""
        path = self._directory / "scan.json"
        return read_record(path) if path.exists() else None

    def finish(self, facts: dict[str, Any], held_out: np.ndarray) -> None:
        save_arrays(self._directory / "held_out.npz", keys=held_out)
        write_record(self._directory / "scan.json", facts)

    def write(
        self, split: str, number: int, pairs: Sequence[Pair], keys: np.ndarray, labels: Sequence[Labels] = ()
    ) -> None:
        # JSON, not lines: a sentence from a data set may contain a line feed. In an .npz, because it has checksums.
        columns = [[pair[side] for pair in pairs] for side in (0, 1)] + ([labels] if labels else [])
        texts = json.dumps(columns, ensure_ascii=False).encode()
        save_arrays(self._path(split, number), texts=np.frombuffer(texts, np.uint8), keys=keys)

    def keys(self, split: str, number: int) -> np.ndarray:
        return load_arrays(self._path(split, number), "keys")["keys"]

    def read(self, split: str, number: int) -> tuple[list[str], list[str]]:
        """The sources and targets of a shard, those of train without the held-out pairs."""
        shard = load_arrays(self._path(split, number), "texts", "keys")
        sources, targets = json.loads(shard["texts"].tobytes())[:2]
        if split == "train":
            kept = ~contains(load_arrays(self._directory / "held_out.npz", "keys")["keys"], shard["keys"])
            sources, targets = (list(itertools.compress(side, kept)) for side in (sources, targets))
        return sources, targets

    def labels(self, split: str, number: int) -> list[Labels]:
        """The labels of a shard's pairs."""
        shard = load_arrays(self._path(split, number), "texts")
        sources, _, *labels = json.loads(shard["texts"].tobytes())
        return labels[0] if labels else [{} for _ in sources]

    def _path(self, split: str, number: int) -> Path:
        return self._directory / f"text-{split}-{number:05d}.npz"


def save_arrays(path: Path, **arrays: np.ndarray) -> None:
    with write_atomically(path) as file:
        np.savez(file, allow_pickle=False, **arrays)


def load_arrays(path: Path, *names: str) -> dict[str, np.ndarray]:
    """These arrays of an .npz file. It has a checksum of each, so a flipped bit is found here."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in names}
    except (ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        raise BadInput(f"{path}: is damaged; start again to make it again") from None


class HeldOut:
    """The pairs with the smallest keys: chosen by content, so that no copy of one can remain in the training text."""

    def __init__(self, capacity: int, excluded: Collection[Pair] = ()):
        self._capacity = capacity
        self._excluded = excluded
        self._pairs: dict[int, Pair] = {}
        self._largest = np.iinfo(np.uint64).max

    def offer(self, keys: np.ndarray, pairs: Sequence[Pair]) -> None:
        if not self._capacity:
            return
        for index in np.flatnonzero(keys <= self._largest).tolist():
            if pairs[index] not in self._excluded:
                self._pairs[int(keys[index])] = pairs[index]
        if len(self._pairs) > self._capacity:
            smallest = sorted(self._pairs)[: self._capacity]
            self._pairs = {key: self._pairs[key] for key in smallest}
            self._largest = smallest[-1]

    def take(self, count: int) -> tuple[list[Pair], np.ndarray]:
        """The next `count` pairs, and their keys."""
        chosen = sorted(self._pairs)[:count]
        return [self._pairs.pop(key) for key in chosen], np.array(chosen, np.uint64)


def read_corpus(corpus: Corpus, config: DataConfig, shards: TextShards) -> None:
    """Writes all splits of the corpus as shards of text, and holds out the validation and test pairs that it lacks."""
    sizes = {"valid": config.valid_size, "test": config.test_size}
    wanted = {split: size for split, size in sizes.items() if split not in corpus.splits and size}
    if config.split_seed is not None and "valid" in corpus.splits and config.corpus not in TASKS:
        raise BadInput(
            f"data.split_seed = {config.split_seed} chooses validation pairs among the training text, but "
            f"{config.corpus} has validation pairs of its own"
        )
    held_out, redrawn = (HeldOut(sum(wanted.values()), corpus.never_held_out) for _ in range(2))
    splits = {
        split: _read_split(corpus, split, config, shards, (held_out, redrawn) if split == "train" else None)
        for split in corpus.splits
    }
    train = splits["train"]
    largest = train["pairs"] // LARGEST_SHARE_HELD_OUT
    chosen = {split: held_out.take(min(size, largest)) for split, size in wanted.items()}
    if config.split_seed is not None and "valid" in wanted:  # other validation pairs, and the same for testing
        of_test = set(chosen["test"][0] if "test" in chosen else ())
        others = [pair for pair in redrawn.take(sum(wanted.values()))[0] if pair not in of_test]
        others = others[: len(chosen["valid"][0])]
        chosen["valid"] = others, pair_keys(others, config.seed)
    for split, (pairs, keys) in chosen.items():
        if pairs:
            shards.write(split, 0, pairs, keys)
            splits[split] = {"pairs": len(pairs), "shards": 1, "held_out_of": "train"}
    taken = np.sort(np.concatenate([np.zeros(0, np.uint64), *(keys for _, keys in chosen.values())]))
    train["held_out"] = sum(
        int(contains(taken, shards.keys("train", number)).sum()) for number in range(train["shards"])
    )
    train["pairs"] -= train["held_out"]
    if not train["pairs"]:
        raise BadInput(
            f"data.valid_size and data.test_size: all {train['held_out']:,} training pairs are equal to ones held out; "
            "set the sizes to 0, or give files for validation and test"
        )
    shards.finish({"splits": splits, "sources": corpus.sources()}, taken)


def _read_split(
    corpus: Corpus, split: str, config: DataConfig, shards: TextShards, held_out: tuple[HeldOut, HeldOut] | None
) -> dict[str, Any]:
    """Writes one split as shards. Only the training split is cleaned, the others stay whole.

    Its pairs are offered to `held_out`, ordered by data.seed and by data.split_seed.
    """
    rejections, seen = Rejections(), SeenKeys()
    counts: Counter[str] = Counter()
    oddities: Counter[str] = Counter()
    labelled = False
    with counting(f"reading {split}", "pairs") as advance:
        for number, chunk in enumerate(corpus.chunks(split, shards.pairs_per_shard)):
            pairs, keys = chunk.pairs, np.zeros(0, np.uint64)
            if held_out is None:
                require_readable(chunk)
            else:
                kept = clean(chunk, config.cleaning, rejections)
                pairs = [pairs[i] for i in kept]
                keys = pair_keys(pairs, config.seed)
                if config.cleaning.drop_duplicates:
                    new = seen.add(keys)
                    for index in np.flatnonzero(~new).tolist():
                        rejections.add("duplicate", chunk.place(kept[index]))
                    pairs, keys = list(itertools.compress(pairs, new)), keys[new]
                held_out[0].offer(keys, pairs)
                if config.split_seed is not None:
                    held_out[1].offer(pair_keys(pairs, config.split_seed), pairs)
            shards.write(split, number, pairs, keys, chunk.labels)
            labelled |= bool(chunk.labels)
            oddities += chunk.oddities
            counts.update(read=len(chunk.pairs), pairs=len(pairs), shards=1)
            advance(len(chunk.pairs))
    if not counts["pairs"]:
        raise _no_pairs(split, corpus, counts["read"], rejections)
    facts = {**counts, "rejected": rejections.to_json(), "oddities": dict(sorted(oddities.items()))}
    return facts | ({"labelled": True} if labelled else {})


def _no_pairs(split: str, corpus: Corpus, read: int, rejections: Rejections) -> BadInput:
    if read:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in rejections.counts.most_common())
        return BadInput(f"data.cleaning: leaves none of {read:,} {split} pairs ({reasons})")
    places = [source["file"] for source in corpus.sources() if source.get("split") == split and "file" in source]
    return BadInput(f"{' and '.join(places) or split}: empty; there is no {split} pair")


def pair_keys(pairs: Sequence[Pair], seed: int) -> np.ndarray:
    """A 64-bit hash of each pair, different for every seed."""
    seeded = hashlib.blake2b(digest_size=8, key=str(seed).encode())
    digests = []
    for source, target in pairs:
        digest = seeded.copy()
        digest.update(f"{source}\0{target}".encode())
        digests.append(digest.digest())
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
