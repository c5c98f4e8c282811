"""English: sentences against translations made by hand, and inflected forms."""

from __future__ import annotations

import pytest

from tests.support.grammar_sentences import GOLD, noun
from transformer_jax.grammar import english
from transformer_jax.grammar.lexicon import Number
from transformer_jax.grammar.tree import Sentence


@pytest.mark.parametrize(
    ("sentence", "source"), [(tree, source) for tree, source, target in GOLD], ids=[source for _, source, _ in GOLD]
)
def test_gold_sentences(sentence: Sentence, source: str) -> None:
    assert english.render(sentence) == source


@pytest.mark.parametrize(
    ("word", "plural"),
    [("city", "cities"), ("boy", "boys"), ("church", "churches"), ("knife", "knives"), ("potato", "potatoes")],
)
def test_plurals(word: str, plural: str) -> None:
    assert english.noun_form(noun(word), Number.PLURAL) == plural
