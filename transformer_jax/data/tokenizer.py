"""Text to token ids and back, by SentencePiece and other tokenizers: trained here on a text, or read from a file.

The special ids are defined only here.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import operator
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from transformer_jax.errors import BadInput
from transformer_jax.extras import require
from transformer_jax.files.digests import sha256
from transformer_jax.files.record import read_bytes, read_record, typed

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

PAD, BOS, EOS, UNK = range(4)
SPECIAL_PIECES = ("<pad>", "<bos>", "<eos>", "<unk>")

# Tokenizers whose vocabulary is every symbol of the training text.
SymbolKind = Literal["words", "characters", "characters_and_tags", "letters_and_tags"]

# Marian's special tokens with our ids of the same meaning; see MarianTokenizer.
MARIAN_SPECIAL = {"<pad>": BOS, "</s>": EOS, "<unk>": UNK}
# SentencePiece writes a space as this character, and reads the character as a space.
SPACE_MARK = "\u2581"
# A text with fewer different characters has an alphabet, and a token for each of its letters.
LARGE_ALPHABET = 1000
# SentencePiece skips longer sentences, unless it is given another limit, which is at most this one.
USUAL_BYTES, MOST_BYTES = 4192, 1 << 30
# Characters with a special meaning to SentencePiece's trainer, which skips sentences that have some of them.
RESERVED = str.maketrans(dict.fromkeys("\t\n\r\0\u2585" + SPACE_MARK, " "))
# A letter that no text to train on has, and so no vocabulary. Normalizers remove what is no letter.
RARE = "\U00012345"


class Tokenizer(ABC):
    """The interface of every tokenizer. No method adds a special token; decoding omits <pad>, <bos> and <eos>."""

    suffix = ".json"  # of its file

    def __init__(self, ordinary: Sequence[str]):
        """`ordinary` are the texts of the tokens that follow the special ones."""
        self.all_pieces = (*SPECIAL_PIECES, *ordinary)
        self._ids = {piece: i for i, piece in enumerate(ordinary, start=len(SPECIAL_PIECES))}

    @property
    def vocab_size(self) -> int:
        """Ids are 0 to vocab_size - 1, including the special ids."""
        return len(self.all_pieces)

    @property
    def fingerprint(self) -> str:
        """Equal for tokenizers that do the same."""
        return sha256(self.serialized())

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Like `encode` of each, on all cores where that pays."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these tokens."""
        numbers = [operator.index(i) for i in ids]  # also JAX's
        if numbers and not 0 <= min(numbers) <= max(numbers) < self.vocab_size:
            raise ValueError(f"ids from {min(numbers)} to {max(numbers)}: must be between 0 and {self.vocab_size - 1}")
        return self._decoded([i for i in numbers if i not in (PAD, BOS, EOS)])

    @abstractmethod
    def _decoded(self, ids: list[int]) -> str: ...

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each token for display: "▁the" (▁ for a space), "<eos>", "<0xE2>" for a byte."""
        return [self.all_pieces[i] for i in ids]

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

    suffix = ".model"

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

    @property
    def scores(self) -> dict[str, float]:
        """The score of each piece that is not a byte: merges of BPE are made in its order; unigram's are logarithms."""
        ordinary = [i for i in self._theirs[len(SPECIAL_PIECES) :] if not self._processor.IsByte(i)]
        return {self._processor.IdToPiece(i): self._processor.GetScore(i) for i in ordinary}

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        encoded: list[list[int]] = self._processor.EncodeAsIds(list(texts))
        return encoded if self._same_ids else [[self._ours[i] for i in ids] for ids in encoded]

    def _decoded(self, ids: list[int]) -> str:
        return self._processor.DecodeIds([self._theirs[i] for i in ids])

    def serialized(self) -> bytes:
        return self._model


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

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        codes, rests = zip(*map(_language_code, texts), strict=True) if texts else ((), ())
        segmented = self._processor.EncodeAsPieces(list(rests))
        return [
            [self._ids.get(piece, UNK) for piece in (*code, *pieces)]
            for code, pieces in zip(codes, segmented, strict=True)
        ]

    def _decoded(self, ids: list[int]) -> str:
        """Unlike a SentencePieceTokenizer's, without a mark for <unk> and without spaces at the ends, as in Marian."""
        pieces = [self.all_pieces[i] for i in ids if i >= len(SPECIAL_PIECES)]
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
            self._tokenizer: Any = tokenizers.Tokenizer.from_str(content.decode())
            self._number(json.loads(content))
            problem = "" if self.encode(RARE) else "it drops characters that it does not know"
        except Exception as error:  # the package's own errors have no class
            problem = str(error)
        if problem:
            raise BadInput(
                f"{name}: is not a tokenizer.json that encodes every text, with an unk_token, byte_fallback or "
                f"ByteLevel: {problem}"
            )

    def _number(self, stored: dict[str, Any]) -> None:
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        if getattr(self._tokenizer.model, "dropout", None):
            self._tokenizer.model.dropout = None
        # The id of its token for what it does not know; None if it spells that in bytes.
        unk_token = stored["model"].get("unk_token")
        unknown = stored["model"].get("unk_id") if unk_token is None else self._tokenizer.token_to_id(unk_token)
        special = {token["content"] for token in stored.get("added_tokens") or () if token.get("special")}
        by_id = sorted(self._tokenizer.get_vocab().items(), key=operator.itemgetter(1))
        ordinary = {i: token for token, i in by_id if i != unknown and token not in special}
        super().__init__([*ordinary.values()])
        self._theirs = dict(enumerate(ordinary, start=len(SPECIAL_PIECES)))
        if unknown is not None:
            self._theirs[UNK] = unknown
        self._ours = {theirs: ours for ours, theirs in self._theirs.items()}

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [[self._ours.get(i, UNK) for i in each.ids] for each in encoded]

    def _decoded(self, ids: list[int]) -> str:
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
        if kind not in get_args(SymbolKind):
            raise ValueError(f"kind = {kind!r}: must be one of {', '.join(get_args(SymbolKind))}")
        super().__init__(symbols)
        self._kind = kind

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._ids.get(symbol, UNK) for symbol in split_symbols(text, self._kind)] for text in texts]

    def _decoded(self, ids: list[int]) -> str:
        text = (" " if self._kind == "words" else "").join(self.pieces(ids))
        return unicodedata.normalize("NFC", text) if self._kind == "letters_and_tags" else text

    def serialized(self) -> bytes:
        content = {"kind": self._kind, "symbols": self.all_pieces[len(SPECIAL_PIECES) :]}
        return json.dumps(content, ensure_ascii=False, indent=0).encode()


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a file that `save` wrote, any SentencePiece .model file, or a tokenizer.json of Hugging Face."""
    path = Path(path)
    if path.suffix != ".json":
        return SentencePieceTokenizer(read_bytes(path), str(path))
    stored = read_record(path)
    kind = stored.get("kind")
    if kind is None and isinstance(stored.get("model"), dict):
        return HuggingFaceTokenizer(read_bytes(path), str(path))
    if kind in get_args(SymbolKind) and isinstance(stored.get("symbols"), list):
        return SymbolTokenizer(cast(SymbolKind, kind), typed(stored["symbols"], list[str], path))
    if kind == "marian" and isinstance(stored.get("tokens"), list):
        with contextlib.suppress(KeyError, TypeError, ValueError):
            tokens = typed(stored["tokens"], list[str], path)
            return MarianTokenizer(base64.b64decode(stored["model"]), tokens, str(path))
    raise BadInput(f"{path}: is not a tokenizer of this library")


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


# Vocabularies.


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
    from sentencepiece import SentencePieceTrainer

    characters, longest = _survey(texts())
    options: dict[str, Any] = {
        "model_type": kind,
        "normalization_rule_name": normalization,
        "byte_fallback": byte_fallback,
        "character_coverage": character_coverage if characters >= LARGE_ALPHABET else 1.0,
    }
    for i, piece in enumerate(SPECIAL_PIECES):
        name = piece.strip("<>")
        options |= {f"{name}_id": i, f"{name}_piece": piece}
    # The model contains the options that it was trained with: these are left out where they make no difference.
    if longest > USUAL_BYTES:
        options["max_sentence_length"] = MOST_BYTES
    if not hard_vocab_limit:
        options["hard_vocab_limit"] = False
    model = io.BytesIO()
    try:
        SentencePieceTrainer.Train(
            sentence_iterator=(text.translate(RESERVED) for text in texts()),
            model_writer=model,
            vocab_size=vocab_size,
            remove_extra_whitespaces=False,
            num_threads=16,  # not the number of cores: the sums of unigram, and so the model, depend on it
            minloglevel=2,
            **options,
        )
    except RuntimeError as error:
        problem = str(error).rpartition("] ")[2]  # behind the place in its source
        raise BadInput(
            f"{size_option} = {vocab_size}: SentencePiece says: {problem} Too large: data.hard_vocab_limit=false takes "
            "all tokens that the text supports. If it is too small, data.byte_fallback=false saves the 256 bytes"
        ) from None
    return SentencePieceTokenizer(model.getvalue())


def _survey(texts: Iterable[str]) -> tuple[int, int]:
    """The number of different characters, counted up to `LARGE_ALPHABET`, and the bytes of the longest text."""
    characters: set[str] = set()
    longest = 0
    for text in texts:
        if len(characters) < LARGE_ALPHABET:
            characters.update(text)
        longest = max(longest, len(text.encode()))
    return len(characters), longest
