"""Text to token ids and back, by SentencePiece and other tokenizers. The special ids are defined only here."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from transformer_jax.errors import BadInput
from transformer_jax.extras import require
from transformer_jax.files.record import read_bytes, read_record

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

PAD, BOS, EOS, UNK = range(4)
SPECIAL_PIECES = ("<pad>", "<bos>", "<eos>", "<unk>")

# Tokenizers whose vocabulary is every symbol of the training text.
SymbolKind = Literal["words", "characters", "characters_and_tags", "letters_and_tags"]

# Marian's special tokens with our ids of the same meaning; see MarianTokenizer.
MARIAN_SPECIAL = {"<pad>": BOS, "</s>": EOS, "<unk>": UNK}

# SentencePiece writes a space as this character, so it cannot distinguish the two in a text.
SPACE_MARK = "\u2581"

# A character that no text to train on has, and so no vocabulary.
RARE = "\U0010fffd"


class Tokenizer(ABC):
    """The interface of every tokenizer. No method adds a special token; decoding omits <pad>, <bos> and <eos>."""

    def __init__(self, ordinary: Sequence[str]):
        """`ordinary` are the texts of the tokens that follow the special ones."""
        self._pieces = (*SPECIAL_PIECES, *ordinary)
        self._ids = {piece: i for i, piece in enumerate(ordinary, start=len(SPECIAL_PIECES))}

    @property
    def vocab_size(self) -> int:
        """Ids are 0 to vocab_size - 1, including the special ids."""
        return len(self._pieces)

    @property
    def fingerprint(self) -> str:
        """Equal for tokenizers that do the same."""
        return hashlib.sha256(self.serialized()).hexdigest()

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Like `encode` of each, on all cores where that pays."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str: ...

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each token for display: "▁the" (▁ for a space), "<eos>", "<0xE2>" for a byte."""
        return [self._pieces[i] for i in ids]

    @abstractmethod
    def serialized(self) -> bytes:
        """The whole tokenizer, as `save` writes it."""

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(self.serialized())


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model under our special ids.

    Models trained by others have other special pieces, elsewhere. So our ids are the four special ones, followed by the
    model's other pieces in its order; for a model trained here both numberings are the same.
    """

    def __init__(self, model: bytes, name: str = "the SentencePiece model"):
        self._model = model
        self._processor = _processor(model, name)
        size = self._processor.GetPieceSize()
        special = [i for i in range(size) if self._processor.IsControl(i) or self._processor.IsUnknown(i)]
        ordinary = sorted(set(range(size)) - set(special))
        self._theirs = [-1, -1, -1, self._processor.unk_id(), *ordinary]
        self._ours = [UNK] * size
        for ours, theirs in enumerate(ordinary, start=len(SPECIAL_PIECES)):
            self._ours[theirs] = ours
        self._same_ids = special == list(range(len(SPECIAL_PIECES))) and self._processor.unk_id() == UNK
        super().__init__([self._processor.IdToPiece(i) for i in ordinary])
        self._space_mark_bytes = self._bytes_of(SPACE_MARK)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        encoded = self._processor.EncodeAsIds(list(texts), num_threads=_threads(texts))
        if not self._same_ids:
            encoded = [[self._ours[i] for i in ids] for ids in encoded]
        if UNK not in self._space_mark_bytes:  # that is: if the model can spell bytes
            for index, text in enumerate(texts):
                if SPACE_MARK in text:
                    encoded[index] = self._encode_space_marks(text)
        return encoded

    def decode(self, ids: Iterable[int]) -> str:
        return self._processor.DecodeIds([self._theirs[i] for i in ids if i not in (PAD, BOS, EOS)])

    def serialized(self) -> bytes:
        return self._model

    def _encode_space_marks(self, text: str) -> list[int]:
        """Encodes a text that contains the character which SentencePiece writes for a space.

        Each one is replaced by a character that the model can only spell as bytes, and those bytes by the right ones.
        """
        stand_in = next(c for c in map(chr, range(0x10FFFD, 0, -1)) if c not in text and self._spelled_as_bytes(c))
        stand_in_bytes = self._bytes_of(stand_in)
        ids = self.encode(text.replace(SPACE_MARK, stand_in))
        result: list[int] = []
        position = 0
        while position < len(ids):
            if ids[position : position + len(stand_in_bytes)] == stand_in_bytes:
                result += self._space_mark_bytes
                position += len(stand_in_bytes)
            else:
                result.append(ids[position])
                position += 1
        return result

    def _spelled_as_bytes(self, character: str) -> bool:
        return self.encode("a" + character)[-4:] == self._bytes_of(character)

    def _bytes_of(self, text: str) -> list[int]:
        return [self._ours[self._processor.PieceToId(f"<0x{byte:02X}>")] for byte in text.encode()]


class MarianTokenizer(Tokenizer):
    """A SentencePiece model that segments the text, and a list of tokens that numbers the pieces, as in opus-mt.

    The list holds the pieces of source and target, and tokens that are never pieces: a text may begin with one of
    `>>xx<<`, which selects a target language. Our ids are the four special ones, followed by the list's other tokens in
    its order. Its `</s>` is our <eos>, its `<unk>` our <unk>. Its `<pad>`, with which Marian's targets begin, is our
    <bos>; as padding it is never attended to, so our <pad> can be a token that the list lacks.
    """

    def __init__(self, model: bytes, tokens: Sequence[str], name: str = "the SentencePiece model"):
        self.model, self.tokens = model, tuple(tokens)
        self._processor = _processor(model, name)
        super().__init__([token for token in self.tokens if token not in MARIAN_SPECIAL])

    @property
    def known_share(self) -> float:
        """The share of the model's pieces that the list has: nearly all, if the two belong together."""
        processor = self._processor
        size = range(processor.GetPieceSize())
        pieces = [processor.IdToPiece(i) for i in size if not (processor.IsControl(i) or processor.IsUnknown(i))]
        return sum(piece in self._ids for piece in pieces) / max(len(pieces), 1)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        codes, rests = zip(*map(_language_code, texts), strict=True) if texts else ((), ())
        segmented = self._processor.EncodeAsPieces(list(rests), num_threads=_threads(texts))
        return [
            [self._ids.get(piece, UNK) for piece in (*code, *pieces)]
            for code, pieces in zip(codes, segmented, strict=True)
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """Unlike a SentencePieceTokenizer's, without a mark for <unk> and without spaces at the ends, as in Marian."""
        pieces = [self._pieces[i] for i in ids if i >= len(SPECIAL_PIECES)]
        return self._processor.DecodePieces(pieces).replace(SPACE_MARK, " ").strip()

    def serialized(self) -> bytes:
        content = {"kind": "marian", "model": base64.b64encode(self.model).decode(), "tokens": self.tokens}
        return json.dumps(content, ensure_ascii=False, indent=0).encode()


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer.json. Our ids are the four special ones, followed by its own without special ones, in its order.

    A text that contains the names of special tokens is encoded like any text. The file's template that adds special
    tokens, truncation, padding and dropout of merges are turned off.
    """

    def __init__(self, content: bytes, name: str = "tokenizer.json"):
        require(f"{name}: a tokenizer.json", "tokenizers")
        import tokenizers

        self._content = content
        try:
            stored = json.loads(content)
            self._tokenizer: Any = tokenizers.Tokenizer.from_str(content.decode())
        except Exception as error:  # its own errors have no class
            raise BadInput(f"{name}: is not a tokenizer.json that tokenizers can read: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        if getattr(self._tokenizer.model, "dropout", None):
            self._tokenizer.model.dropout = None
        # The id of its token for what it does not know; None if it spells that in bytes.
        unk_token = stored["model"].get("unk_token")
        unknown = stored["model"].get("unk_id") if unk_token is None else self._tokenizer.token_to_id(unk_token)
        special = {token["content"] for token in stored.get("added_tokens") or () if token.get("special")}
        by_id = sorted(self._tokenizer.get_vocab().items(), key=itemgetter(1))
        ordinary = {i: token for token, i in by_id if i != unknown and token not in special}
        if not ordinary:
            raise BadInput(f"{name}: has no tokens besides special ones")
        super().__init__([*ordinary.values()])
        self._theirs = dict(enumerate(ordinary, start=len(SPECIAL_PIECES)))
        if unknown is not None:
            self._theirs[UNK] = unknown
        self._ours = {theirs: ours for ours, theirs in self._theirs.items()}
        self._check_rare_characters(name)

    def _check_rare_characters(self, name: str) -> None:
        try:
            [found] = self.encode_batch([RARE])
        except Exception as error:
            raise BadInput(f"{name}: cannot encode a character that it does not know: {error}") from None
        if not found:
            raise BadInput(
                f"{name}: drops characters that it does not know: it needs an unk_token, byte_fallback or ByteLevel"
            )

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [[self._ours.get(i, UNK) for i in each.ids] for each in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        theirs = [self._theirs[i] for i in ids if i in self._theirs]
        return self._tokenizer.decode(theirs, skip_special_tokens=False)

    def serialized(self) -> bytes:
        return self._content


class SymbolTokenizer(Tokenizer):
    """A token for every word (the text between single spaces) or every character of the training text.

    After a tab, `characters_and_tags` has tags, each a token: "walk\\tV;PST" is w, a, l, k, "\\tV" and ";PST".
    `letters_and_tags` decomposes characters first (NFD): a syllable of Hangul into its letters, an accented letter into
    the letter and the accent. What it decodes is composed (NFC).
    """

    def __init__(self, kind: SymbolKind, symbols: Sequence[str]):
        super().__init__(symbols)
        self._kind = kind

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._ids.get(symbol, UNK) for symbol in split_symbols(text, self._kind)] for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        text = (" " if self._kind == "words" else "").join(self.pieces(i for i in ids if i not in (PAD, BOS, EOS)))
        return unicodedata.normalize("NFC", text) if self._kind == "letters_and_tags" else text

    def serialized(self) -> bytes:
        content = {"kind": self._kind, "symbols": self._pieces[len(SPECIAL_PIECES) :]}
        return json.dumps(content, ensure_ascii=False, indent=0).encode()


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a file that `save` wrote, any SentencePiece .model file, or a tokenizer.json of Hugging Face."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"{path}: there is no such tokenizer file")
    if path.suffix != ".json":
        return SentencePieceTokenizer(read_bytes(path), str(path))
    stored = read_record(path)
    kind, model = stored.get("kind"), stored.get("model")
    if kind is None and isinstance(model, dict):
        return HuggingFaceTokenizer(read_bytes(path), str(path))
    symbols = stored.get("tokens" if kind == "marian" else "symbols")
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        raise BadInput(f"{path}: is not a tokenizer of this library")
    if kind == "marian" and isinstance(model, str):
        try:
            content = base64.b64decode(model, validate=True)
        except ValueError:  # binascii.Error is one; other characters than ASCII raise another
            raise BadInput(f"{path}: its model is not base64") from None
        return MarianTokenizer(content, symbols, str(path))
    if kind in get_args(SymbolKind):
        return SymbolTokenizer(cast(SymbolKind, kind), symbols)
    raise BadInput(f"{path}: is not a tokenizer of this library")


def _threads(texts: Sequence[str]) -> int:
    """The cores that this process may use, which on a shared machine are fewer than there are; 1 for a single text."""
    if len(texts) <= 1:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor(model: bytes, name: str) -> SentencePieceProcessor:
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
        for i in range(processor.GetPieceSize()):  # an invalid one is reported only when it is read
            processor.IdToPiece(i)
    except (RuntimeError, TypeError, ValueError, OSError):
        raise BadInput(f"{name}: is not a SentencePiece model") from None
    return processor


def _language_code(text: str) -> tuple[tuple[str, ...], str]:
    """The `>>xx<<` that a text begins with, and the rest."""
    code, end, rest = text.partition("<<")
    return ((code + end,), rest) if text.startswith(">>") and end else ((), text)


def split_symbols(text: str, kind: str) -> Sequence[str]:
    """The words, characters or tags of a text, each of which is a token."""
    if kind == "characters" or not text:
        return text
    if kind in ("characters_and_tags", "letters_and_tags"):
        word, tab, tags = text.partition("\t")
        if kind == "letters_and_tags":
            word, tags = unicodedata.normalize("NFD", word), unicodedata.normalize("NFC", tags)
        return [*word, *re.findall(r"[\t;][^\t;]*", tab + tags)]
    return text.split(" ")
