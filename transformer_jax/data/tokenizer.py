"""Text to token ids and back, by SentencePiece and other tokenizers. The special ids are defined only here."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from transformer_jax.data.hugging_face import TokenizerFile
from transformer_jax.errors import BadInput
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


class UnsupportedSize(BadInput):
    """A vocabulary that a text is too small for: SentencePiece could make one of `least` to `most` tokens."""

    def __init__(self, message: str, least: int, most: int):
        super().__init__(message)
        self.least, self.most = least, most


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
    def our_ids(self) -> list[int]:
        """Our id of each token of the list."""
        return [MARIAN_SPECIAL.get(token) or self._ids[token] for token in self.tokens]

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
    """A tokenizer.json. Our ids are the four special ones, followed by its own without special ones, in its order."""

    def __init__(self, content: bytes, name: str = "tokenizer.json"):
        self._content, self._file = content, TokenizerFile(content, name)
        super().__init__([*self._file.tokens.values()])
        self._theirs = dict(enumerate(self._file.tokens, start=len(SPECIAL_PIECES)))
        if self._file.unknown is not None:
            self._theirs[UNK] = self._file.unknown
        self._ours = {theirs: ours for ours, theirs in self._theirs.items()}

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._ours.get(i, UNK) for i in ids] for ids in self._file.encode_batch(texts)]

    def decode(self, ids: Iterable[int]) -> str:
        return self._file.decode([self._theirs[i] for i in ids if i in self._theirs])

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
        return [[self._ids.get(symbol, UNK) for symbol in _symbols(text, self._kind)] for text in texts]

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


def train_symbols(texts: Iterable[str], kind: SymbolKind) -> SymbolTokenizer:
    """A tokenizer with every symbol of the texts, the most frequent first, ties in alphabetical order."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_symbols(text, kind))
    return SymbolTokenizer(kind, sorted(counts, key=lambda symbol: (-counts[symbol], symbol)))


def train_sentencepiece(
    texts: Callable[[], Iterable[str]],
    kind: Literal["bpe", "unigram"],
    vocab_size: int,
    *,
    normalization: str = "identity",
    byte_fallback: bool = True,
    character_coverage: float = 0.9995,
    size_option: str = "vocab_size",
) -> SentencePieceTokenizer:
    """A SentencePiece model of exactly `vocab_size` tokens; the same texts give the same model.

    Spaces are kept as they are: SentencePiece's default, removing superfluous ones, changes the text.
    """
    options = {
        "model_type": kind,
        "normalization_rule_name": normalization,
        "byte_fallback": byte_fallback,
        "character_coverage": character_coverage,
    }
    model, problem = _trained(texts(), vocab_size, options)
    if not problem:
        return SentencePieceTokenizer(model)
    fewer = "; 256 of them are bytes, data.byte_fallback=false drops them" if byte_fallback else ""
    advice = f"{fewer}; for a very small corpus, data.tokenizer=words uses all its words"
    if found := re.search(r"too high.*<= (\d+)", problem):
        # The error for too small a size names the smallest that is possible; with so little text it costs nothing.
        fewest = len(SPECIAL_PIECES) + 1
        least, most = int(_required(_trained(texts(), fewest, options)[1]) or fewest), int(found[1])
        raise UnsupportedSize(
            f"{size_option} = {vocab_size}: the training text supports between {least} and {most}{advice}", least, most
        )
    if required := _required(problem):
        raise BadInput(f"{size_option} = {vocab_size}: the training text needs at least {required}{advice}")
    raise BadInput(f"{size_option} = {vocab_size}: SentencePiece cannot train on this text: {problem}")


def _trained(texts: Iterable[str], vocab_size: int, options: Mapping[str, Any]) -> tuple[bytes, str]:
    """The model, or SentencePiece's error message."""
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    try:
        SentencePieceTrainer.Train(
            sentence_iterator=_trainable(texts),
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


def _required(message: str) -> str | None:
    """The number of special tokens, bytes and characters of the text, if the message is about it."""
    found = re.search(r"required_chars\. \d+ vs (\d+)", message)
    return found[1] if found else None


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


def _symbols(text: str, kind: str) -> Sequence[str]:
    if kind == "characters" or not text:
        return text
    if kind in ("characters_and_tags", "letters_and_tags"):
        word, tab, tags = text.partition("\t")
        if kind == "letters_and_tags":
            word, tags = unicodedata.normalize("NFD", word), unicodedata.normalize("NFC", tags)
        return [*word, *re.findall(r"[\t;][^\t;]*", tab + tags)]
    return text.split(" ")


def _trainable(texts: Iterable[str]) -> Iterator[str]:
    """Texts without the characters that have a special meaning to SentencePiece's trainer."""
    replaced = str.maketrans(dict.fromkeys("\t\n\r\0" + SPACE_MARK, " "))
    return (text.translate(replaced) for text in texts)
