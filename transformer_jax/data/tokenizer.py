"""Text to token ids and back: SentencePiece, Marian, words, characters. The special ids live here alone."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from transformer_jax.errors import BadInput
from transformer_jax.files.record import read_bytes, read_record

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

PAD, BOS, EOS, UNK = range(4)
SPECIAL_PIECES = ("<pad>", "<bos>", "<eos>", "<unk>")

# Marian's special tokens, by our ids of the same meaning; see MarianTokenizer.
MARIAN_SPECIAL = {"<pad>": BOS, "</s>": EOS, "<unk>": UNK}

# SentencePiece writes a space as this character, so it cannot tell the two apart in a text.
SPACE_MARK = "\u2581"


class Tokenizer(Protocol):
    """What every tokenizer can do. No method adds a special token; decoding leaves out <pad>, <bos> and <eos>."""

    @property
    def vocab_size(self) -> int:
        """Ids are 0 to vocab_size - 1, the special ids among them."""

    @property
    def fingerprint(self) -> str:
        """Equal for tokenizers that do the same."""

    def encode(self, text: str) -> list[int]: ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Like `encode` of each, on all cores where that pays."""

    def decode(self, ids: Iterable[int]) -> str: ...

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each token, as it may be shown: "▁the" (▁ for a space), "<eos>", "<0xE2>" for a byte."""

    def serialized(self) -> bytes:
        """All there is to it; what `save` writes."""

    def save(self, path: str | Path) -> None: ...


class SentencePieceTokenizer:
    """A SentencePiece model under our special ids.

    Models trained by others have their special pieces elsewhere or lack some. So our ids are the four special ones,
    and behind them the model's other pieces in its own order; for a model trained here both numberings are the same.
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
        self._pieces = [*SPECIAL_PIECES, *(self._processor.IdToPiece(i) for i in ordinary)]
        self._space_mark_bytes = [
            self._ours[self._processor.PieceToId(f"<0x{byte:02X}>")] for byte in SPACE_MARK.encode()
        ]

    @property
    def vocab_size(self) -> int:
        return len(self._theirs)

    @property
    def fingerprint(self) -> str:
        return _fingerprint(self._model)

    def encode(self, text: str) -> list[int]:
        return self._encode([text], num_threads=1)[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._encode(list(texts), num_threads=available_cores())

    def decode(self, ids: Iterable[int]) -> str:
        return self._processor.DecodeIds([self._theirs[i] for i in ids if i not in (PAD, BOS, EOS)])

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each token, as it may be shown: "▁the" (▁ for a space), "<eos>"."""
        return [self._pieces[i] for i in ids]

    def serialized(self) -> bytes:
        return self._model

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(self._model)

    def _encode(self, texts: list[str], num_threads: int) -> list[list[int]]:
        encoded = self._processor.EncodeAsIds(texts, num_threads=num_threads)
        if not self._same_ids:
            encoded = [[self._ours[i] for i in ids] for ids in encoded]
        if UNK not in self._space_mark_bytes:  # that is: if the model can spell bytes
            for index, text in enumerate(texts):
                if SPACE_MARK in text:
                    encoded[index] = self._encode_space_marks(text)
        return encoded

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


class MarianTokenizer:
    """SentencePiece cuts the text, and a list of tokens numbers the pieces, as Marian and opus-mt have it.

    The list holds what source and target can be cut into, and tokens that no cutting yields: a text may begin with
    one of `>>xx<<`, which asks for a target language. Our ids are the four special ones, and behind them the list's
    other tokens in its own order. Its `</s>` is our <eos>, its `<unk>` our <unk>. Its `<pad>`, with which Marian's
    targets begin, is our <bos>: as padding it is never looked at, so that our <pad> can be a token the list lacks.
    """

    def __init__(self, model: bytes, tokens: Sequence[str], name: str = "the SentencePiece model"):
        self._model, self.tokens = model, tuple(tokens)
        self._processor = _processor(model, name)
        ordinary = [token for token in self.tokens if token not in MARIAN_SPECIAL]
        self._ids = {token: i for i, token in enumerate(ordinary, start=len(SPECIAL_PIECES))}
        self._pieces = [*SPECIAL_PIECES, *ordinary]

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    @property
    def fingerprint(self) -> str:
        return _fingerprint(self.serialized())

    @property
    def model(self) -> bytes:
        """The SentencePiece model."""
        return self._model

    @property
    def our_ids(self) -> list[int]:
        """Our id of each token of the list."""
        return [MARIAN_SPECIAL.get(token) or self._ids[token] for token in self.tokens]

    @property
    def known_share(self) -> float:
        """How much of what the model can cut a text into the list has: nearly all, if the two belong together."""
        processor = self._processor
        size = range(processor.GetPieceSize())
        pieces = [processor.IdToPiece(i) for i in size if not (processor.IsControl(i) or processor.IsUnknown(i))]
        return sum(piece in self._ids for piece in pieces) / max(len(pieces), 1)

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        codes, rests = zip(*map(_language_code, texts), strict=True) if texts else ((), ())
        cut = self._processor.EncodeAsPieces(list(rests), num_threads=available_cores() if len(texts) > 1 else 1)
        return [
            [self._ids.get(piece, UNK) for piece in (*code, *pieces)] for code, pieces in zip(codes, cut, strict=True)
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """Unlike a SentencePieceTokenizer's, without a mark for <unk> and without spaces at the ends: as Marian's."""
        pieces = [self._pieces[i] for i in ids if i >= len(SPECIAL_PIECES)]
        return self._processor.DecodePieces(pieces).replace(SPACE_MARK, " ").strip()

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each token, as it may be shown: "▁the" (▁ for a space), "<eos>"."""
        return [self._pieces[i] for i in ids]

    def serialized(self) -> bytes:
        content = {"kind": "marian", "model": base64.b64encode(self._model).decode(), "tokens": self.tokens}
        return json.dumps(content, ensure_ascii=False, indent=0).encode()

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(self.serialized())


class SymbolTokenizer:
    """A token for every word (what lies between single spaces) or every character of the training text."""

    def __init__(self, kind: Literal["words", "characters"], symbols: Sequence[str]):
        self._kind = kind
        self._symbols = tuple(symbols)
        self._ids = {symbol: i for i, symbol in enumerate(self._symbols, start=len(SPECIAL_PIECES))}

    @property
    def vocab_size(self) -> int:
        return len(SPECIAL_PIECES) + len(self._symbols)

    @property
    def fingerprint(self) -> str:
        return _fingerprint(self.serialized())

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(symbol, UNK) for symbol in _symbols(text, self._kind)]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        return (" " if self._kind == "words" else "").join(
            self.pieces(i for i in ids if i not in (PAD, BOS, EOS)),
        )

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The word or character of each token, or the name of a special one: "<eos>"."""
        shift = len(SPECIAL_PIECES)
        return [self._symbols[i - shift] if i >= shift else SPECIAL_PIECES[i] for i in ids]

    def serialized(self) -> bytes:
        content = {"kind": self._kind, "symbols": self._symbols}
        return json.dumps(content, ensure_ascii=False, indent=0).encode()

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(self.serialized())


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a file that `save` wrote, or in anybody's SentencePiece .model file."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"{path}: there is no such tokenizer file")
    if path.suffix != ".json":
        return SentencePieceTokenizer(read_bytes(path), str(path))
    stored = read_record(path)
    kind, model = stored.get("kind"), stored.get("model")
    symbols = stored.get("tokens" if kind == "marian" else "symbols")
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        raise BadInput(f"{path}: is no tokenizer of this library")
    if kind == "marian" and isinstance(model, str):
        return MarianTokenizer(_from_base64(model, path), symbols, str(path))
    if kind == "words" or kind == "characters":
        return SymbolTokenizer(kind, symbols)
    raise BadInput(f"{path}: is no tokenizer of this library")


def _from_base64(text: str, path: Path) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise BadInput(f"{path}: its model is no base64") from None


def train_symbols(texts: Iterable[str], kind: Literal["words", "characters"]) -> SymbolTokenizer:
    """A tokenizer with every symbol of the texts, the most frequent first, ties in the order of the alphabet."""
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

    Spaces are kept as they are: SentencePiece's default of removing superfluous ones loses what the author wrote.
    """
    options = {
        "model_type": kind,
        "normalization_rule_name": normalization,
        "byte_fallback": byte_fallback,
        "character_coverage": character_coverage,
    }
    model, problem = _trained(texts(), vocab_size, options)
    if found := re.search(r"too high.*<= (\d+)", problem):
        # Of too small a size the complaint names the least that is possible; of so little text it costs nothing.
        fewest = len(SPECIAL_PIECES) + 1
        _, least = _trained(texts(), fewest, options)
        problem = f"the training text supports between {_required(least) or fewest} and {found[1]}"
    elif required := _required(problem):
        problem = f"the training text needs at least {required}"
    elif problem:
        raise BadInput(f"{size_option} = {vocab_size}: SentencePiece cannot train on this text: {problem}")
    if problem:
        fewer = "; 256 of them are bytes, data.byte_fallback=false does without" if byte_fallback else ""
        raise BadInput(
            f"{size_option} = {vocab_size}: {problem}{fewer}; for a very small corpus, data.tokenizer=words takes the "
            "words there are"
        )
    return SentencePieceTokenizer(model)


