"""The first pass over a corpus: every line checked and counted, pairs held out, the others laid down in text shards."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.config import DataConfig
from transformer_jax.data.arrays import load_arrays
from transformer_jax.data.cleaning import Cleaner, Rejections, SeenKeys, contains
from transformer_jax.data.corpora.chunks import Corpus
from transformer_jax.errors import BadInput
from transformer_jax.files.atomic import publish_record, published
from transformer_jax.files.progress import Progress
from transformer_jax.files.record import read_record

SHARE_HELD_OUT = 10  # a split held out is at most one tenth of the corpus


class TextShards:
    """The cleaned text in numbered files, each small enough for memory, so that later work can stop and go on."""

    def __init__(self, directory: Path, pairs_per_shard: int):
        self._directory = directory
        self.pairs_per_shard = pairs_per_shard

    @property
    def facts(self) -> dict[str, Any] | None:
        """What the scan counted; None until it is complete."""
        path = self._directory / "scan.json"
        return read_record(path) if path.exists() else None

    def finish(self, facts: dict[str, Any], held_out: np.ndarray) -> None:
        with published(self._directory / "held_out.npz") as file:
            np.savez(file, allow_pickle=False, keys=held_out)
        publish_record(self._directory / "scan.json", facts)

    def write(self, split: str, number: int, sources: list[str], targets: list[str], keys: np.ndarray) -> None:
        # JSON, not lines: a sentence from a data set may contain a line feed. Among arrays, because they are checked.
        texts = np.frombuffer(json.dumps([sources, targets], ensure_ascii=False).encode(), np.uint8)
        with published(self._text_shard(split, number)) as file:
            np.savez(file, allow_pickle=False, texts=texts, keys=keys)

    def keys(self, split: str, number: int) -> np.ndarray:
        return load_arrays(self._text_shard(split, number), "keys")["keys"]

    def read(self, split: str, number: int) -> tuple[list[str], list[str]]:
        """The sources and targets of a shard, those of train without the pairs that were held out."""
        shard = load_arrays(self._text_shard(split, number))
        sources, targets = json.loads(shard["texts"].tobytes())
        if split == "train":
            held_out = load_arrays(self._directory / "held_out.npz")["keys"]
            drop = contains(held_out, shard["keys"])
            if drop.any():
                keep = np.flatnonzero(~drop).tolist()
                sources, targets = [sources[i] for i in keep], [targets[i] for i in keep]
        return sources, targets

    def _text_shard(self, split: str, number: int) -> Path:
        return self._directory / f"text-{split}-{number:05d}.npz"


def scan(corpus: Corpus, config: DataConfig, shards: TextShards) -> None:
    """Writes all splits of the corpus as shards of text, and holds out validation and test pairs that it lacks."""
    missing = {"valid": config.valid_size, "test": config.test_size}
    wanted = {split: size for split, size in missing.items() if split not in corpus.splits and size}
    held_out = HeldOut(sum(wanted.values()))
    facts: dict[str, Any] = {"splits": {}}
    for split in corpus.splits:
        facts["splits"][split] = _scan_split(corpus, split, config, shards, held_out if split == "train" else None)
    size_limit = facts["splits"]["train"]["pairs"] // SHARE_HELD_OUT
    for split, size in wanted.items():
        keys, sources, targets = held_out.take(min(size, size_limit))
        if sources:
            shards.write(split, 0, sources, targets, keys)
            facts["splits"][split] = {"pairs": len(sources), "shards": 1, "held_out_of": "train"}
    train, taken = facts["splits"]["train"], np.sort(held_out.taken)
    train["held_out"] = sum(int(contains(taken, shards.keys("train", n)).sum()) for n in range(train["shards"]))
    train["pairs"] -= train["held_out"]
    if not train["pairs"]:
        raise BadInput(
            f"data.valid_size and data.test_size: all {train['held_out']:,} training pairs are equal to ones held out; "
            "set the sizes to 0, or give files for validation and test"
        )
    facts["sources"] = corpus.sources()
    shards.finish(facts, taken)


class HeldOut:
    """The pairs with the smallest keys: a choice by content, so that no copy of one can stay in the training text."""

    def __init__(self, capacity: int):
        self._capacity = capacity
        self._pairs: dict[int, tuple[str, str]] = {}
        self._largest = np.iinfo(np.uint64).max
        self.taken = np.zeros(0, np.uint64)

    def offer(self, keys: np.ndarray, sources: Sequence[str], targets: Sequence[str]) -> None:
        if not self._capacity:
            return
        for index in np.flatnonzero(keys <= self._largest).tolist():
            self._pairs[int(keys[index])] = (sources[index], targets[index])
        if len(self._pairs) > self._capacity:
            smallest = sorted(self._pairs)[: self._capacity]
            self._pairs = {key: self._pairs[key] for key in smallest}
            self._largest = smallest[-1]

    def take(self, count: int) -> tuple[np.ndarray, list[str], list[str]]:
        """The next `count` pairs: their keys, sources and targets."""
        keys = sorted(self._pairs)[:count]
        pairs = [self._pairs.pop(key) for key in keys]
        self.taken = np.concatenate([self.taken, np.array(keys, np.uint64)])
        return np.array(keys, np.uint64), [source for source, _ in pairs], [target for _, target in pairs]


def _scan_split(
    corpus: Corpus, split: str, config: DataConfig, shards: TextShards, held_out: HeldOut | None
) -> dict[str, Any]:
    """One split into shards. Only the training split, which has `held_out`, is cleaned: the others stay whole."""
    cleaner, rejections, seen = Cleaner(config.cleaning), Rejections(), SeenKeys()
    counts: Counter[str] = Counter()
    oddities: Counter[str] = Counter()
    with Progress(f"reading {split}", "pairs") as progress:
        for number, chunk in enumerate(corpus.chunks(split, shards.pairs_per_shard)):
            sources, targets = chunk.sources, chunk.targets
            keys = np.zeros(0, np.uint64)
            if held_out is None:
                if chunk.faults:
                    raise BadInput(chunk.faults[min(chunk.faults)])
            else:
                kept = cleaner.keep(chunk, rejections)
                sources, targets = [sources[i] for i in kept], [targets[i] for i in kept]
                keys = pair_keys(sources, targets, config.seed)
                if config.cleaning.drop_duplicates:
                    new = seen.add(keys)
                    for index in np.flatnonzero(~new).tolist():
                        rejections.add("duplicate", chunk.place(kept[index]))
                    sources, targets = list(_chosen(sources, new)), list(_chosen(targets, new))
                    keys = keys[new]
                held_out.offer(keys, sources, targets)
            shards.write(split, number, sources, targets, keys)
            oddities += chunk.oddities
            counts.update(read=len(chunk.sources), pairs=len(sources), shards=1)
            progress.advance(len(chunk.sources))
    _require_pairs(split, corpus, counts, rejections)
    return {**counts, "rejected": rejections.to_json(), "oddities": dict(sorted(oddities.items()))}


def pair_keys(sources: Sequence[str], targets: Sequence[str], seed: int) -> np.ndarray:
    """64 bits of a hash of each pair, another for every seed."""
    seeded = hashlib.blake2b(digest_size=8, key=str(seed).encode())
    digests = []
    for source, target in zip(sources, targets, strict=True):
        digest = seeded.copy()
        digest.update(f"{source}\0{target}".encode())
        digests.append(digest.digest())
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def _chosen(items: Sequence[str], mask: np.ndarray) -> Iterator[str]:
    return (items[i] for i in np.flatnonzero(mask).tolist())


def _require_pairs(split: str, corpus: Corpus, counts: Counter[str], rejections: Rejections) -> None:
    if counts["pairs"]:
        return
    if counts["read"]:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in rejections.counts.most_common())
        raise BadInput(f"data.cleaning: leaves none of {counts['read']:,} {split} pairs ({reasons})")
    places = [source["file"] for source in corpus.sources() if source.get("split") == split and "file" in source]
    raise BadInput(f"{' and '.join(places) or split}: empty; there is no {split} pair")
