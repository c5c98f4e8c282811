"""Random sentences: noun phrases, the clauses that they go into, and statements, questions and coordinations of these.

Constructions that would be ambiguous or odd in one of the languages are avoided: an adverbial after a relative clause
could belong to either clause, *never* does not go with *no*, and so on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple, TypeVar

from transformer_jax.grammar import lexicon, tree
from transformer_jax.grammar.lexicon import (
    ANY_TENSE,
    Adjective,
    Case,
    Determiner,
    Expression,
    Frame,
    Kind,
    Modal,
    Noun,
    Number,
    Pronoun,
    Tense,
    Verb,
)

_Item = TypeVar("_Item")


class Rng:
    """Choices drawn from `random.Random(text).random()`, a sequence that Python guarantees not to change."""

    def __init__(self, seed_text: str):
        self._uniform = random.Random(seed_text).random

    def chance(self, probability: float) -> bool:
        return self._uniform() < probability

    def below(self, limit: int) -> int:
        """An integer from 0 to limit - 1."""
        return int(self._uniform() * limit)

    def pick(self, items: Sequence[_Item]) -> _Item:
        return items[self.below(len(items))]

    def weighted(self, weights: Sequence[tuple[_Item, float]]) -> _Item:
        """One of the items, with probability proportional to its weight."""
        left = self._uniform() * sum(weight for _, weight in weights)
        for item, weight in weights:
            left -= weight
            if left < 0:
                return item
        return weights[-1][0]


# Noun phrases.

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

    def __init__(self, seed_text: str):
        self._rng = Rng(seed_text)
        self._used: set[str] = set()

    def noun(self, kind: Kind) -> Noun:
        choices = nouns_of(kind)
        noun = self._rng.pick(choices)
        for _ in range(_ATTEMPTS_AT_A_NEW_NOUN):
            if noun.english not in self._used:
                break
            noun = self._rng.pick(choices)
        self._used.add(noun.english)
        return noun

    def noun_phrase(self, kind: Kind, freedom: Freedom) -> tree.NounPhrase:
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
        return tree.NounPhrase(noun, number, determiner, adjectives, possessor)

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

    def _possessor(self) -> tree.NounPhrase:
        """*the old king 's*: a person, with a determiner that shows the genitive."""
        noun = self.noun(Kind.PERSON)
        number = Number.PLURAL if self._rng.chance(0.2) else Number.SINGULAR
        determiner = self._rng.weighted(_DEFINITE)
        adjectives = self.adjectives(noun.kind) if self._rng.chance(0.5) else ()
        return tree.NounPhrase(noun, number, determiner, adjectives)


# Clauses.

SIMPLE_TENSES = frozenset({Tense.PRESENT, Tense.PAST})
# Tenses that an embedded clause may have, by the tense of the clause around it.
TENSES_INSIDE = {
    Tense.PRESENT: frozenset({Tense.PRESENT, Tense.PERFECT, Tense.PAST}),
    Tense.PAST: frozenset({Tense.PAST}),
    Tense.PERFECT: frozenset({Tense.PRESENT, Tense.PERFECT}),
    Tense.FUTURE: frozenset({Tense.PRESENT, Tense.PERFECT}),
}

_BEING = Kind.PERSON | Kind.ANIMAL
_DESCRIBABLE = _BEING | Kind.THING | Kind.CLOTHES | Kind.VEHICLE | Kind.TEXT | Kind.PLACE | Kind.EVENT
_TENSE_WEIGHTS = ((Tense.PRESENT, 0.38), (Tense.PAST, 0.24), (Tense.PERFECT, 0.22), (Tense.FUTURE, 0.16))
_FRAME_WEIGHTS = (
    (Frame.TRANSITIVE, 0.38),
    (Frame.INTRANSITIVE, 0.16),
    (Frame.DITRANSITIVE, 0.13),
    (Frame.PREPOSITIONAL, 0.11),
    (Frame.MOTION, 0.07),
    (Frame.PLACEMENT, 0.04),
    (Frame.POSITION, 0.06),
    (Frame.COPULA, 0.07),
)
_NEVER_WITH_RELATIVE = (lexicon.THIS, *lexicon.POSSESSIVES)
_OBJECT_FRAMES = (Frame.TRANSITIVE, Frame.DITRANSITIVE, Frame.PREPOSITIONAL, Frame.PLACEMENT)


