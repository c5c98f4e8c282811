"""English: inflected forms. The sentences are tested in `test_corpus.py`."""

from __future__ import annotations

import pytest

from transformer_jax.grammar import english
from transformer_jax.grammar.lexicon import NOUNS, Number


@pytest.mark.parametrize(("word", "plural"), [("city", "cities"), ("church", "churches"), ("knife", "knives")])
def test_plurals(word: str, plural: str) -> None:
    (noun,) = (noun for noun in NOUNS if noun.english == word)
    assert english.noun_form(noun, Number.PLURAL) == plural
