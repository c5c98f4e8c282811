"""The tokenizer of a corpus: trained on its text, counted from it, or read from a file."""

import collections
import contextlib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from transformer_jax import schema
from transformer_jax.config import DataConfig, ModelConfig
from transformer_jax.data.cleaning import TextShards, read_corpus
from transformer_jax.data.corpora import open_corpus
from transformer_jax.data.prepared import SIDES
from transformer_jax.data.tokenizer import (
    SPECIAL_PIECES,
    Tokenizer,
    UnsupportedSize,
    load_tokenizer,
    train_sentencepiece,
    train_symbols,
)
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.files.progress import tell

# Texts of at most this size are read before anything else, to check the sizes of vocabularies.
QUICKLY_READ = 1 << 20
# A size that adapts has the tokens that occur at least so often in the training text; rarer ones are hard to learn.
OFTEN = 10
SIZES = {"source": "model.vocab_size", "target": "model.target_vocab_size"}


def tokenized_sides(data: DataConfig, model: ModelConfig) -> dict[str, tuple[str, ...]]:
    """The sides of the text that each tokenizer is for: the source's serves both unless there are two."""
    shared = model.target_vocab_size is None and data.target_tokenizer_file is None
    return {"source": SIDES} if shared else {side: (side,) for side in SIDES}


def given_tokenizer(data: DataConfig, side: str) -> str | None:
    return data.tokenizer_file if side == "source" else data.target_tokenizer_file


def make_tokenizer(
    data: DataConfig, model: ModelConfig, side: str, texts: Callable[[], Iterable[str]], count: int
) -> Tokenizer:
    """The tokenizer of a side, for `count` texts."""
    given, kind = given_tokenizer(data, side), data.tokenizer
    if given is not None:
        return load_tokenizer(given)
    if kind != "bpe" and kind != "unigram":
        return train_symbols(texts(), kind)
    size = _size(model, side)
    most = "at most " if SIZES[side] in data.adapt else ""
    tell(f"training a {kind} tokenizer of {most}{size:,} tokens")
    try:
        return _trained(data, side, size, texts, count)
    except UnsupportedSize as problem:
        if SIZES[side] not in data.adapt:
            raise
        fits = problem.least + learned_often(_trained(data, side, problem.most, texts, count), texts())
        tell(
            f"adapted: {SIZES[side]} = {fits} instead of {size}: the {problem.least} that the training text needs, and "
            f"those that occur at least {OFTEN} times in it; it supports at most {problem.most}"
        )
        return _trained(data, side, fits, texts, count)


def learned_often(tokenizer: Tokenizer, texts: Iterable[str]) -> int:
    """The number of tokens that a tokenizer learned up to the last one that occurs often, in the order of learning.

    Tokens for single characters and bytes are not learned. Where the order is that of merges, the last ones that occur
    often are whole words, and shorter tokens that they consist of come before them.
    """
    counts = collections.Counter(itertools.chain.from_iterable(map(tokenizer.encode, texts)))
    given = {*SPECIAL_PIECES, *(f"<0x{byte:02X}>" for byte in range(256))}
    pieces = enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))
    learned = [index for index, piece in pieces if len(piece) > 1 and piece not in given]
    return max((rank for rank, index in enumerate(learned, 1) if counts[index] >= OFTEN), default=0)


def _size(model: ModelConfig, side: str) -> int:
    return cast(int, model.vocab_size if side == "source" else model.target_vocab_size)


def _trained(data: DataConfig, side: str, size: int, texts: Callable[[], Iterable[str]], count: int) -> Tokenizer:
    return train_sentencepiece(
        lambda: evenly_spread(texts(), count, data.tokenizer_sentences),
        cast(Literal["bpe", "unigram"], data.tokenizer),
        size,
        normalization=data.normalization,
        byte_fallback=data.byte_fallback,
        character_coverage=data.character_coverage,
        size_option=SIZES[side],
    )


def size_problems(values: Mapping[str, Any]) -> list[str]:
    """Sizes in a config's nested values that a small text does not support; other problems are not looked for."""
    with contextlib.suppress(ConfigError, BadInput, OSError), tempfile.TemporaryDirectory() as scratch:
        data = schema.build(DataConfig, values.get("data", {}))
        model = schema.build(ModelConfig, values.get("model", {}))
        if not data.trains_tokenizer or data.corpus or sum(map(os.path.getsize, data.source)) > QUICKLY_READ:
            return []
        shards = TextShards(Path(scratch), QUICKLY_READ)
        read_corpus(open_corpus(data), data, shards)
        facts = shards.facts
        assert facts is not None, "read_corpus() is complete"
        parts = [shards.read("train", number) for number in range(facts["splits"]["train"]["shards"])]
        texts = {side: [text for part in parts for text in part[at]] for at, side in enumerate(SIDES)}
        problems = []
        for side, learn_from in tokenized_sides(data, model).items():
            learned = list(itertools.chain.from_iterable(texts[each] for each in learn_from))
            try:
                if SIZES[side] not in data.adapt:
                    _trained(data, side, _size(model, side), learned.__iter__, len(learned))
            except UnsupportedSize as problem:
                problems.append(str(problem))
        return problems
    return []


def evenly_spread(items: Iterable[str], count: int, wanted: int) -> Iterator[str]:
    """About `wanted` of the `count` items, at equal distances: the same ones every time, from the whole text."""
    for index, item in enumerate(items):
        if count <= wanted or index * wanted // count != (index - 1) * wanted // count:
            yield item
