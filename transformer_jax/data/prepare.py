"""Text to token arrays on disk, in one pass; reused while nothing has changed.

Everything is made in a sibling directory `NAME.partial`, which is renamed when it is complete. What a killed start left
there is removed by the next one. No step depends on randomness, the clock or the number of cores: the same text and
options give the same bytes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from transformer_jax import schema
from transformer_jax.config import DataConfig, ExperimentConfig
from transformer_jax.data.cleaning import HeldOut, Rejections, clean, pair_keys, require_readable
from transformer_jax.data.corpora import named_files, open_corpus
from transformer_jax.data.corpora.corpus import Corpus, Labels, Pair
from transformer_jax.data.prepared import (
    FORMAT,
    MANIFEST,
    SIDES,
    Prepared,
    SideWriter,
    groups_path,
    read_manifest,
    sha256,
    texts_path,
)
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.vocabulary import given_tokenizer, make_tokenizer, tokenized_sides
from transformer_jax.data_config import TASKS
from transformer_jax.errors import BadInput
from transformer_jax.files import atomic, paths
from transformer_jax.files.progress import counting, tell
from transformer_jax.version import __version__

# Pairs that are in memory at a time.
BLOCK = 20_000
LARGEST_SHARE_HELD_OUT = 10  # a split that is held out is at most one tenth of the corpus
# Recorded in every recipe, although they matter only where pairs are held out.
HELD_OUT = ("data.valid_size", "data.test_size")
# Recorded only where they are not the default: a corpus that was prepared before they existed is still used.
LATER = ("data.split_seed", "data.hard_vocab_limit")
SCRATCH = "scratch"


def prepare(config: ExperimentConfig, directory: str | Path) -> Prepared:
    """The corpus of this experiment as token arrays in `directory`, made now or found there."""
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
            partial = directory.with_name(directory.name + ".partial")
            _discard(partial)
            try:
                _make(config, corpus, partial)
                atomic.remove(partial / SCRATCH)
                if directory.exists():
                    directory.rmdir()
                partial.rename(directory)
            except BaseException:
                with contextlib.suppress(OSError, BadInput):
                    _discard(partial)
                raise
            atomic.sync_directory(directory.parent)
    return Prepared.open(directory)


def _discard(partial: Path) -> None:
    """Removes unfinished work. Refuses a directory of this name that contains something else."""
    if not partial.is_dir():
        return
    if any(partial.iterdir()) and not ((partial / SCRATCH).exists() or (partial / MANIFEST).exists()):
        raise BadInput(f"{partial}: is reserved for unfinished work but contains something else; move it away")
    for entry in partial.iterdir():
        if entry.is_file() and entry.name != MANIFEST:
            entry.unlink()
    atomic.remove(partial)  # last, so that what is left is recognised if this is killed too


def _make(config: ExperimentConfig, corpus: Corpus, partial: Path) -> None:
    """Writes all files of a prepared corpus, the manifest last."""
    recipe = recipe_of(config, corpus.identity())
    (partial / SCRATCH).mkdir(parents=True)
    text = Text(partial / SCRATCH)
    splits = read_corpus(corpus, config.data, text)
    tokenizers: dict[str, Tokenizer] = {}
    recorded: dict[str, Any] = {}
    for side, learn_from in tokenized_sides(config.data, config.model).items():
        texts = functools.partial(text.sentences, "train", learn_from)
        tokenizer = make_tokenizer(config.data, config.model, side, texts, splits["train"]["pairs"] * len(learn_from))
        name = _tokenizer_name(config.data, side)
        tokenizer.save(partial / name)
        tokenizers[side] = tokenizer
        recorded[side] = {
            "file": name,
            "vocab_size": tokenizer.vocab_size,
            "fingerprint": tokenizer.fingerprint,
            # Marian has two ways to segment texts into the tokens of one vocabulary.
            "same_tokens": _same_tokens(tokenizer, tokenizers["source"]),
        }
    both_sides = dict.fromkeys(SIDES, tokenizers["source"]) | tokenizers
    for split, facts in splits.items():
        facts |= _write_split(split, facts["pairs"], text, both_sides, partial)
    used = {"tokenizers"} & sys.modules.keys()  # which is imported where a tokenizer.json is read
    versions = {name: metadata.version(name) for name in ("numpy", "sentencepiece", *used)}
    manifest = {
        "format": FORMAT,
        "recipe": recipe,
        "sources": corpus.sources(),
        "splits": splits,
        "tokenizers": recorded,
        "versions": {"transformer_jax": __version__, **versions},
    }
    for split, facts in splits.items():
        if "held_out_of" in facts and facts["pairs"] < (size := getattr(config.data, f"{split}_size")):
            tell(f"held out for {split}: {facts['pairs']} pairs instead of {size}: at most a tenth of the text")
    atomic.write_record(partial / MANIFEST, manifest)


class Text:
    """The cleaned text of each split in scratch files, in blocks that fit into memory."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.held_out: set[Pair] = set()  # pairs that `blocks` leaves out of train
        self.labelled: set[str] = set()  # splits whose examples have labels

    @contextlib.contextmanager
    def writing(self, split: str) -> Iterator[Callable[[Sequence[Pair], Sequence[Labels]], None]]:
        """A function that writes the next block of a split."""
        with open(self._folder / split, "w", encoding="utf-8") as file:

            def write(pairs: Sequence[Pair], labels: Sequence[Labels]) -> None:
                # JSON: a sentence from a data set may contain a line feed.
                file.write(json.dumps([pairs, labels], ensure_ascii=False) + "\n")
                if labels:
                    self.labelled.add(split)

            yield write

    def blocks(self, split: str) -> Iterator[tuple[list[Pair], list[Labels]]]:
        with open(self._folder / split, encoding="utf-8") as file:
            for line in file:
                pairs, labels = json.loads(line)
                pairs = [(source, target) for source, target in pairs]
                if split == "train":
                    pairs = [pair for pair in pairs if pair not in self.held_out]
                yield pairs, labels

    def sentences(self, split: str, sides: tuple[str, ...]) -> Iterator[str]:
        for pairs, _ in self.blocks(split):
            for side in sides:
                for pair in pairs:
                    yield pair[SIDES.index(side)]


