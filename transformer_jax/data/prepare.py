"""Text to token arrays on disk, in one pass; reused while nothing has changed.

Everything is made in a sibling directory `NAME.partial`; what is complete is moved from there. The next start removes
what a killed one left. No step depends on randomness, the clock or the number of cores: the same text and options give
the same bytes.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, cast

from transformer_jax import schema
from transformer_jax.config import DataConfig, ExperimentConfig, ModelConfig
from transformer_jax.data.cleaning import HeldOut, Rejected, clean, require_readable
from transformer_jax.data.corpora import open_corpus
from transformer_jax.data.corpora.corpus import Corpus, Labels, Pair
from transformer_jax.data.prepared import FORMAT, LABELS, MANIFEST, SIDES, TEXTS, Prepared, read_manifest, write_arrays
from transformer_jax.data.tokenizer import SymbolKind, Tokenizer, load_tokenizer, train_sentencepiece, train_symbols
from transformer_jax.errors import BadInput, Failed
from transformer_jax.files import atomic, paths
from transformer_jax.files.digests import file_sha256, sha256
from transformer_jax.files.progress import counting, tell
from transformer_jax.files.record import read_bytes
from transformer_jax.files.remote import name_of
from transformer_jax.version import __version__

# Pairs that are in memory at a time.
BLOCK = 20_000
LARGEST_SHARE_HELD_OUT = 10  # a split that is held out is at most one tenth of the corpus
# Recorded in every recipe, although they matter only where pairs are held out.
HELD_OUT = ("data.valid_size", "data.test_size")
# Recorded only where they are not the default: a corpus that was prepared before they existed is still used.
LATER = ("data.hard_vocab_limit",)
# The folders in `NAME.partial`: the cleaned text, and the prepared data.
SCRATCH, WHOLE = "scratch", "data"


def prepare(config: ExperimentConfig, directory: str | Path) -> Prepared:
    """The corpus of this experiment as token arrays in `directory`, made now or found there."""
    directory = Path(paths.expanded(directory)).absolute()
    if directory.is_symlink():
        directory = directory.resolve()
    if not directory.name:
        raise BadInput(f"{directory}: is the root of the file system; choose a directory in it")
    with atomic.explained(directory):
        corpus = open_corpus(config.data)
        if not (directory / MANIFEST).exists():
            with atomic.made(directory.parent), atomic.locked(directory.with_name(directory.name + ".lock")):
                if not (directory / MANIFEST).exists():  # else another process has made it meanwhile
                    _make(config, corpus, directory)
                    return Prepared.open(directory)
        _refuse_other_data(config, corpus, directory)
    return Prepared.open(directory)


def _make(config: ExperimentConfig, corpus: Corpus, directory: Path) -> None:
    """Writes a prepared corpus beside its directory, and moves it there when it is complete."""
    recipe = recipe_of(config, corpus.identity())
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise BadInput(f"{directory}: exists and is not a prepared corpus; choose an empty or new directory")
    if directory.is_mount():
        raise BadInput(f"{directory}: is a mount point, and a corpus gets its name by a move; choose a directory in it")
    partial = directory.with_name(directory.name + ".partial")
    if partial.exists() and {entry.name for entry in partial.iterdir()} - {SCRATCH, WHOLE}:
        raise BadInput(f"{partial}: is reserved for unfinished work but contains something else; move it away")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        for folder in (partial / SCRATCH, partial / WHOLE):
            folder.mkdir(parents=True)
        _write(config, corpus, recipe, Text(partial / SCRATCH), partial / WHOLE)
        (partial / WHOLE).rename(directory)
    except FileNotFoundError as error:
        if partial not in Path(str(error.filename)).parents:
            raise
        raise Failed(
            f"{partial}: was removed while its files were written. Where locks do not work, another process that "
            "prepares the same data removes it: start one at a time"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    atomic.sync_directory(directory.parent)


def _write(config: ExperimentConfig, corpus: Corpus, recipe: dict[str, Any], text: Text, folder: Path) -> None:
    """Writes all files of a prepared corpus, the manifest last."""
    splits = read_corpus(corpus, config.data, text)
    tokenizers: dict[str, Tokenizer] = {}
    recorded: dict[str, Any] = {}
    for side, learn_from in tokenized_sides(config.data, config.model).items():
        texts = functools.partial(text.sentences, "train", learn_from)
        tokenizer = make_tokenizer(config.data, config.model, side, texts, splits["train"]["pairs"] * len(learn_from))
        tokenizers[side] = tokenizer
        name = ("tokenizer" if side == "source" else "target_tokenizer") + tokenizer.suffix
        tokenizer.save(folder / name)
        recorded[side] = {
            "file": name,
            "vocab_size": tokenizer.vocab_size,
            "fingerprint": tokenizer.fingerprint,
            # Marian has two ways to segment texts into the tokens of one vocabulary.
            "same_tokens": tokenizer.all_pieces == tokenizers["source"].all_pieces,
        }
    both_sides = dict.fromkeys(SIDES, tokenizers["source"]) | tokenizers
    for split, facts in splits.items():
        facts |= _write_split(split, facts["pairs"], text, both_sides, folder)
    versions = {name: metadata.version(name) for name in ("numpy", "sentencepiece")}
    manifest = {
        "format": FORMAT,
        "recipe": recipe,
        "sources": corpus.sources(),
        "splits": splits,
        "tokenizers": recorded,
        "versions": {"transformer_jax": __version__, **versions},
    }
    atomic.write_record(folder / MANIFEST, manifest)


class Text:
    """The cleaned text of each split in scratch files, in blocks that fit into memory."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.held_out: set[Pair] = set()  # pairs that `blocks` leaves out of train
        self.labelled: set[str] = set()  # splits whose examples have labels

    def append(self, split: str, pairs: Sequence[Pair], labels: Sequence[Labels] = ()) -> None:
        with open(self._folder / split, "a", encoding="utf-8") as file:
            # JSON: a sentence from a data set may contain a line feed.
            file.write(json.dumps([pairs, labels], ensure_ascii=False) + "\n")
        if labels:
            self.labelled.add(split)

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
    held_out = HeldOut(data.seed, sum(wanted.values()), corpus.never_held_out)
    splits = {split: _read_split(corpus, split, data, text, held_out) for split in corpus.splits}
    train = splits["train"]
    largest = train["pairs"] // LARGEST_SHARE_HELD_OUT
    for split, size in wanted.items():
        pairs = held_out.take(min(size, largest))
        if len(pairs) < size:
            tell(f"held out for {split}: {len(pairs)} pairs instead of {size}: at most a tenth of the text")
        if pairs:
            text.append(split, pairs)
            splits[split] = {"pairs": len(pairs), "held_out_of": "train"}
            text.held_out.update(pairs)
    train["held_out"] = sum(held_out.copies[pair] for pair in text.held_out)
    if copies := train["held_out"] - len(text.held_out):
        tell(f"left out of train: {copies:,} copies of pairs that are held out")
    train["pairs"] -= train["held_out"]
    if not train["pairs"]:
        raise BadInput(
            f"data.valid_size and data.test_size: all {train['held_out']:,} training pairs are equal to ones held out; "
            "set the sizes to 0, or give files for validation and test"
        )
    return splits


