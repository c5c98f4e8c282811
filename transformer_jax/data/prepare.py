"""Text to token arrays on disk, once: resumable after a kill, safe to start twice, reused while nothing has changed.

Everything is made in a sibling directory `NAME.partial` and renamed when it is complete. Inside, work is cut into files
that appear whole or not at all, and existing files are not made again. Since no step depends on randomness, the clock
or the number of cores, a run that was killed and resumed ends with the same bytes as one that was not.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.cleaning import TextShards, load_arrays, read_corpus, save_arrays
from transformer_jax.data.corpora import named_files, open_corpus
from transformer_jax.data.prepared import (
    FORMAT,
    MANIFEST,
    SIDES,
    Prepared,
    flatten,
    groups_path,
    read_manifest,
    sha256,
    texts_path,
    token_dtype,
    write_side,
)
from transformer_jax.data.tokenizer import Tokenizer, load_tokenizer
from transformer_jax.data.vocabulary import given_tokenizer, make_tokenizer, tokenized_sides
from transformer_jax.errors import BadInput
from transformer_jax.files import atomic, paths
from transformer_jax.files.progress import counting, tell
from transformer_jax.files.record import read_record
from transformer_jax.version import __version__

PAIRS_PER_SHARD = 20_000
# Recorded in every recipe, although they matter only where pairs are held out.
HELD_OUT = ("data.valid_size", "data.test_size")
# Recorded only where they are not the default: a corpus that was prepared before they existed is still used.
LATER = ("data.split_seed", "data.hard_vocab_limit")
SCRATCH = "scratch"
PLAN = "plan.json"  # in SCRATCH: the recipe of the work


def prepare(config: ExperimentConfig, directory: str | Path, *, pairs_per_shard: int = PAIRS_PER_SHARD) -> Prepared:
    """The corpus of this experiment as token arrays in `directory`, made now or found there.

    `pairs_per_shard` bounds the memory and the work that a kill can lose; the result does not depend on it.
    """
    directory = Path(paths.expanded(directory)).absolute()
    with atomic.explained(directory):
        if (directory / MANIFEST).exists():
            return _reused(config, directory)
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise BadInput(f"{directory}: exists and is not a prepared corpus; expected an empty or new directory")
        corpus = open_corpus(config.data)
        with atomic.made(directory.parent), atomic.locked(directory.with_name(directory.name + ".lock")):
            if (directory / MANIFEST).exists():  # made by another process while this one waited for the lock
                return _reused(config, directory)
            recipe = recipe_of(config, corpus.identity())
            partial = directory.with_name(directory.name + ".partial")
            _refuse_foreign(partial)
            try:
                work = _Work(config, recipe, partial, pairs_per_shard)
                if (partial / MANIFEST).exists():  # killed before the rename; it may have been damaged since
                    Prepared.open(partial).verify()
                else:
                    if work.shards.facts is None:
                        read_corpus(corpus, config.data, work.shards)
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
    """The corpus prepared before, if it is what this config asks for; the text itself need not exist any more."""
    manifest = read_manifest(directory)
    stored = manifest["recipe"]
    named = named_files(config.data)
    recorded = {source["file"] for source in manifest["sources"] if "file" in source}
    if named == recorded and not all(Path(path).exists() for path in named):
        tell(f"{directory}: reused without comparing it with its text files, which no longer exist")
        identity = stored["corpus"]
    else:
        identity = open_corpus(config.data).identity()
    unused = {option.path for option in schema.options(ExperimentConfig) if not option.has_effect(config)}
    wanted = recipe_of(config, identity)
    changes = differences(stored, wanted, unused)
    if changes:
        raise BadInput(
            f"{directory}: was prepared from something else: {'; '.join(changes)}; "
            "choose another --workdir or data.directory, or remove that one"
        )
    return Prepared.open(directory)


def recipe_of(config: ExperimentConfig, corpus_identity: dict[str, Any]) -> dict[str, Any]:
    """What prepared data depends on: the corpus and the options that affect it. Equal recipes give equal bytes."""
    data, model = config.data, config.model
    if data.tokenizer_file and data.target_tokenizer_file is None and model.target_vocab_size is not None:
        raise BadInput(
            f"model.target_vocab_size = {model.target_vocab_size}: asks for a second vocabulary, but "
            "data.tokenizer_file gives only one; give data.target_tokenizer_file, or set the size to none"
        )
    options: dict[str, Any] = {}
    for option in schema.options(ExperimentConfig):
        value = schema.value_at(config, option.path)
        if option.affects != "data" or (option.path.startswith("model.") and not data.trains_tokenizer):
            continue  # the vocabulary size of words, characters and a given tokenizer follows from these
        if option.path in LATER and value == option.default:
            continue
        if schema.is_path(option.kind):
            options |= {} if value is None else {option.path: _checksum(value)}
        elif option.path in HELD_OUT or option.has_effect(config):
            options[option.path] = value
    if data.tokenizer_file is None and not data.trains_tokenizer:
        options["vocabularies"] = "one" if model.target_vocab_size is None else "two"
    return {"corpus": corpus_identity, "options": options}


def _checksum(path: str) -> str:
    if not Path(path).is_file():
        raise BadInput(f"{path}: there is no such tokenizer file")
    return sha256(path)


def differences(old: dict[str, Any], new: dict[str, Any], unused: Collection[str] = ()) -> list[str]:
    """Every difference between two recipes, as text. Sizes of held-out splits do not count if they are unused."""
    found = [] if old["corpus"] == new["corpus"] else _corpus_differences(old["corpus"], new["corpus"])
    for name in dict.fromkeys([*old["options"], *new["options"]]):
        before, now = (recipe["options"].get(name, "not set") for recipe in (old, new))
        if before != now and not (name in HELD_OUT and name in unused):
            found.append(f"{name} was {before} and is now {now}")
    return found


def _corpus_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    if old.keys() != new.keys():
        was, now = (
            "files" if "files" in identity else ", ".join(f"{name} = {value}" for name, value in identity.items())
            for identity in (old, new)
        )
        return [f"the corpus was {was} and is now {now}"]
    if "files" not in old:
        changed = [name for name in old if old[name] != new[name]]
        return [f"{name} of the corpus was {old[name]} and is now {new[name]}" for name in changed]
    splits = dict.fromkeys([*old["files"], *new["files"]])
    found = [f"the {split} text has changed" for split in splits if old["files"].get(split) != new["files"].get(split)]
    if old["keys"] != new["keys"]:
        found.append(f"the keys of a .jsonl line were {', '.join(old['keys'])} and are now {', '.join(new['keys'])}")
    return found


class _Work:
    """Makes one prepared directory, in steps that are skipped where their files already exist."""

    def __init__(self, config: ExperimentConfig, recipe: dict[str, Any], partial: Path, pairs_per_shard: int):
        self._config = config
        self._recipe = recipe
        self._partial = partial
        self._plan = {"recipe": recipe, "pairs_per_shard": pairs_per_shard}
        self._scratch = partial / SCRATCH
        if self._can_resume():
            tell(f"{partial}: resuming unfinished work")
        else:
            _discard(partial)
            self._scratch.mkdir(parents=True)
            atomic.write_record(self._scratch / PLAN, self._plan)
        self.shards = TextShards(self._scratch, pairs_per_shard)

    def _can_resume(self) -> bool:
        """Whether the partial directory was started with the same recipe."""
        if (self._partial / MANIFEST).exists():
            return read_manifest(self._partial)["recipe"] == self._recipe
        with contextlib.suppress(BadInput):
            return read_record(self._scratch / PLAN) == self._plan
        return False

    def complete(self) -> None:
        """From text shards to all files of the directory, the manifest last."""
        facts = self.shards.facts
        assert facts is not None, "complete() comes after read_corpus()"
        tokenizers = self._tokenizers(facts)
        by_side = {"source": tokenizers["source"], "target": tokenizers.get("target", tokenizers["source"])}
        for split, counted in facts["splits"].items():
            if "held_out_of" in counted and counted["pairs"] < (size := getattr(self._config.data, f"{split}_size")):
                tell(f"held out for {split}: {counted['pairs']} pairs instead of {size}: at most a tenth of the text")
            self._encode(split, counted, by_side)
            shard_count = counted.pop("shards")
            counted["arrays"] = self._concatenate(split, shard_count, by_side)
            if split != "train":
                counted["texts_sha256"] = self._keep_texts(split, shard_count)
            if counted.pop("labelled", False):
                counted["groups_sha256"] = self._keep_groups(split, shard_count)
        used = {"tokenizers"} & sys.modules.keys()  # which is imported where a tokenizer.json is read
        versions = {name: metadata.version(name) for name in ("numpy", "sentencepiece", *used)}
        manifest = {
            "format": FORMAT,
            "recipe": self._recipe,
            "sources": facts["sources"],
            "splits": facts["splits"],
            "tokenizers": {
                side: {
                    "file": self._tokenizer_path(side).name,
                    "vocab_size": tokenizer.vocab_size,
                    "fingerprint": tokenizer.fingerprint,
                    # Marian has two ways to segment texts into the tokens of one vocabulary.
                    "same_tokens": _same_tokens(tokenizer, tokenizers["source"]),
                }
                for side, tokenizer in tokenizers.items()
            },
            "versions": {"transformer_jax": __version__, **versions},
        }
        atomic.write_record(self._partial / MANIFEST, manifest)

    def publish(self, directory: Path) -> None:
        atomic.remove(self._scratch)
        if directory.exists():
            directory.rmdir()
        self._partial.rename(directory)
        atomic.sync_directory(directory.parent)

    def _tokenizer_path(self, side: str) -> Path:
        given = given_tokenizer(self._config.data, side)
        of_symbols = given.endswith(".json") if given else not self._config.data.trains_tokenizer
        name = "tokenizer" if side == "source" else "target_tokenizer"
        return self._partial / f"{name}.{'json' if of_symbols else 'model'}"

    def _tokenizers(self, facts: dict[str, Any]) -> dict[str, Tokenizer]:
        """By side; only the source's where one tokenizer serves both."""
        data, model, train = self._config.data, self._config.model, facts["splits"]["train"]
        tokenizers = {}
        for side, learn_from in tokenized_sides(data, model).items():
            path, note = self._tokenizer_path(side), self._scratch / f"{side}_tokenizer.json"
            # The note is written last: a tokenizer file without a matching note is made again.
            if not (path.exists() and note.exists() and read_record(note) == {"sha256": sha256(path)}):
                texts = functools.partial(self._train_texts, train["shards"], learn_from)
                made = make_tokenizer(data, model, side, texts, train["pairs"] * len(learn_from))
                with atomic.write_atomically(path) as file:
                    file.write(made.serialized())
                atomic.write_record(note, {"sha256": sha256(path)})
            tokenizers[side] = load_tokenizer(path)
        return tokenizers

    def _train_texts(self, shard_count: int, sides: tuple[str, ...]) -> Iterator[str]:
        for number in range(shard_count):
            texts = dict(zip(SIDES, self.shards.read("train", number), strict=True))
            for side in sides:
                yield from texts[side]

    def _encode(self, split: str, counted: dict[str, Any], tokenizers: dict[str, Tokenizer]) -> None:
        """Each shard of text to a shard of tokens."""
        shards = range(counted["shards"])
        with (
            counting(f"tokenising {split}", "pairs", counted["pairs"]) as advance,
            # Two at a time: while SentencePiece uses all cores for one shard, the other is read or written.
            ThreadPoolExecutor(max_workers=2) as pool,
        ):
            for pairs in pool.map(lambda number: self._encode_shard(split, number, tokenizers), shards):
                advance(pairs)

    def _encode_shard(self, split: str, number: int, tokenizers: dict[str, Tokenizer]) -> int:
        """Returns the number of pairs in the shard."""
        path = self._token_shard(split, number)
        if path.exists():
            return len(load_arrays(path, "source_lengths")["source_lengths"])
        columns = {}
        for side, texts in zip(SIDES, self.shards.read(split, number), strict=True):
            ids = tokenizers[side].encode_batch(texts)
            columns[f"{side}_tokens"], columns[f"{side}_lengths"] = flatten(
                ids, token_dtype(tokenizers[side].vocab_size)
            )
        save_arrays(path, **columns)
        return len(columns["source_lengths"])

    def _concatenate(self, split: str, shard_count: int, tokenizers: dict[str, Tokenizer]) -> dict[str, Any]:
        """Writes the shards of tokens as the arrays of a split."""
        facts: dict[str, Any] = {}
        for side in SIDES:
            names = f"{side}_tokens", f"{side}_lengths"
            shards = (load_arrays(self._token_shard(split, number), *names) for number in range(shard_count))
            columns = ((shard[names[0]], shard[names[1]]) for shard in shards)
            dtype = token_dtype(tokenizers[side].vocab_size)
            tokens, offsets = write_side(self._partial / f"{split}.{side}", columns, dtype)
            facts |= {f"{side}.tokens": tokens, f"{side}.offsets": offsets}
        return facts

    def _keep_texts(self, split: str, shard_count: int) -> str:
        """Writes the texts of an evaluation split beside the arrays; returns their digest."""
        shards = (zip(*self.shards.read(split, number), strict=True) for number in range(shard_count))
        records = ({"source": source, "target": target} for shard in shards for source, target in shard)
        return _write_records(texts_path(self._partial, split), records)

    def _keep_groups(self, split: str, shard_count: int) -> str:
        """Writes the labels of an evaluation split's examples; returns their digest."""
        shards = (self.shards.labels(split, number) for number in range(shard_count))
        return _write_records(groups_path(self._partial, split), itertools.chain.from_iterable(shards))

    def _token_shard(self, split: str, number: int) -> Path:
        return self._scratch / f"{split}-{number:05d}.npz"