def _trained(texts: Iterable[str], vocab_size: int, options: Mapping[str, Any]) -> tuple[bytes, str]:
    """The model, or SentencePiece's complaint."""
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
            num_threads=16,  # not the number of cores: unigram's sums, and so the model, depend on it
            minloglevel=2,
            **options,
        )
    except RuntimeError as error:
        return b"", str(error)
    return model.getvalue(), ""


def _required(complaint: str) -> str | None:
    """How many tokens the special ones, the bytes and the characters of the text come to, if it complains of that."""
    found = re.search(r"required_chars\. \d+ vs (\d+)", complaint)
    return found[1] if found else None


def available_cores() -> int:
    """The cores that this process may use, which on a shared machine are fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor(model: bytes, name: str) -> SentencePieceProcessor:
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
        for i in range(processor.GetPieceSize()):  # one that is no text is told of only when it is asked for
            processor.IdToPiece(i)
    except (RuntimeError, TypeError, ValueError, OSError):
        raise BadInput(f"{name}: is no SentencePiece model") from None
    return processor


def _language_code(text: str) -> tuple[tuple[str, ...], str]:
    """The `>>xx<<` that a text begins with, and the rest."""
    code, end, rest = text.partition("<<")
    return ((code + end,), rest) if text.startswith(">>") and end else ((), text)


def _symbols(text: str, kind: str) -> Sequence[str]:
    if kind == "characters" or not text:
        return text
    return text.split(" ")


def _trainable(texts: Iterable[str]) -> Iterator[str]:
    """Texts without the characters that have a meaning of their own to SentencePiece's trainer."""
    meanings = str.maketrans(dict.fromkeys("\t\n\r\0" + SPACE_MARK, " "))
    return (text.translate(meanings) for text in texts)


def _fingerprint(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
