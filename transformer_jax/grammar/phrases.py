"""Random noun phrases: which determiners, adjectives and possessors go with which nouns."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from transformer_jax.grammar import lexicon
from transformer_jax.grammar.lexicon import Adjective, Determiner, Kind, Noun, Number, Pronoun
from transformer_jax.grammar.rng import Rng
from transformer_jax.grammar.tree import NounPhrase

_ATTEMPTS_AT_A_NEW_NOUN = 5

_Weights = tuple[tuple[Determiner, float], ...]


class Freedom(NamedTuple):
    """The determiners that the context allows, by weight: a quantifier beside a negation has an ambiguous scope."""

    singular: _Weights
    plural: _Weights
    mass: _Weights
    plural_share: float = 0.35


_DEFINITE: _Weights = ((lexicon.THE, 0.64), (lexicon.THIS, 0.06))
_QUANTIFIERS: _Weights = (
    (lexicon.ALL, 0.04),
    (lexicon.MANY, 0.06),
    (lexicon.SOME, 0.06),
    *((word, 0.03) for word in lexicon.NUMERALS),
)
_MASS: _Weights = (*_DEFINITE, (lexicon.NONE, 0.6))

DEFINITE = Freedom(_DEFINITE, _DEFINITE, _DEFINITE)
# Definite ones, and those that negation turns into *kein*.
INDEFINITE = Freedom((*_DEFINITE, (lexicon.A, 0.3)), (*_DEFINITE, (lexicon.NONE, 0.25)), _MASS)
# All but *no*.
FREE = Freedom(
    (*_DEFINITE, (lexicon.A, 0.3), (lexicon.EVERY, 0.03)), (*_DEFINITE, (lexicon.NONE, 0.2), *_QUANTIFIERS), _MASS
)
SUBJECT = Freedom(
    (*_DEFINITE, (lexicon.A, 0.15), (lexicon.EVERY, 0.05), (lexicon.NO, 0.04)),
    (*_DEFINITE, (lexicon.NONE, 0.08), *_QUANTIFIERS, (lexicon.NO, 0.02)),
    _MASS,
)
PLACE = Freedom((*_DEFINITE, (lexicon.A, 0.1)), _DEFINITE, _MASS, plural_share=0.12)
DEFINITE_PLACE = Freedom(_DEFINITE, _DEFINITE, _MASS, plural_share=0.12)

# What may have an owner: *my brother*, *the king 's dog*, but hardly *my tiger* or *the king 's river*.
OWNED = Kind.PERSONAL | Kind.TEXT | Kind.FOOD | Kind.DRINK | Kind.THING | Kind.CLOTHES | Kind.VEHICLE
OWNED |= Kind.FURNITURE | Kind.ROOM


@cache
def nouns_of(kind: Kind) -> tuple[Noun, ...]:
    return tuple(noun for noun in lexicon.NOUNS if noun.kind & kind)


@cache
def adjectives_of(kind: Kind, *, colours: bool) -> tuple[Adjective, ...]:
    return tuple(word for word in lexicon.ADJECTIVES if word.kind & kind and word.is_colour is colours)


class PhraseSampler:
    """Random noun phrases and pronouns; a sentence repeats a noun only if there is little choice."""

    def __init__(self, rng: Rng):
        self._rng = rng
        self._used: set[str] = set()

    def start_sentence(self) -> None:
        self._used.clear()

    def noun(self, kind: Kind) -> Noun:
        choices = nouns_of(kind)
        noun = self._rng.pick(choices)
        for _ in range(_ATTEMPTS_AT_A_NEW_NOUN):
            if noun.english not in self._used:
                break
            noun = self._rng.pick(choices)
        self._used.add(noun.english)
        return noun

    def noun_phrase(self, kind: Kind, freedom: Freedom) -> NounPhrase:
        noun = self.noun(kind)
        rng = self._rng
        if noun.is_mass:
            number, determiners = Number.SINGULAR, freedom.mass
        elif rng.chance(freedom.plural_share):
            number, determiners = Number.PLURAL, freedom.plural
        else:
            number, determiners = Number.SINGULAR, freedom.singular
        determiner = rng.weighted(determiners)
        adjectives = self.adjectives(noun.kind)
        possessor = None
        if determiner is lexicon.THE and noun.kind & OWNED:
            if rng.chance(0.22):
                determiner = rng.pick(lexicon.POSSESSIVES)
            elif rng.chance(0.15):
                possessor = self._possessor()
        return NounPhrase(noun, number, determiner, adjectives, possessor)

    def adjectives(self, kind: Kind) -> tuple[Adjective, ...]:
        """None, one, or one before a colour: two equal ones would need a comma in German."""
        drawn: list[Adjective] = []
        for colours, probability in ((False, 0.32), (True, 0.14)):
            choices = adjectives_of(kind, colours=colours)
            if choices and self._rng.chance(probability):
                drawn.append(self._rng.pick(choices))
        return tuple(drawn)

    def pronoun(self) -> Pronoun:
        return self._rng.pick(lexicon.PRONOUNS)

    def _possessor(self) -> NounPhrase:
        """*the old king 's*: a person, with a determiner that shows the genitive."""
        noun = self.noun(Kind.PERSON)
        number = Number.PLURAL if self._rng.chance(0.2) else Number.SINGULAR
        determiner = self._rng.weighted(_DEFINITE)
        adjectives = self.adjectives(noun.kind) if self._rng.chance(0.5) else ()
        return NounPhrase(noun, number, determiner, adjectives)