def _write_records(path: Path, records: Iterable[dict[str, str]]) -> str:
    """Writes one JSON object a line; returns the digest of the file."""
    digest = hashlib.sha256()
    with atomic.write_atomically(path) as file:
        for record in records:
            line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
            digest.update(line)
            file.write(line)
    return digest.hexdigest()


def _same_tokens(one: Tokenizer, other: Tokenizer) -> bool:
    size = one.vocab_size
    return size == other.vocab_size and one.pieces(range(size)) == other.pieces(range(size))


def _refuse_foreign(partial: Path) -> None:
    """Refuses a directory with the name of the unfinished work that contains something else."""
    is_ours = (partial / SCRATCH).exists() or (partial / MANIFEST).exists()
    if partial.is_dir() and any(partial.iterdir()) and not is_ours:
        raise BadInput(f"{partial}: is reserved for unfinished work but contains something else; move it away")


def _discard(partial: Path) -> None:
    """Removes unfinished work, in an order that is safe if this is killed too.

    The files that make it resumable go first, and the folder by which it is recognised as ours goes last.
    """
    for claim in (partial / MANIFEST, partial / SCRATCH / PLAN):
        with contextlib.suppress(OSError):  # a directory in its place goes with all the rest
            claim.unlink()
    for entry in partial.iterdir() if (partial / SCRATCH).is_dir() else ():
        if entry.name != SCRATCH:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    atomic.remove(partial)
