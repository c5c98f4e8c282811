"""Vocabularies: a tokenizer is trained on the training text (SentencePiece), counted from it (symbols), or read."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, cast

from transformer_jax.config import DataConfig, ModelConfig
from transformer_jax.data.prepared import SIDES
from transformer_jax.data.tokenizer import (
    BOS,
    EOS,
    PAD,
    SPACE_MARK,
    SPECIAL_PIECES,
    UNK,
    SentencePieceTokenizer,
    SymbolKind,
    SymbolTokenizer,
    Tokenizer,
    load_tokenizer,
    split_symbols,
)
from transformer_jax.errors import BadInput
from transformer_jax.files.progress import tell

SIZES = {"source": "model.vocab_size", "target": "model.target_vocab_size"}
# A text with fewer different characters has an alphabet, and a token for each of its letters.
LARGE_ALPHABET = 1000
# SentencePiece skips longer sentences, unless it is given another limit, which is at most this one.
USUAL_BYTES, MOST_BYTES = 4192, 1 << 30
# Characters with a meaning of their own to SentencePiece's trainer, which skips sentences that have some of them.
RESERVED = str.maketrans(dict.fromkeys("\t\n\r\0\u2585" + SPACE_MARK, " "))


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
    if (given := given_tokenizer(data, side)) is not None:
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
        size_option=SIZES[side],
    )


def evenly_spread(items: Iterable[str], count: int, wanted: int) -> Iterator[str]:
    """About `wanted` of the `count` items, at equal distances: the same ones every time, from the whole text."""
    for index, item in enumerate(items):
        if count <= wanted or index * wanted // count != (index - 1) * wanted // count:
            yield item


def train_symbols(texts: Iterable[str], kind: SymbolKind) -> SymbolTokenizer:
    """A tokenizer with every symbol of the texts, the most frequent first, ties in alphabetical order."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(split_symbols(text, kind))
    return SymbolTokenizer(kind, sorted(counts, key=lambda symbol: (-counts[symbol], symbol)))


def train_sentencepiece(
    texts: Callable[[], Iterable[str]],
    kind: Literal["bpe", "unigram"],
    vocab_size: int,
    *,
    normalization: str = "identity",
    byte_fallback: bool = True,
    character_coverage: float = 0.9995,
    hard_vocab_limit: bool = True,
    size_option: str = "vocab_size",
) -> SentencePieceTokenizer:
    """A SentencePiece model of `vocab_size` tokens; the same texts give the same model.

    Without `hard_vocab_limit` it has fewer tokens where the texts have no more. `character_coverage` is for texts with
    many different characters: those with fewer than 1,000 are covered completely. Spaces are kept as they are:
    SentencePiece's default, removing superfluous ones, changes the text.
    """
    characters, longest = _survey(texts())
    options: dict[str, Any] = {
        "model_type": kind,
        "normalization_rule_name": normalization,
        "byte_fallback": byte_fallback,
        "character_coverage": character_coverage if characters >= LARGE_ALPHABET else 1.0,
    }
    # The model contains the options that it was trained with: these are left out where they make no difference.
    if longest > USUAL_BYTES:
        options["max_sentence_length"] = MOST_BYTES
    if not hard_vocab_limit:
        options["hard_vocab_limit"] = False
    model, problem = _trained(texts(), vocab_size, options)
    if not problem:
        return SentencePieceTokenizer(model)
    advice = "; 256 of them are bytes, data.byte_fallback=false drops them" if byte_fallback else ""
    if found := re.search(r"too high.*<= (\d+)", problem):
        raise BadInput(
            f"{size_option} = {vocab_size}: the training text supports at most {found[1]}{advice}; "
            "data.hard_vocab_limit=false takes as many as it supports"
        )
    if found := re.search(r"required_chars\. \d+ vs (\d+)", problem):
        advice += "; for a very small corpus, data.tokenizer=words uses all its words"
        raise BadInput(f"{size_option} = {vocab_size}: the training text needs at least {found[1]}{advice}")
    raise BadInput(f"{size_option} = {vocab_size}: SentencePiece cannot train on this text: {problem}")


def _survey(texts: Iterable[str]) -> tuple[int, int]:
    """The number of different characters, counted up to `LARGE_ALPHABET`, and the bytes of the longest text."""
    characters: set[str] = set()
    longest = 0
    for text in texts:
        if len(characters) < LARGE_ALPHABET:
            characters.update(text)
        longest = max(longest, len(text.encode()))
    return len(characters), longest


def _trained(texts: Iterable[str], vocab_size: int, options: Mapping[str, Any]) -> tuple[bytes, str]:
    """The model, or SentencePiece's error message."""
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    try:
        SentencePieceTrainer.Train(
            sentence_iterator=(text.translate(RESERVED) for text in texts),
            model_writer=model,
            vocab_size=vocab_size,
            remove_extra_whitespaces=False,
            pad_id=PAD,
            bos_id=BOS,
            eos_id=EOS,
            unk_id=UNK,
            pad_piece=SPECIAL_PIECES[PAD],
            bos_piece=SPECIAL_PIECES[BOS],
            eos_piece=SPECIAL_PIECES[EOS],
            unk_piece=SPECIAL_PIECES[UNK],
            num_threads=16,  # not the number of cores: the sums of unigram, and so the model, depend on it
            minloglevel=2,
            **options,
        )
    except RuntimeError as error:
        return b"", str(error)
    return model.getvalue(), ""
