"""Hugging Face's tokenizer.json, read by the package tokenizers. `data/tokenizer.py` puts it under our special ids."""

import json
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from transformer_jax.errors import BadInput
from transformer_jax.extras import require

# A character that no text to train on has, and so no vocabulary.
RARE = "\U0010fffd"


class TokenizerFile:
    """A tokenizer.json without its special tokens: a text that contains their names is encoded as any text.

    Its template that adds special tokens, truncation, padding and dropout of merges are turned off.
    """

    def __init__(self, content: bytes, name: str):
        require(f"{name}: a tokenizer.json", "tokenizers")
        import tokenizers

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
        # The id of its token for what it does not know; None if it spells that in bytes.
        self.unknown = stored["model"].get("unk_id") if unknown is None else self._tokenizer.token_to_id(unknown)
        special = {token["content"] for token in stored.get("added_tokens") or () if token.get("special")}
        vocabulary = self._tokenizer.get_vocab()
        # The tokens by id, in its order, without special ones.
        left_out = {self.unknown, *map(vocabulary.get, special)}
        self.tokens = {i: token for token, i in sorted(vocabulary.items(), key=itemgetter(1)) if i not in left_out}
        if not self.tokens:
            raise BadInput(f"{name}: has no tokens besides special ones")
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
        return [each.ids for each in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)
