"""Noun phrases: determiners, numbers and possessors that fit the noun and the context."""

from __future__ import annotations

import pytest

from transformer_jax.grammar import phrases as freedoms
from transformer_jax.grammar.lexicon import ALL, EVERY, MANY, NO, NONE, POSSESSIVES, THE, THIS, A, Kind, Number
from transformer_jax.grammar.phrases import DEFINITE, OWNED, SUBJECT, Freedom, PhraseSampler
from transformer_jax.grammar.rng import Rng

NAMES = ["DEFINITE", "INDEFINITE", "FREE", "SUBJECT", "PLACE", "DEFINITE_PLACE"]


@pytest.mark.parametrize("freedom", [getattr(freedoms, name) for name in NAMES], ids=NAMES)
def test_determiners_fit_the_noun_and_the_context(freedom: Freedom) -> None:
    phrases = PhraseSampler(Rng("phrases"))
    found = [phrases.noun_phrase(Kind.PERSON | Kind.FOOD | Kind.DRINK, freedom) for _ in range(500)]
    for phrase in found:
        assert not (phrase.noun.is_mass and phrase.number is Number.PLURAL)
        assert phrase.determiner not in {A, EVERY} or phrase.number is Number.SINGULAR
        assert phrase.determiner not in {ALL, MANY} or phrase.number is Number.PLURAL
        assert phrase.determiner is not NONE or phrase.noun.is_mass or phrase.number is Number.PLURAL
        if phrase.possessor:
            assert phrase.determiner is THE and phrase.noun.kind & OWNED
        colours = [adjective.is_colour for adjective in phrase.adjectives]
        assert colours in ([], [False], [True], [False, True])
    used = {phrase.determiner for phrase in found}
    if freedom is DEFINITE:
        assert used <= {THE, THIS, *POSSESSIVES}
    assert (NO in used) == (freedom is SUBJECT)


def test_a_noun_is_rarely_used_twice_in_a_sentence() -> None:
    phrases = PhraseSampler(Rng("nouns"))
    repeated = 0
    for _ in range(300):
        phrases.start_sentence()
        nouns = [phrases.noun(Kind.PERSON) for _ in range(3)]
        repeated += len(set(nouns)) < 3
    assert repeated <= 2
