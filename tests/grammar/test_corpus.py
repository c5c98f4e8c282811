"""The three sections of the corpus: streams, lengths, held-out combinations."""

from __future__ import annotations

from itertools import islice

import pytest

from transformer_jax.grammar import MAX_TOKENS, CorpusSection, german, sentence_pairs
from transformer_jax.grammar.corpus import HELD_OUT, Construction, dictionary_form, is_held_out, pairs
from transformer_jax.grammar.lexicon import ADJECTIVES, VERBS
from transformer_jax.grammar.tree import Sentence


@pytest.mark.parametrize("section", list(CorpusSection))
def test_sections_are_streams_that_only_grow(section: CorpusSection) -> None:
    found = list(islice(sentence_pairs(section, "x"), 30))
    assert found[:15] == list(islice(sentence_pairs(section, "x"), 15))
    assert found[0] != next(sentence_pairs(section, "y"))
    is_long = section is CorpusSection.LONG
    assert all((len(text.split()) > MAX_TOKENS) is is_long for pair in found for text in pair)


def test_held_out_words_and_constructions_are_common_apart(sampled: list[tuple[Sentence, str, str]]) -> None:
    kept = [sentence for sentence, _, _ in sampled if not is_held_out(sentence)]
    assert 0.6 * len(sampled) < len(kept) < len(sampled)
    seen = [pair for sentence in kept for pair in pairs(sentence)]
    assert not HELD_OUT & set(seen)
    for construction in Construction:
        assert sum(found is construction for _, found in seen) > 100
    text = " ".join(german.render(sentence) for sentence in kept)
    verbs = {dictionary_form(word.german): word.german for word in VERBS}
    stems = {word.german: word.stem for word in ADJECTIVES if word.stem}
    for word, _ in HELD_OUT:
        forms = (verbs[word].third, verbs[word].past) if word in verbs else (stems.get(word, word),)
        assert sum(text.count(f" {form}") for form in forms) > 4, word