@cache
def verbs_of(*frames: Frame) -> tuple[Verb, ...]:
    return tuple(verb for verb in (*lexicon.VERBS, lexicon.BE) if verb.frame in frames)


@cache
def _verbs_with_subject(kind: Kind) -> tuple[Verb, ...]:
    return tuple(verb for verb in lexicon.VERBS if verb.subject & kind and verb.frame is not Frame.CLAUSAL)


@cache
def _verbs_with_object(kind: Kind) -> tuple[Verb, ...]:
    return tuple(verb for verb in lexicon.VERBS if verb.object & kind and verb.frame in _OBJECT_FRAMES)


def _kind(phrase: tree.Phrase) -> Kind:
    """The kind of what a phrase is about; pronouns are about persons."""
    if isinstance(phrase, tree.RelativePronoun):
        return phrase.antecedent.kind
    return phrase.noun.kind if isinstance(phrase, tree.NounPhrase) else Kind.PERSON


def is_animate(subject: tree.Phrase) -> bool:
    return bool(_kind(subject) & _BEING)


def has_relative(phrase: tree.Phrase | None) -> bool:
    return isinstance(phrase, tree.NounPhrase) and phrase.relative is not None


class Form(NamedTuple):
    """What its place in the sentence allows a clause."""

    is_main: bool = False  # the time may come first
    is_question: bool = False  # no quantifier, as its scope would be unclear
    may_negate: bool = True  # *not*, and *no* with the subject


MAIN, SUBORDINATE, QUESTION = Form(is_main=True), Form(), Form(is_question=True, may_negate=False)