def read_corpus(corpus: Corpus, data: DataConfig, text: Text) -> dict[str, dict[str, Any]]:
    """Writes all splits of the corpus as text, and holds out the validation and test pairs that it lacks.

    Returns what the manifest records of each split.
    """
    sizes = {"valid": data.valid_size, "test": data.test_size}
    wanted = {split: size for split, size in sizes.items() if split not in corpus.splits and size}
    if data.split_seed is not None and "valid" in corpus.splits and data.corpus not in TASKS:
        raise BadInput(
            f"data.split_seed = {data.split_seed} chooses validation pairs among the training text, but "
            f"{data.corpus} has validation pairs of its own"
        )
    held_out, redrawn = (HeldOut(sum(wanted.values()), corpus.never_held_out) for _ in range(2))
    splits = {split: _read_split(corpus, split, data, text, held_out, redrawn) for split in corpus.splits}
    train = splits["train"]
    largest = train["pairs"] // LARGEST_SHARE_HELD_OUT
    chosen = {split: held_out.take(min(size, largest)) for split, size in wanted.items()}
    copies = held_out.copies
    if data.split_seed is not None and "valid" in wanted:  # other validation pairs, and the same for testing
        others = [pair for pair in redrawn.take(sum(wanted.values())) if pair not in chosen.get("test", ())]
        chosen["valid"] = others[: len(chosen["valid"])]
        copies |= redrawn.copies
    for split, pairs in chosen.items():
        if pairs:
            with text.writing(split) as write:
                write(pairs, [])
            splits[split] = {"pairs": len(pairs), "held_out_of": "train"}
            text.held_out.update(pairs)
    train["held_out"] = sum(copies[pair] for pair in text.held_out)
    train["pairs"] -= train["held_out"]
    if not train["pairs"]:
        raise BadInput(
            f"data.valid_size and data.test_size: all {train['held_out']:,} training pairs are equal to ones held out; "
            "set the sizes to 0, or give files for validation and test"
        )
    return splits


