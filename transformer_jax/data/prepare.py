"""Text to token arrays on disk, once: resumable after a kill, safe when started twice, re-used while nothing changed.

Everything is made in a sibling directory `NAME.partial` and renamed to its name when it is complete. Inside, work is
cut into files that appear whole or not at all, and what is there is not made again. Since no step depends on chance,
the clock or the number of cores, a run that was killed and resumed ends with the same bytes as one that was not.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.arrays import SIDES, PairsWriter, flatten, load_arrays, token_dtype
from transformer_jax.data.corpora.select import open_corpus
from transformer_jax.data.first_pass import TextShards, scan
from transformer_jax.data.prepared import FORMAT, MANIFEST, Prepared, read_manifest, texts_path
from transformer_jax.data.recipe import differences, recipe_of
from transformer_jax.data.tokenizer import Tokenizer, load_tokenizer, train_sentencepiece, train_symbols
from transformer_jax.errors import BadInput
from transformer_jax.files import atomic, paths
from transformer_jax.files.progress import Progress, tell
from transformer_jax.files.record import read_record
from transformer_jax.version import __version__

PAIRS_PER_SHARD = 20_000
SCRATCH = "scratch"
PLAN = "plan.json"  # in there: what the work is for


def prepare(config: ExperimentConfig, directory: str | Path, *, pairs_per_shard: int = PAIRS_PER_SHARD) -> Prepared:
    """The corpus of this experiment as token arrays in `directory`, made now or found there.

    `pairs_per_shard` bounds the memory and the work that a kill can lose; the result does not depend on it.
    """
    directory = Path(paths.expanded(directory)).absolute()
    with atomic.explained(directory):
        if (directory / MANIFEST).exists():
            return _reused(config, directory)
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise BadInput(f"{directory}: exists and is no prepared corpus; an empty or new directory would be right")
        corpus = open_corpus(config.data)
        with atomic.made(directory.parent), atomic.locked(directory.with_name(directory.name + ".lock")):
            if (directory / MANIFEST).exists():  # made by another process while this one waited for the lock
                return _reused(config, directory)
            recipe = recipe_of(config, corpus.identity())
            partial = directory.with_name(directory.name + ".partial")
            _refuse_foreign(partial)
            try:
                work = _Work(config, recipe, partial, pairs_per_shard)
                if (partial / MANIFEST).exists():  # killed before it had its name; who knows what came since
                    Prepared.open(partial).verify()
                else:
                    if work.shards.facts is None:
                        scan(corpus, config.data, work.shards)
                    work.complete()
                work.publish(directory)
            except BadInput:
                _discard(partial)
                raise
            except OSError as error:
                if error.errno in (*atomic.NO_ROOM, *atomic.TAKEN):
                    _discard(partial)
                raise
    return Prepared.open(directory)


def _reused(config: ExperimentConfig, directory: Path) -> Prepared:
    """What was prepared before, if it is what this config asks for; the text itself need no longer be there."""
    manifest = read_manifest(directory)
    stored = manifest["recipe"]
    named = {path for name in ("", "valid_", "test_") for side in SIDES for path in getattr(config.data, name + side)}
    recorded = {source["file"] for source in manifest["sources"] if "file" in source}
    if named == recorded and not all(Path(path).exists() for path in named):
        tell(f"{directory}: used without comparing it with the text, which is no longer there")
        identity = stored["corpus"]
    else:
        identity = open_corpus(config.data).identity()
    changes = differences(stored, recipe_of(config, identity))
    if changes:
        raise BadInput(
            f"{directory}: was prepared from something else: {'; '.join(changes)}; "
            "choose another --workdir or data.directory, or remove that one"
        )
    return Prepared.open(directory)


class _Work:
    """The making of one prepared directory, in steps of which each is skipped where its files are already there."""

    def __init__(self, config: ExperimentConfig, recipe: dict[str, Any], partial: Path, pairs_per_shard: int):
        self._config = config
        self._recipe = recipe
        self._partial = partial
        self._plan = {"recipe": recipe, "pairs_per_shard": pairs_per_shard}
        self._scratch = partial / SCRATCH
        if self._started_before():
            tell(f"{partial}: going on with what an earlier start left there")
        else:
            _discard(partial)
            self._scratch.mkdir(parents=True)
            atomic.publish_record(self._scratch / PLAN, self._plan)
        self.shards = TextShards(self._scratch, pairs_per_shard)

    def _started_before(self) -> bool:
        """Whether the partial directory was begun for the same recipe."""
        if (self._partial / MANIFEST).exists():
            return read_manifest(self._partial)["recipe"] == self._recipe
        plan = self._scratch / PLAN
        with contextlib.suppress(BadInput):
            return read_record(plan) == self._plan
        return False

    def complete(self) -> None:
        """From text shards to everything that will be in the directory, the manifest last."""
        facts = self.shards.facts
        assert facts is not None, "complete() comes after scan()"
        tokenizers = self._tokenizers(facts)
        by_side = {"source": tokenizers["source"], "target": tokenizers.get("target", tokenizers["source"])}
        dtypes = {side: token_dtype(by_side[side].vocab_size) for side in SIDES}
        for split, counted in facts["splits"].items():
            self._encode(split, counted, by_side)
            shard_count = counted.pop("shards")
            counted["arrays"] = self._assemble(split, shard_count, dtypes)
            if split != "train":
                counted["texts_sha256"] = self._keep_texts(split, shard_count)
        atomic.publish_record(self._partial / MANIFEST, self._manifest(facts, tokenizers))

    def publish(self, directory: Path) -> None:
        atomic.remove(self._scratch)
        if directory.exists():
            directory.rmdir()
        self._partial.rename(directory)
        atomic.sync_directory(directory.parent)

    def _manifest(self, facts: dict[str, Any], tokenizers: dict[str, Tokenizer]) -> dict[str, Any]:
        versions = {name: metadata.version(name) for name in ("numpy", "sentencepiece")}
        return {
            "format": FORMAT,
            "recipe": self._recipe,
            "sources": facts["sources"],
            "splits": facts["splits"],
            "tokenizers": {
                name: {
                    "file": self._tokenizer_path(name).name,
                    "vocab_size": tokenizer.vocab_size,
                    "fingerprint": tokenizer.fingerprint,
                    # Two ways to cut texts into the tokens of one vocabulary, as Marian has them.
                    "same_tokens": _same_tokens(tokenizer, tokenizers["source"]),
                }
                for name, tokenizer in tokenizers.items()
            },
            "versions": {"transformer_jax": __version__, **versions},
        }

    def _tokenizer_path(self, side: str) -> Path:
        given = self._given_tokenizer(side)
        of_symbols = given.endswith(".json") if given else self._config.data.tokenizer in ("words", "characters")
        name = "tokenizer" if side == "source" else "target_tokenizer"
        return self._partial / f"{name}.{'json' if of_symbols else 'model'}"

    def _given_tokenizer(self, side: str) -> str | None:
        data = self._config.data
        return data.tokenizer_file if side == "source" else data.target_tokenizer_file

    def _tokenizers(self, facts: dict[str, Any]) -> dict[str, Tokenizer]:
        """One tokenizer under the name source, or two."""
        data, model = self._config.data, self._config.model
        shared = model.target_vocab_size is None and data.target_tokenizer_file is None
        tokenizers = {}
        for side in ("source",) if shared else SIDES:
            path, note = self._tokenizer_path(side), self._scratch / f"{side}_tokenizer.json"
            # The note comes last: without one that fits, what is there is not what was made.
            if not (path.exists() and note.exists() and read_record(note) == {"sha256": _sha256(path)}):
                made = self._make_tokenizer(side, SIDES if shared else (side,), facts["splits"]["train"])
                with atomic.published(path) as file:
                    file.write(made.serialized())
                atomic.publish_record(note, {"sha256": _sha256(path)})
            tokenizers[side] = load_tokenizer(path)
        return tokenizers

    def _make_tokenizer(self, side: str, learn_from: tuple[str, ...], train: dict[str, Any]) -> Tokenizer:
        data, model = self._config.data, self._config.model
        given = self._given_tokenizer(side)
        if given is not None:
            return load_tokenizer(given)
        texts = functools.partial(self._train_texts, train["shards"], learn_from)
        kind = data.tokenizer
        if kind == "words" or kind == "characters":
            return train_symbols(texts(), kind)
        option = "vocab_size" if side == "source" else "target_vocab_size"
        size = model.vocab_size if side == "source" else cast(int, model.target_vocab_size)
        tell(f"training a {kind} tokenizer of {size:,} tokens")
        return train_sentencepiece(
            lambda: evenly_spread(texts(), train["pairs"] * len(learn_from), data.tokenizer_sentences),
            kind,
            size,
            normalization=data.normalization,
            byte_fallback=data.byte_fallback,
            character_coverage=data.character_coverage,
            size_option=f"model.{option}",
        )

    def _train_texts(self, shard_count: int, sides: tuple[str, ...]) -> Iterator[str]:
        for number in range(shard_count):
            texts = dict(zip(SIDES, self.shards.read("train", number), strict=True))
            for side in sides:
                yield from texts[side]

    def _encode(self, split: str, counted: dict[str, Any], tokenizers: dict[str, Tokenizer]) -> None:
        """Each shard of text to a shard of tokens."""
        shards = range(counted["shards"])
        with (
            Progress(f"tokenising {split}", "pairs", counted["pairs"]) as progress,
            # Two at a time: while SentencePiece has all cores for one shard, the other is read or written.
            ThreadPoolExecutor(max_workers=2) as pool,
        ):
            for pairs in pool.map(lambda number: self._encode_shard(split, number, tokenizers), shards):
                progress.advance(pairs)

    def _encode_shard(self, split: str, number: int, tokenizers: dict[str, Tokenizer]) -> int:
        """Returns the number of pairs in the shard."""
        path = self._token_shard(split, number)
        if path.exists():
            return len(load_arrays(path)["source_lengths"])
        columns = {}
        for side, texts in zip(SIDES, self.shards.read(split, number), strict=True):
            ids = tokenizers[side].encode_batch(texts)
            columns[f"{side}_tokens"], columns[f"{side}_lengths"] = flatten(
                ids, token_dtype(tokenizers[side].vocab_size)
            )
        with atomic.published(path) as file:
            np.savez(file, allow_pickle=False, **columns)
        return len(columns["source_lengths"])

    def _assemble(self, split: str, shard_count: int, dtypes: dict[str, type[np.generic]]) -> dict[str, Any]:
        """The shards of tokens one behind the other."""
        writer = PairsWriter(self._partial, split, dtypes)
        for number in range(shard_count):
            shard = load_arrays(self._token_shard(split, number))
            for side in SIDES:
                writer.append(side, shard[f"{side}_tokens"], shard[f"{side}_lengths"])
        return writer.close()

    def _keep_texts(self, split: str, shard_count: int) -> str:
        """Writes the texts of what is to be evaluated beside the arrays; returns their digest."""
        digest = hashlib.sha256()
        with atomic.published(texts_path(self._partial, split)) as file:
            for number in range(shard_count):
                for source, target in zip(*self.shards.read(split, number), strict=True):
                    record = json.dumps({"source": source, "target": target}, ensure_ascii=False)
                    line = record.encode() + b"\n"
                    digest.update(line)
                    file.write(line)
        return digest.hexdigest()

    def _token_shard(self, split: str, number: int) -> Path:
        return self._scratch / f"{split}-{number:05d}.npz"


def _same_tokens(ours: Tokenizer, theirs: Tokenizer) -> bool:
    size = ours.vocab_size
    return size == theirs.vocab_size and ours.pieces(range(size)) == theirs.pieces(range(size))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _refuse_foreign(partial: Path) -> None:
    """Refuses a directory of the name that the unfinished work has, but which is not ours to remove."""
    if partial.is_dir() and any(partial.iterdir()) and not any((partial / own).exists() for own in (SCRATCH, MANIFEST)):
        raise BadInput(f"{partial}: is where unfinished work is kept, and holds something else; move it away")


def _discard(partial: Path) -> None:
    """Removes unfinished work; what says that it can be resumed goes first, in case this too is killed, and what says
    whose it is goes last."""
    for claim in (partial / MANIFEST, partial / SCRATCH / PLAN):
        with contextlib.suppress(OSError):  # a directory in its place goes with all the rest
            claim.unlink()
    for entry in partial.iterdir() if (partial / SCRATCH).is_dir() else ():
        if entry.name != SCRATCH:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    atomic.remove(partial)


def evenly_spread(items: Iterable[str], count: int, wanted: int) -> Iterator[str]:
    """About `wanted` of the `count` items, at equal distances: the same ones every time, and from everywhere."""
    for index, item in enumerate(items):
        if count <= wanted or index * wanted // count != (index - 1) * wanted // count:
            yield item