class ClauseSampler(PhraseSampler):
    """Random clauses. `depth` is the number of clauses that may be nested in one another."""

    def verb(self, *, past: bool = False, dynamic: bool = False) -> Verb:
        """Any verb but a clausal one. `past`: its past differs from its present.  `dynamic`: it is not a state."""
        while True:
            verb = self._rng.pick(verbs_of(self._rng.weighted(_FRAME_WEIGHTS)))
            is_state = verb.is_stative or verb.frame in {Frame.COPULA, Frame.POSITION}
            if not (past and verb.past == verb.english) and not (dynamic and is_state):
                return verb

    def clause(
        self,
        verb: Verb,
        depth: int,
        tenses: frozenset[Tense] = ANY_TENSE,
        form: Form = SUBORDINATE,
        *,
        subject: tree.Phrase | None = None,
        object: tree.Phrase | None = None,
    ) -> tree.Clause:
        """A clause with the verb, and with the subject or object if one is given."""
        negated = form.may_negate and self._rng.chance(0.15)
        if subject is None:
            freedom = SUBJECT if form.may_negate else FREE
            if negated or form.is_question:
                freedom = DEFINITE
            subject = self._subject(verb, 0 if form.is_question else depth, freedom, tenses)
        tense = self._tense(verb, tenses)
        clause = tree.Clause(verb, subject, tense, self._modal(verb, subject, tense), negated, object=object)
        return self._with_adverbials(self._with_objects(clause, depth, form), form)

    def _tense(self, verb: Verb, tenses: frozenset[Tense]) -> Tense:
        allowed = tenses & SIMPLE_TENSES if verb.is_stative or verb.frame is Frame.COPULA else tenses
        weights = [(tense, weight) for tense, weight in _TENSE_WEIGHTS if tense in allowed]
        tense = self._rng.weighted(weights) if weights else Tense.PRESENT
        is_unclear = tense is Tense.PAST and verb.past == verb.english
        return Tense.PRESENT if is_unclear else tense

    def _modal(self, verb: Verb, subject: tree.Phrase, tense: Tense) -> Modal | None:
        fits = tense in SIMPLE_TENSES and is_animate(subject)
        if not fits or verb.is_stative or verb.frame in {Frame.COPULA, Frame.CLAUSAL}:
            return None
        return self._rng.pick(lexicon.MODALS) if self._rng.chance(0.22) else None

    def _subject(self, verb: Verb, depth: int, freedom: Freedom, tenses: frozenset[Tense]) -> tree.Phrase:
        kind = _DESCRIBABLE if verb.frame is Frame.COPULA else verb.subject
        if kind & Kind.PERSON and self._rng.chance(0.3):
            return self.pronoun()
        if verb.frame is Frame.COPULA:  # no other adjective: *the cheap gift is expensive*
            phrase = replace(self.noun_phrase(kind, DEFINITE), adjectives=())
        else:
            phrase = self.noun_phrase(kind, freedom)
        return self._maybe_with_relative(phrase, 0.2, min(depth, 1), tenses)

    def _with_objects(self, clause: tree.Clause, depth: int, form: Form) -> tree.Clause:
        """Adds what the frame requires and the clause lacks."""
        verb, frame = clause.verb, clause.verb.frame
        if frame is Frame.COPULA:
            return replace(clause, predicate=self._rng.pick(adjectives_of(_kind(clause.subject), colours=False)))
        if frame is Frame.MOTION:
            return replace(clause, goal=self._location(verb.object, clause, is_goal=True))
        if frame is Frame.POSITION:
            return replace(clause, place=self._location(verb.object, clause, is_goal=False))
        if frame in _OBJECT_FRAMES and clause.object is None:
            clause = replace(clause, object=self._object(clause, depth, form))
        if frame is Frame.PLACEMENT:
            return replace(clause, goal=self._location(Kind.FURNITURE, clause, is_goal=True))
        if frame is Frame.DITRANSITIVE:
            return replace(clause, recipient=self._recipient(clause))
        return clause

    def _object(self, clause: tree.Clause, depth: int, form: Form) -> tree.Phrase:
        verb = clause.verb
        if verb.object & Kind.PERSON and _is_light(clause.subject) and self._rng.chance(0.2):
            return self._object_pronoun(clause.subject)
        if clause.is_negated:
            freedom = DEFINITE if verb.frame is Frame.PREPOSITIONAL else INDEFINITE
        else:
            freedom = INDEFINITE if form.is_question else FREE
        phrase = self.noun_phrase(verb.object, freedom)
        is_plain_dative = verb.case is Case.DATIVE and verb.frame is Frame.TRANSITIVE
        if is_plain_dative and phrase.determiner is lexicon.NONE and not clause.is_negated:
            phrase = replace(phrase, determiner=lexicon.THE)  # *er hilft Köchen* is stiff
        is_last = verb.frame is not Frame.PLACEMENT and not verb.recipient_to
        return self._maybe_with_relative(phrase, 0.25, depth, TENSES_INSIDE[clause.tense]) if is_last else phrase

    def _object_pronoun(self, subject: tree.Phrase) -> Pronoun:
        """Not *I see me*, which would need a reflexive."""
        subject_is_first = isinstance(subject, Pronoun) and subject.is_first_person
        pronoun = self.pronoun()
        while subject_is_first and pronoun.is_first_person:
            pronoun = self.pronoun()
        return pronoun

    def _recipient(self, clause: tree.Clause) -> tree.NounPhrase | Pronoun:
        if _is_light(clause.subject) and self._rng.chance(0.3):
            return self._object_pronoun(clause.subject)
        return self.noun_phrase(Kind.PERSON, DEFINITE)

    def _location(self, kind: Kind, clause: tree.Clause, *, is_goal: bool) -> tree.Location:
        freedom = DEFINITE_PLACE if clause.is_negated else PLACE
        phrase = self.noun_phrase(kind, freedom)
        at, to = (phrase.noun.at, phrase.noun.to) if phrase.noun.at else self._rng.pick(lexicon.AROUND_FURNITURE)
        preposition = to if is_goal else at
        assert preposition is not None
        return tree.Location(preposition, phrase)

    def _with_adverbials(self, clause: tree.Clause, form: Form) -> tree.Clause:
        """Adds time or frequency, manner and place; after a relative clause only a time that comes first."""
        rng, verb = self._rng, clause.verb
        if verb.frame is Frame.COPULA or (
            isinstance(clause.subject, tree.NounPhrase) and not is_animate(clause.subject)
        ):
            return clause
        is_closed = has_relative(clause.object)
        # *not every day* and *every day not* are not the same: both are avoided.
        times = [
            time
            for time in lexicon.TIMES
            if clause.tense in time.tenses and not (clause.is_negated and time is lexicon.EVERY_DAY)
        ]
        if verb.frame is not Frame.CLAUSAL and not verb.is_stative and rng.chance(0.35 if form.is_main else 0.15):
            time_first = form.is_main and (is_closed or rng.chance(0.45))
            if time_first or not is_closed:
                clause = replace(clause, time=rng.pick(times), time_first=time_first)
        elif not form.is_question and self._may_be_frequent(clause) and rng.chance(0.15):
            clause = replace(clause, frequency=rng.pick(lexicon.FREQUENCIES))
        if is_closed:
            return clause
        if verb.manners and self._may_have_manner(clause) and rng.chance(0.3):
            clause = replace(clause, manner=rng.pick(verb.manners))
        if verb.allows_place and self._may_have_place(clause) and rng.chance(0.3):
            clause = replace(clause, place=self._location(Kind.PLACE, clause, is_goal=False))
        return clause

    def _may_be_frequent(self, clause: tree.Clause) -> bool:
        """Only with definite subjects, for a clear scope, and not after a relative clause: *who sleeps often reads*."""
        is_plain = not (clause.is_negated or clause.tense is Tense.FUTURE or clause.verb.is_stative)
        return is_plain and _is_light(clause.subject)

    def _may_have_manner(self, clause: tree.Clause) -> bool:
        if clause.frequency:
            return False
        if clause.object is None:
            return True
        is_plain = _is_definite(clause.object) or isinstance(clause.object, tree.RelativePronoun)
        return is_plain and (clause.time is None or clause.time_first)

    def _may_have_place(self, clause: tree.Clause) -> bool:
        if clause.object is None:
            return not (clause.is_negated and clause.manner)
        return clause.manner is None and not (clause.is_negated and clause.verb.frame is Frame.PREPOSITIONAL)

    def _maybe_with_relative(
        self, phrase: tree.NounPhrase, probability: float, depth: int, tenses: frozenset[Tense]
    ) -> tree.NounPhrase:
        """A relative clause restricts what is meant, so it does not go with *this*, *my* or a possessor."""
        is_bare_mass = phrase.noun.is_mass and phrase.determiner is lexicon.NONE
        is_restricted = phrase.determiner in _NEVER_WITH_RELATIVE or phrase.possessor is not None
        if depth <= 0 or is_bare_mass or is_restricted or not self._rng.chance(probability):
            return phrase
        return replace(phrase, relative=self._relative(phrase, depth - 1, tenses))

    def _relative(self, head: tree.NounPhrase, depth: int, tenses: frozenset[Tense]) -> tree.Clause:
        """The head is subject or object in it, or owns the subject or object (*whose*)."""
        pronoun = tree.RelativePronoun(head.noun, head.number)
        if head.noun.kind & Kind.PERSON and self._rng.chance(0.2):
            owned = self.noun_phrase(OWNED, DEFINITE)
            owned = replace(owned, determiner=lexicon.THE, possessor=None, whose=pronoun)
            return self._clause_about(owned, depth, tenses)
        return self._clause_about(pronoun, depth, tenses)

    def _clause_about(self, opener: tree.Phrase, depth: int, tenses: frozenset[Tense]) -> tree.Clause:
        as_subject, as_object = _verbs_with_subject(_kind(opener)), _verbs_with_object(_kind(opener))
        if as_subject and self._rng.chance(0.5):
            return self.clause(self._rng.pick(as_subject), depth, tenses, subject=opener)
        return self.clause(self._rng.pick(as_object), depth, tenses, object=opener)


