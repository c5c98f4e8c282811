"""The tokenizer files of a Marian folder: two SentencePiece models, and one or two lists of tokens."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.data.tokenizer import (
    MARIAN_SPECIAL,
    SPECIAL_PIECES,
    MarianTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
)
from transformer_jax.errors import BadInput
from transformer_jax.files.record import read_bytes, read_object, typed
from transformer_jax.interop.marian_config import Fields, Marian
from transformer_jax.interop.marian_weights import Ids

TOKENIZER_CONFIG = "tokenizer_config.json"
MODELS = {"source": "source.spm", "target": "target.spm"}
LISTS = {"source": "vocab.json", "target": "target_vocab.json"}
SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
LONGEST_TEXT = 512  # the default: what the models were trained on


class Tokens(NamedTuple):
    """The tokens of both sides in the order of their numbers, and the other content of a folder about texts."""

    source: list[str]
    target: list[str]
    languages: tuple[str, str]
    longest: int  # maximum number of tokens of a text

    @property
    def ids(self) -> Ids:
        return Ids(our_ids(self.source), our_ids(self.target))


def our_ids(tokens: Sequence[str]) -> np.ndarray:
    """Our id of each Marian token: this library's for special tokens, numbers in their order for the others."""
    ordinary = itertools.count(len(SPECIAL_PIECES))
    return np.array([MARIAN_SPECIAL[token] if token in MARIAN_SPECIAL else next(ordinary) for token in tokens])


def read_tokens(directory: Path, marian: Marian) -> Tokens:
    """The lists of tokens, which need no tokenizer, checked against the config of the model."""
    path = directory / TOKENIZER_CONFIG
    fields = Fields(path, read_object(path) if path.exists() else {})
    separate = fields.get("separate_vocabs", False)
    languages = str(fields.get("source_lang", "")), str(fields.get("target_lang", ""))
    longest = fields.number("model_max_length", LONGEST_TEXT)  # 1e30 means none
    if not longest >= 1:  # or NaN, which json reads
        raise fields.problem("model_max_length", "must be at least 1")
    if separate and marian.model.tie_embeddings == "all":
        raise BadInput(f"{path}: separate_vocabs = true, but in config.json both sides share their embeddings")
    source = _tokens(directory / LISTS["source"], marian.source_tokens, marian)
    target = _tokens(directory / LISTS["target" if separate else "source"], marian.target_tokens, marian)
    return Tokens(source, target, languages, int(min(longest, marian.rows)))


def read_tokenizers(directory: Path, tokens: Tokens) -> tuple[MarianTokenizer, MarianTokenizer]:
    """The tokenizers of both sides. A shared vocabulary has one list, but still two SentencePiece models."""
    source, target = (directory / MODELS[side] for side in ("source", "target"))
    return (
        MarianTokenizer(read_bytes(source), tokens.source, str(source)),
        MarianTokenizer(read_bytes(target), tokens.target, str(target)),
    )


def vocabularies_of(source: Tokenizer, target: Tokenizer) -> tuple[dict[str, bytes], Ids, list[str]]:
    """The files of two SentencePiece tokenizers, the ids of their tokens in this library, and the source tokens."""
    files, lists = {}, {}
    for side, tokenizer in (("source", source), ("target", target)):
        files[MODELS[side]], lists[side] = _model_and_list(tokenizer)
    shared = lists["source"] == lists["target"]
    if not shared and len(lists["source"]) != len(lists["target"]):
        # Both must have the same number for <pad>, which config.json has once.
        for side, tokens in lists.items():
            ordinary = [token for token in tokens if token not in MARIAN_SPECIAL]
            lists[side] = ["</s>", "<unk>", "<pad>", *ordinary]
    for side, tokens in list(lists.items())[: 1 if shared else 2]:
        numbers = {token: number for number, token in enumerate(tokens)}
        files[LISTS[side]] = (json.dumps(numbers, ensure_ascii=False, indent=2) + "\n").encode()
    return files, Ids(our_ids(lists["source"]), our_ids(lists["target"])), lists["source"]


def tokenizer_json(separate: bool, languages: tuple[str, str], longest: int) -> dict[str, Any]:
    """The content of tokenizer_config.json."""
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": languages[0],
        "target_lang": languages[1],
        **SPECIAL,
        "model_max_length": longest,
        "separate_vocabs": separate,
        "sp_model_kwargs": {},
    }


def _tokens(path: Path, size: int, marian: Marian) -> list[str]:
    """The tokens in the order of their numbers, each number from 0 exactly once."""
    numbers = typed(read_object(path), dict[str, int], path)
    if len(numbers) != size or set(numbers.values()) != set(range(size)):
        raise BadInput(f"{path}: must number {size:,} tokens from 0, each once, as in config.json")
    for token, number in {"<pad>": marian.pad_id, "</s>": marian.eos_id, "<unk>": numbers.get("<unk>", -1)}.items():
        if numbers.get(token) != number:
            raise BadInput(f"{path}: {token} has the number {numbers.get(token)}, and {number} in config.json")
    return sorted(numbers, key=numbers.__getitem__)


def _model_and_list(tokenizer: Tokenizer) -> tuple[bytes, list[str]]:
    """A tokenizer's SentencePiece model, and its tokens in Marian's order, with Marian's special tokens."""
    if isinstance(tokenizer, MarianTokenizer):
        return tokenizer.model, list(tokenizer.tokens)
    if not isinstance(tokenizer, SentencePieceTokenizer):
        raise BadInput("the tokenizer of this run is not a SentencePiece model (data.tokenizer), which Marian needs")
    ordinary = tokenizer.pieces(range(len(SPECIAL_PIECES), tokenizer.vocab_size))
    return tokenizer.serialized(), ["</s>", "<unk>", *ordinary, "<pad>"]
