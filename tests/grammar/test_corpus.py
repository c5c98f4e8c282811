"""The three sections of the corpus: streams, lengths, held-out combinations, and the same sentences as ever."""

from __future__ import annotations

import hashlib
from itertools import islice

import pytest

from transformer_jax.grammar import MAX_TOKENS, CorpusSection, german, sentence_pairs
from transformer_jax.grammar.corpus import HELD_OUT, Construction, dictionary_form, is_held_out, pairs
from transformer_jax.grammar.lexicon import ADJECTIVES, VERBS
from transformer_jax.grammar.tree import Sentence

Sampled = list[tuple[Sentence, str, str]]


def test_sentences_never_change(sampled: Sampled) -> None:
    """English and German, to the byte, in every section: runs and published results depend on them."""
    found = [(source, target) for _, source, target in sampled]
    for section in CorpusSection:
        found += islice(sentence_pairs(section, "x"), 100)
    text = "".join(f"{source}\t{target}\n" for source, target in found)
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "fb602d136779214a7413dac9da6a320c35a9663d7a901aff1cc8bb879efc5089"
    )


@pytest.mark.parametrize("section", list(CorpusSection))
def test_sections_are_streams_that_only_grow(section: CorpusSection) -> None:
    found = list(islice(sentence_pairs(section, "x"), 30))
    assert found[:15] == list(islice(sentence_pairs(section, "x"), 15))
    assert found[0] != next(sentence_pairs(section, "y"))
    is_long = section is CorpusSection.LONG
    assert all((len(text.split()) > MAX_TOKENS) is is_long for pair in found for text in pair)


def test_held_out_words_and_constructions_are_common_apart(sampled: Sampled) -> None:
    kept = [sentence for sentence, _, _ in sampled if not is_held_out(sentence)]
    assert 0.6 * len(sampled) < len(kept) < len(sampled)
    seen = [pair for sentence in kept for pair in pairs(sentence)]
    held_out = {(word, construction) for construction, words in HELD_OUT.items() for word in words}
    assert not held_out & set(seen)
    for construction in Construction:
        assert sum(found is construction for _, found in seen) > 100
    text = " ".join(german.render(sentence) for sentence in kept)
    verbs = {dictionary_form(word.german): word.german for word in VERBS}
    stems = {word.german: word.stem for word in ADJECTIVES if word.stem}
    for word, _ in held_out:
        forms = (verbs[word].third, verbs[word].past) if word in verbs else (stems.get(word, word),)
        assert sum(text.count(f" {form}") for form in forms) > 4, word