def _is_light(subject: tree.Phrase) -> bool:
    """Whether German may put the subject before an object pronoun: pronouns come before what is long or new."""
    return _is_definite(subject) and not has_relative(subject)


def _is_definite(phrase: tree.Phrase | None) -> bool:
    """Pronouns and definite noun phrases that are about particular ones: not *every* and not *all*."""
    if isinstance(phrase, tree.NounPhrase):
        return phrase.determiner.is_definite and phrase.determiner not in (lexicon.EVERY, lexicon.ALL)
    return phrase is not None


# Sentences.

_NOT_FUTURE = frozenset({Tense.PRESENT, Tense.PAST, Tense.PERFECT})
_WHO_VERBS = tuple(verb for verb in lexicon.VERBS if verb.subject & Kind.PERSON and verb.frame is not Frame.CLAUSAL)
_OBJECT_VERBS = tuple(verb for verb in lexicon.VERBS if verb.frame in {Frame.TRANSITIVE, Frame.PREPOSITIONAL})
_WHOM_VERBS = tuple(verb for verb in _OBJECT_VERBS if verb.object & Kind.PERSON)
# *was* is asked about things that are eaten, made or used; *was kennt er* would be a strange question.
_WHAT_VERBS = tuple(
    verb
    for verb in (*_OBJECT_VERBS, *verbs_of(Frame.DITRANSITIVE))
    if verb.object & ~_BEING and not verb.is_stative and verb.english not in {"understand", "describe"}
)
_PLACED_VERBS = tuple(verb for verb in lexicon.VERBS if verb.allows_place or verb.frame is Frame.POSITION)
# English does not ask *where does she come*.
_AIMED_VERBS = tuple(verb for verb in verbs_of(Frame.MOTION, Frame.PLACEMENT) if verb.english != "come")
_INDIRECT_QUESTION_VERBS = tuple(verb for verb in verbs_of(Frame.CLAUSAL) if verb.english in {"ask", "know"})
_THAT_VERBS = tuple(verb for verb in verbs_of(Frame.CLAUSAL) if verb.english != "ask")
_NEGATED_CLAUSAL = ("know", "believe", "say")