def _read_split(
    corpus: Corpus, split: str, data: DataConfig, text: Text, held_out: HeldOut, redrawn: HeldOut
) -> dict[str, Any]:
    """Writes one split as text. Only the training split is cleaned, the others stay whole.

    Its pairs are offered to `held_out` in the order of data.seed, and to `redrawn` in that of data.split_seed.
    """
    rejections = Rejections()
    seen: set[int] = set()
    counts: Counter[str] = Counter()
    oddities: Counter[str] = Counter()
    with counting(f"reading {split}", "pairs") as advance, text.writing(split) as write:
        for chunk in corpus.chunks(split, BLOCK):
            pairs = chunk.pairs
            if split == "train":
                kept = clean(chunk, data.cleaning, rejections)
                pairs = [pairs[i] for i in kept]
                keys = pair_keys(pairs, data.seed)
                if data.cleaning.drop_duplicates:
                    new = []
                    for index, key in enumerate(keys.tolist()):
                        if key in seen:
                            rejections.add("duplicate", chunk.place(kept[index]))
                        else:
                            seen.add(key)
                            new.append(index)
                    pairs, keys = [pairs[i] for i in new], keys[new]
                held_out.offer(keys, pairs)
                if data.split_seed is not None:
                    redrawn.offer(pair_keys(pairs, data.split_seed), pairs)
            else:
                require_readable(chunk)
            write(pairs, chunk.labels)
            oddities += chunk.oddities
            counts.update(read=len(chunk.pairs), pairs=len(pairs))
            advance(len(chunk.pairs))
    if not counts["pairs"]:
        raise _no_pairs(split, corpus, counts["read"], rejections)
    return {**counts, "rejected": rejections.to_json(), "oddities": dict(sorted(oddities.items()))}


def _no_pairs(split: str, corpus: Corpus, read: int, rejections: Rejections) -> BadInput:
    if read:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in rejections.counts.most_common())
        return BadInput(f"data.cleaning: leaves none of {read:,} {split} pairs ({reasons})")
    places = [source["file"] for source in corpus.sources() if source.get("split") == split and "file" in source]
    return BadInput(f"{' and '.join(places) or split}: empty; there is no {split} pair")


def _write_split(
    split: str, count: int, text: Text, tokenizers: Mapping[str, Tokenizer], partial: Path
) -> dict[str, Any]:
    """Writes the token arrays of a split and, unless it is train, its texts and labels; returns their facts."""
    writers = {side: SideWriter(partial / f"{split}.{side}", tokenizers[side].vocab_size) for side in SIDES}
    with writers["source"], writers["target"], counting(f"tokenising {split}", "pairs", count) as advance:
        for pairs, _ in text.blocks(split):
            for index, (side, writer) in enumerate(writers.items()):
                writer.write(tokenizers[side].encode_batch([pair[index] for pair in pairs]))
            advance(len(pairs))
    arrays = {f"{side}.{name}": of_array for side in SIDES for name, of_array in writers[side].facts().items()}
    facts: dict[str, Any] = {"arrays": arrays}
    if split != "train":
        records = ({"source": source, "target": target} for pairs, _ in text.blocks(split) for source, target in pairs)
        facts["texts_sha256"] = _write_records(texts_path(partial, split), records)
    if split in text.labelled:
        labels = (label for pairs, given in text.blocks(split) for label in given or [{} for _ in pairs])
        facts["groups_sha256"] = _write_records(groups_path(partial, split), labels)
    return facts


def _write_records(path: Path, records: Iterable[Mapping[str, str]]) -> str:
    """Writes one JSON object a line; returns the digest of the file."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    return sha256(path)


def _tokenizer_name(data: DataConfig, side: str) -> str:
    given = given_tokenizer(data, side)
    of_symbols = given.endswith(".json") if given else not data.trains_tokenizer
    return f"{'tokenizer' if side == 'source' else 'target_tokenizer'}.{'json' if of_symbols else 'model'}"


def _same_tokens(one: Tokenizer, other: Tokenizer) -> bool:
    size = one.vocab_size
    return size == other.vocab_size and one.pieces(range(size)) == other.pieces(range(size))


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
