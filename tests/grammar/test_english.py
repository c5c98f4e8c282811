"""English: the same sentences as ever, and inflected forms."""

from __future__ import annotations

import hashlib

import pytest

from transformer_jax.grammar import english
from transformer_jax.grammar.lexicon import NOUNS, Number
from transformer_jax.grammar.tree import Sentence


def test_sentences_never_change(sampled: list[tuple[Sentence, str, str]]) -> None:
    """English and German, to the byte: runs and published results depend on them."""
    text = "".join(f"{source}\t{target}\n" for _, source, target in sampled)
    digest = "922b38b41f8fc7acf602b302445f77d1e5492e80855e89707b7f1253755c0b5f"
    assert hashlib.sha256(text.encode()).hexdigest() == digest


@pytest.mark.parametrize(("word", "plural"), [("city", "cities"), ("church", "churches"), ("knife", "knives")])
def test_plurals(word: str, plural: str) -> None:
    (noun,) = (noun for noun in NOUNS if noun.english == word)
    assert english.noun_form(noun, Number.PLURAL) == plural