def _read_split(corpus: Corpus, split: str, data: DataConfig, text: Text, held_out: HeldOut) -> dict[str, Any]:
    """Writes one split as text. Only the training split is cleaned, and its pairs may be held out."""
    rejected: Rejected = {}
    seen: set[int] = set()
    counts: Counter[str] = Counter(read=0, pairs=0)
    with counting(f"reading {split}", "pairs") as advance:
        for chunk in corpus.chunks(split, BLOCK):
            if split == "train":
                pairs = clean(chunk, data.cleaning, rejected, seen)
                held_out.offer(pairs)
            else:
                require_readable(chunk)
                pairs = chunk.pairs
            text.append(split, pairs, chunk.labels)
            counts.update(read=len(chunk.pairs), pairs=len(pairs))
            advance(len(chunk.pairs))
    if not counts["pairs"]:
        reasons = ", ".join(f"{reason} {facts['pairs']:,}" for reason, facts in rejected.items())
        files = [source["file"] for source in corpus.sources() if source.get("split") == split and "file" in source]
        why = f"data.cleaning leaves none of {counts['read']:,} pairs ({reasons})" if reasons else "empty"
        raise BadInput(f"{' and '.join(files) or split}: {why}")
    return {**counts, "rejected": dict(sorted(rejected.items()))}


def tokenized_sides(data: DataConfig, model: ModelConfig) -> dict[str, tuple[str, ...]]:
    """The sides of the text that each tokenizer is for: the source's serves both unless there are two."""
    shared = model.target_vocab_size is None and data.target_tokenizer_file is None
    return {"source": SIDES} if shared else {side: (side,) for side in SIDES}


def make_tokenizer(
    data: DataConfig, model: ModelConfig, side: str, texts: Callable[[], Iterable[str]], count: int
) -> Tokenizer:
    given = data.tokenizer_file if side == "source" else data.target_tokenizer_file
    if given is not None:
        return load_tokenizer(given)
    if not data.trains_tokenizer:
        return train_symbols(texts(), cast(SymbolKind, data.tokenizer))
    size = cast(int, model.vocab_size if side == "source" else model.target_vocab_size)
    tell(f"training a {data.tokenizer} tokenizer of {'' if data.hard_vocab_limit else 'at most '}{size:,} tokens")
    return train_sentencepiece(
        lambda: evenly_spread(texts(), count, data.tokenizer_sentences),
        cast(Literal["bpe", "unigram"], data.tokenizer),
        size,
        normalization=data.normalization,
        byte_fallback=data.byte_fallback,
        character_coverage=data.character_coverage,
        hard_vocab_limit=data.hard_vocab_limit,
        size_option="model.vocab_size" if side == "source" else "model.target_vocab_size",
    )


def evenly_spread(items: Iterable[str], count: int, wanted: int) -> Iterator[str]:
    """About `wanted` of the `count` items, at equal distances: the same ones every time, from the whole text."""
    for index, item in enumerate(items):
        if count <= wanted or index * wanted // count != (index - 1) * wanted // count:
            yield item


