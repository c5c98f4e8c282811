"""The tokenizer.json files of Hugging Face's `tokenizers`, under our special ids."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from transformer_jax.data.tokenizer import BOS, EOS, PAD, SPECIAL_PIECES, UNK, Tokenizer
from transformer_jax.errors import BadInput
from transformer_jax.extras import MissingPackages

# A character that no text to train on has, and so no vocabulary.
RARE = "\U0010fffd"


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer.json. Our ids are the four special ones, followed by its tokens that are not special, in its order.

    Its own special tokens (`<s>`, `[CLS]`) are left out: batches add ours, and where a text contains their names it is
    encoded as any text. Its template for special tokens, truncation, padding and dropout of merges are turned off.
    """

    def __init__(self, content: bytes, name: str = "tokenizer.json"):
        try:
            import tokenizers
        except ImportError:
            command = "pip install 'transformer_jax[tokenizers]'"
            raise MissingPackages(f"{name}: a tokenizer.json needs the package tokenizers: {command}") from None
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
        unknown = stored["model"].get("unk_token")
        unknown_id = stored["model"].get("unk_id") if unknown is None else self._tokenizer.token_to_id(unknown)
        special = {token["content"] for token in stored.get("added_tokens") or () if token.get("special")}
        by_id = {
            i: token for token, i in self._tokenizer.get_vocab().items() if token not in special and i != unknown_id
        }
        if not by_id:
            raise BadInput(f"{name}: has no tokens besides special ones")
        self._check_rare_characters(name)
        self._theirs = [-1, -1, -1, -1 if unknown_id is None else unknown_id, *sorted(by_id)]
        self._our_ids = {theirs: ours for ours, theirs in enumerate(self._theirs) if ours >= len(SPECIAL_PIECES)}
        super().__init__([by_id[i] for i in sorted(by_id)])

    def _check_rare_characters(self, name: str) -> None:
        try:
            found = self._tokenizer.encode(RARE, add_special_tokens=False).ids
        except Exception as error:
            raise BadInput(f"{name}: cannot encode a character that it does not know: {error}") from None
        if not found:
            raise BadInput(
                f"{name}: drops characters that it does not know: it needs an unk_token, byte_fallback or ByteLevel"
            )

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [[self._our_ids.get(i, UNK) for i in each.ids] for each in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        theirs = [self._theirs[i] for i in ids if i not in (PAD, BOS, EOS)]
        return self._tokenizer.decode([i for i in theirs if i >= 0], skip_special_tokens=False)

    def serialized(self) -> bytes:
        return self._content
