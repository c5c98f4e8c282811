"""The lexicon: one German word for each English one, and entries that are complete."""

from __future__ import annotations

from transformer_jax.grammar import english
from transformer_jax.grammar.lexicon import ADJECTIVES, BE, NOUNS, VERBS, Case, Frame, Kind, Number


def test_no_english_word_has_two_german_ones() -> None:
    noun_forms = [
        english.noun_form(word, number) for word in NOUNS for number in Number if number == 0 or not word.is_mass
    ]
    frames = [(word.english, word.particle, word.english_preposition, word.frame) for word in VERBS]
    for words in (noun_forms, frames, [word.english for word in ADJECTIVES]):
        assert len(words) == len(set(words))


def test_places_and_only_they_have_prepositions() -> None:
    for word in NOUNS:
        assert bool(word.at) == bool(word.to) == (Kind.PLACE in word.kind)
        assert word.at is None or word.at.case is Case.DATIVE


def test_verbs_have_what_their_frame_needs() -> None:
    assert BE not in VERBS and BE.german.takes_sein
    for word in VERBS:
        assert all((word.german.infinitive, word.german.third, word.german.past, word.german.participle))
        assert bool(word.object) == (word.frame not in {Frame.INTRANSITIVE, Frame.CLAUSAL})
        assert bool(word.german_preposition) == (word.frame is Frame.PREPOSITIONAL)


def test_every_noun_has_a_verb_and_an_adjective_that_may_go_with_it() -> None:
    for word in NOUNS:
        assert any(word.kind & (entry.subject | entry.object) for entry in VERBS), word.english
    assert all(any(word.kind & noun.kind for noun in NOUNS) for word in ADJECTIVES)
