"""The abstract sentence: sampled at random, and put into words by one realiser for each language."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeGuard

from transformer_jax.grammar import lexicon
from transformer_jax.grammar.lexicon import (
    Adjective,
    Expression,
    Gender,
    Kinds,
    Modal,
    Noun,
    Number,
    Pronoun,
    Tense,
    Verb,
)


class RelativePronoun(NamedTuple):
    """*who*, *that*: agrees with the noun it refers to. For *whose* see NounPhrase.whose."""

    kind: Kinds
    gender: Gender
    number: Number


@dataclass(slots=True)
class NounPhrase:
    """A noun with modifiers; a possessor (*the king 's horse*) or `whose` (*whose horse*) replaces THE."""

    noun: Noun
    number: Number
    determiner: lexicon.Determiner
    adjectives: tuple[Adjective, ...] = ()
    possessor: NounPhrase | None = None
    whose: RelativePronoun | None = None
    relative: Clause | None = None

    @property
    def kind(self) -> Kinds:
        return self.noun.kind


Phrase = NounPhrase | Pronoun | RelativePronoun


class Location(NamedTuple):
    """A preposition and its noun phrase: a place (*in the garden*) or a goal (*into the garden*)."""

    preposition: lexicon.Preposition
    phrase: NounPhrase


class Embedded(NamedTuple):
    """A subordinate clause after its conjunction, or an indirect question after its question word."""

    introducer: Expression
    clause: Clause


@dataclass(slots=True)
class Clause:
    """One verb with everything that depends on it.

    A subject or object that `opens` its clause makes it a question or a relative clause; so does the adverb `question`.
    `time_first` puts the time before everything else, which only a main clause may do.
    """

    verb: Verb
    subject: Phrase
    tense: Tense = Tense.PRESENT
    modal: Modal | None = None
    is_negated: bool = False
    object: Phrase | None = None
    recipient: NounPhrase | Pronoun | None = None
    predicate: Adjective | None = None
    time: Expression | None = None
    frequency: Expression | None = None
    manner: Expression | None = None
    place: Location | None = None
    goal: Location | None = None
    time_first: bool = False
    question: Expression | None = None
    complement: Embedded | None = None


class Statement(NamedTuple):
    """A main clause, perhaps with an adverbial clause before or after it."""

    clause: Clause
    adverbial: Embedded | None = None
    adverbial_first: bool = False


class Question(NamedTuple):
    """A yes/no question, or a wh-question if the clause holds an interrogative."""

    clause: Clause


class Coordination(NamedTuple):
    """Two main clauses joined by *and* or *but*."""

    conjunction: Expression
    left: Clause
    right: Clause


Sentence = Statement | Question | Coordination


def opens(phrase: Phrase | None) -> TypeGuard[Phrase]:
    """Whether a phrase must open its clause: relative pronouns, interrogatives, and noun phrases with one of them."""
    if isinstance(phrase, NounPhrase):
        return phrase.whose is not None or phrase.determiner is lexicon.WHICH
    return isinstance(phrase, RelativePronoun) or phrase is lexicon.WHO or phrase is lexicon.WHAT