def _write_split(
    split: str, count: int, text: Text, tokenizers: Mapping[str, Tokenizer], folder: Path
) -> dict[str, Any]:
    """Writes the token arrays of a split and, unless it is train, its texts and labels; returns their facts."""

    def tokenised(side: str, advance: Callable[[int], None]) -> Iterator[list[list[int]]]:
        for pairs, _ in text.blocks(split):
            yield tokenizers[side].encode_batch([pair[SIDES.index(side)] for pair in pairs])
            advance(len(pairs))

    arrays: dict[str, Any] = {}
    with counting(f"tokenising {split}", "sentences", count * len(SIDES)) as advance:
        for side in SIDES:
            written = write_arrays(f"{folder}/{split}.{side}", tokenised(side, advance), tokenizers[side].vocab_size)
            arrays |= {f"{side}.{name}": facts for name, facts in written.items()}
    facts: dict[str, Any] = {"arrays": arrays}
    if split != "train":
        records = ({"source": source, "target": target} for pairs, _ in text.blocks(split) for source, target in pairs)
        facts["texts_sha256"] = _write_records(folder / f"{split}.{TEXTS}", records)
    if split in text.labelled:
        labels = (label for pairs, given in text.blocks(split) for label in given or [{} for _ in pairs])
        facts["groups_sha256"] = _write_records(folder / f"{split}.{LABELS}", labels)
    return facts


def _write_records(path: Path, records: Iterable[Mapping[str, str]]) -> str:
    """Writes one JSON object a line; returns the digest of the file."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    return file_sha256(path)


def _refuse_other_data(config: ExperimentConfig, corpus: Corpus, directory: Path) -> None:
    """Raises BadInput unless what was prepared is what this config asks for; the text need not exist any more."""
    manifest = read_manifest(directory)
    stored = manifest["recipe"]
    tests = () if config.data.corpus else config.data.tests
    if unprepared := [name for name in tests if name not in manifest["splits"]]:
        raise BadInput(
            f"{directory}: was prepared without the test set {unprepared[0]}: name test sets before the first run. "
            "transformer-jax evaluate --source=FILE --target=FILE evaluates other texts"
        )
    recorded = {source["file"] for source in manifest["sources"] if "file" in source}
    if recorded == set(map(name_of, corpus.files)) and not all(Path(path).exists() for path in corpus.files):
        tell(f"{directory}: reused without comparing it with its text files, which no longer exist")
        identity = stored["corpus"]
    else:
        identity = corpus.identity()
    unused = {option.path for option in schema.options(ExperimentConfig) if not option.has_effect(config)}
    if changes := differences(stored, recipe_of(config, identity, stored["options"]), unused):
        raise BadInput(
            f"{directory}: was prepared from something else: {'; '.join(changes)}; "
            "choose another --workdir or data.directory, or remove that one"
        )


def recipe_of(
    config: ExperimentConfig, corpus_identity: dict[str, Any], stored: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The dependencies of prepared data: the corpus and the options that affect it. Equal recipes give equal bytes.

    `stored` has the digests of files that may be gone.
    """
    data, model = config.data, config.model
    options: dict[str, Any] = {}
    for option in schema.options(ExperimentConfig):
        value = schema.value_at(config, option.path)
        if option.affects != "data" or (option.path.startswith("model.") and not data.trains_tokenizer):
            continue  # the vocabulary size of words, characters and a given tokenizer follows from these
        if option.path in LATER and value == option.default:
            continue
        if option.is_path:
            if value is not None:
                digest = None if Path(value).exists() else (stored or {}).get(option.path)
                options[option.path] = digest or sha256(read_bytes(Path(value)))
        elif option.path in HELD_OUT or option.has_effect(config):
            options[option.path] = value
    if data.tokenizer_file is None and not data.trains_tokenizer:
        options["vocabularies"] = "one" if model.target_vocab_size is None else "two"
    return {"corpus": corpus_identity, "options": options}


def differences(old: dict[str, Any], new: dict[str, Any], unused: Collection[str] = ()) -> list[str]:
    """Every difference between two recipes, as text. Options that are unused now do not count."""
    before, now = _named_values(old), _named_values(new)
    found = []
    for name in dict.fromkeys([*before, *now]):
        if before.get(name) == now.get(name) or name in unused:
            continue
        if not name.endswith(" text"):
            found.append(f"{name} was {before.get(name, 'not set')} and is now {now.get(name, 'not set')}")
        elif name in before and name in now:
            found.append(f"{name} has changed")
        else:
            found.append(
                f"{name} was {'' if name in before else 'not '}given and is {'' if name in now else 'not '}now"
            )
    return found


def _named_values(recipe: dict[str, Any]) -> dict[str, Any]:
    corpus = dict(recipe["corpus"])
    texts = {f"the {split} text": checksums for split, checksums in corpus.pop("files", {}).items()}
    return {**texts, **{f"{name} of the corpus": value for name, value in corpus.items()}, **recipe["options"]}