class SentenceSampler(ClauseSampler):
    """An endless, reproducible source of sentences. `depth`: how many clauses may be nested in a main clause."""

    def __init__(self, seed_text: str, depth: int = 2):
        super().__init__(seed_text)
        self._depth = depth

    def sentence(self) -> tree.Sentence:
        self._used.clear()
        rule = self._rng.weighted(
            (
                (self._simple, 0.46),
                (self._with_adverbial_clause, 0.16),
                (self._with_complement, 0.13),
                (self._question, 0.18),
                (self._coordination, 0.07),
            )
        )
        return rule()

    def _simple(self) -> tree.Sentence:
        return tree.Statement(self.clause(self.verb(), self._depth, form=MAIN))

    def _with_adverbial_clause(self) -> tree.Sentence:
        """Conjunctions of time join two events of one tense and need no further time; *if* joins two presents."""
        conjunction = self._rng.pick(lexicon.SUBORDINATORS)
        comes_first = self._rng.chance(0.4)
        joins_events = conjunction in (lexicon.WHILE, lexicon.BEFORE)
        depth, form = self._depth - 1, Form(may_negate=not joins_events)
        verb = self.verb(past=True, dynamic=joins_events)
        main = self.clause(verb, depth, conjunction.tenses, form._replace(is_main=not comes_first))
        tenses = frozenset({main.tense}) if joins_events else TENSES_INSIDE[main.tense] & conjunction.tenses
        inner = self.clause(self.verb(past=True, dynamic=joins_events), depth, tenses, form)
        if joins_events:
            main = replace(main, time=None, time_first=False)
            inner = replace(inner, time=None, frequency=None, modal=None)
        return tree.Statement(main, tree.Embedded(conjunction, inner), comes_first)

    def _with_complement(self) -> tree.Sentence:
        return tree.Statement(self._clausal(self._depth, ANY_TENSE, is_main=True))

    def _clausal(self, depth: int, tenses: frozenset[Tense], *, is_main: bool = False) -> tree.Clause:
        """*the teacher says that ...*; the complement may be such a clause again."""
        verb = self._rng.pick(verbs_of(Frame.CLAUSAL))
        clause = self.clause(verb, 0, tenses, Form(is_main=is_main, may_negate=verb.english in _NEGATED_CLAUSAL))
        asks = verb in _INDIRECT_QUESTION_VERBS and (verb not in _THAT_VERBS or self._rng.chance(0.5))
        tenses = TENSES_INSIDE[clause.tense]
        if asks:
            return replace(clause, complement=self._indirect_question(depth - 1, tenses))
        if depth > 1 and self._rng.chance(0.2):
            return replace(clause, complement=tree.Embedded(lexicon.THAT, self._clausal(depth - 1, tenses)))
        inner = self.clause(self._verb_for(tenses), depth - 1, tenses)
        return replace(clause, complement=tree.Embedded(lexicon.THAT, inner))

    def _verb_for(self, tenses: frozenset[Tense]) -> Verb:
        return self.verb(past=tenses == {Tense.PAST})

    def _indirect_question(self, depth: int, tenses: frozenset[Tense]) -> tree.Embedded:
        if self._rng.chance(0.5):
            return tree.Embedded(lexicon.WHETHER, self.clause(self._verb_for(tenses), depth, tenses))
        adverb = self._rng.pick(lexicon.QUESTION_ADVERBS)
        return tree.Embedded(adverb, self._adverb_clause(adverb, tenses, depth))

    def _question(self) -> tree.Sentence:
        rule = self._rng.weighted(
            (
                (self._yes_no_question, 0.4),
                (self._subject_question, 0.17),
                (self._object_question, 0.23),
                (self._adverb_question, 0.2),
            )
        )
        return tree.Question(rule())

    def _yes_no_question(self) -> tree.Clause:
        return self.clause(self.verb(), self._depth - 1, form=QUESTION)

    def _subject_question(self) -> tree.Clause:
        subject = lexicon.WHO if self._rng.chance(0.6) else self._which(Kind.PERSON)
        return self.clause(self._rng.pick(_WHO_VERBS), self._depth - 1, form=QUESTION, subject=subject)

    def _object_question(self) -> tree.Clause:
        verbs, asked = self._rng.pick(((_WHOM_VERBS, lexicon.WHO), (_WHAT_VERBS, lexicon.WHAT), (_OBJECT_VERBS, None)))
        verb = self._rng.pick(verbs)
        return self.clause(verb, 0, form=QUESTION, object=asked or self._which(verb.object))

    def _which(self, kind: Kind) -> tree.NounPhrase:
        phrase = self.noun_phrase(kind, DEFINITE)
        return replace(phrase, determiner=lexicon.WHICH, possessor=None)

    def _adverb_question(self) -> tree.Clause:
        return self._adverb_clause(self._rng.pick(lexicon.QUESTION_ADVERBS), ANY_TENSE, 0)

    def _adverb_clause(self, adverb: Expression, tenses: frozenset[Tense], depth: int) -> tree.Clause:
        """A clause that asks for its place, goal, time or reason, and so does not give it."""
        if adverb is lexicon.WHERE:
            verb = self._rng.pick(_PLACED_VERBS)
        elif adverb is lexicon.WHERE_TO:
            verb = self._rng.pick(_AIMED_VERBS)
        else:
            verb = self._verb_for(tenses)
        if adverb is lexicon.WHEN:
            tenses = tenses - {Tense.PERFECT} or frozenset({Tense.PRESENT})
        clause = self.clause(verb, depth, tenses, QUESTION._replace(may_negate=adverb is lexicon.WHY))
        clause = replace(clause, question=adverb)
        if adverb is lexicon.WHY:
            return clause
        if adverb is lexicon.WHEN:
            return replace(clause, time=None, frequency=None)
        return replace(clause, place=None, goal=None)

    def _coordination(self) -> tree.Sentence:
        left = self.clause(self.verb(), 0, _NOT_FUTURE, MAIN)
        tenses = frozenset({left.tense})
        right = self.clause(self._verb_for(tenses), self._depth - 1, tenses)
        return tree.Coordination(lexicon.AND if self._rng.chance(0.5) else lexicon.BUT, left, right)
