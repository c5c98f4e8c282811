"""Random sentences: noun phrases, the clauses that they go into, and statements, questions and coordinations of these.

Constructions that would be ambiguous or odd in one of the languages are avoided: an adverbial after a relative clause
could belong to either clause, *never* does not go with *no*, and so on. The order of the random choices is part of
every corpus: another order makes other sentences.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Generic, NamedTuple, TypeVar

from transformer_jax.grammar import lexicon, tree
from transformer_jax.grammar.lexicon import ANY_TENSE, Frame, Kind, Kinds, Noun, Number, Tense, Tenses, Verb

_Item = TypeVar("_Item")


class Weights(Generic[_Item]):
    """Items, each of which is drawn with a probability proportional to its weight."""

    def __init__(self, weights: Mapping[_Item, float]):
        self.choices, self.total = tuple(weights.items()), sum(weights.values())


class Rng:
    """Choices drawn from `random.Random(text).random()`, a sequence that Python guarantees not to change."""

    def __init__(self, seed_text: str):
        self._uniform = random.Random(seed_text).random

    def chance(self, probability: float) -> bool:
        return self._uniform() < probability

    def pick(self, items: Sequence[_Item]) -> _Item:
        return items[int(self._uniform() * len(items))]

    def weighted(self, weights: Weights[_Item]) -> _Item:
        left = self._uniform() * weights.total
        for item, weight in weights.choices:
            left -= weight
            if left < 0:
                return item
        return item


# Noun phrases.

_ATTEMPTS_AT_A_NEW_NOUN = 6
_Determiners = dict[lexicon.Determiner, float]

_DEFINITE = {lexicon.THE: 0.64, lexicon.THIS: 0.06}
_QUANTIFIERS = {lexicon.ALL: 0.04, lexicon.MANY: 0.06, lexicon.SOME: 0.06, **dict.fromkeys(lexicon.NUMERALS, 0.03)}
_MASS = _DEFINITE | {lexicon.NONE: 0.6}


class Freedom:
    """The determiners that the context allows, by weight: a quantifier beside a negation has an ambiguous scope."""

    def __init__(self, singular: _Determiners, plural: _Determiners, mass: _Determiners = _MASS, plurals: float = 0.35):
        self.singular, self.plural, self.mass = Weights(singular), Weights(plural), Weights(mass)
        self.plural_share = plurals


DEFINITE = Freedom(_DEFINITE, _DEFINITE, _DEFINITE)
# Definite ones, and those that negation turns into *kein*.
INDEFINITE = Freedom(_DEFINITE | {lexicon.A: 0.3}, _DEFINITE | {lexicon.NONE: 0.25})
# All but *no*.
FREE = Freedom(_DEFINITE | {lexicon.A: 0.3, lexicon.EVERY: 0.03}, _DEFINITE | {lexicon.NONE: 0.2} | _QUANTIFIERS)
SUBJECT = Freedom(
    _DEFINITE | {lexicon.A: 0.15, lexicon.EVERY: 0.05, lexicon.NO: 0.04},
    _DEFINITE | {lexicon.NONE: 0.08} | _QUANTIFIERS | {lexicon.NO: 0.02},
)
PLACE = Freedom(_DEFINITE | {lexicon.A: 0.1}, _DEFINITE, plurals=0.12)
DEFINITE_PLACE = Freedom(_DEFINITE, _DEFINITE, plurals=0.12)
_RESTRICTED = frozenset({lexicon.THIS, *lexicon.POSSESSIVES})

_PERSON, _PLACE, _FURNITURE = frozenset({Kind.PERSON}), frozenset({Kind.PLACE}), frozenset({Kind.FURNITURE})
_BEING = frozenset({Kind.PERSON, Kind.ANIMAL})
_DESCRIBABLE = _BEING | {Kind.THING, Kind.CLOTHES, Kind.VEHICLE, Kind.TEXT, Kind.PLACE, Kind.EVENT}
# What may have an owner: *my brother*, *the king 's dog*, but hardly *my tiger* or *the king 's river*.
OWNED = frozenset({Kind.PERSONAL, Kind.TEXT, Kind.FOOD, Kind.DRINK, Kind.THING, Kind.CLOTHES, Kind.VEHICLE})
OWNED |= {Kind.FURNITURE, Kind.ROOM}


@cache
def nouns_of(kind: Kinds) -> tuple[Noun, ...]:
    return tuple(noun for noun in lexicon.NOUNS if noun.kind & kind)


@cache
def adjectives_of(kind: Kinds, colours: bool) -> tuple[lexicon.Adjective, ...]:
    return tuple(word for word in lexicon.ADJECTIVES if word.kind & kind and word.is_colour is colours)


def has_relative(phrase: tree.Phrase | None) -> bool:
    return isinstance(phrase, tree.NounPhrase) and phrase.relative is not None


def _is_definite(phrase: tree.Phrase) -> bool:
    """Pronouns and definite noun phrases that are about particular ones: not *every* and not *all*."""
    if isinstance(phrase, tree.NounPhrase):
        return phrase.determiner.is_definite and phrase.determiner not in (lexicon.EVERY, lexicon.ALL)
    return True


def _is_light(subject: tree.Phrase) -> bool:
    """Whether German may put the subject before an object pronoun: pronouns come before what is long or new."""
    return _is_definite(subject) and not has_relative(subject)


# Clauses.

SIMPLE_TENSES = frozenset({Tense.PRESENT, Tense.PAST})
# Tenses that an embedded clause may have, by the tense of the clause around it.
TENSES_INSIDE = {
    Tense.PRESENT: frozenset({Tense.PRESENT, Tense.PERFECT, Tense.PAST}),
    Tense.PAST: frozenset({Tense.PAST}),
    Tense.PERFECT: frozenset({Tense.PRESENT, Tense.PERFECT}),
    Tense.FUTURE: frozenset({Tense.PRESENT, Tense.PERFECT}),
}
_TENSES = {Tense.PRESENT: 0.38, Tense.PAST: 0.24, Tense.PERFECT: 0.22, Tense.FUTURE: 0.16}
_FRAMES = Weights(
    {
        Frame.TRANSITIVE: 0.38,
        Frame.INTRANSITIVE: 0.16,
        Frame.DITRANSITIVE: 0.13,
        Frame.PREPOSITIONAL: 0.11,
        Frame.MOTION: 0.07,
        Frame.PLACEMENT: 0.04,
        Frame.POSITION: 0.06,
        Frame.COPULA: 0.07,
    }
)
_OBJECT_FRAMES = frozenset({Frame.TRANSITIVE, Frame.DITRANSITIVE, Frame.PREPOSITIONAL, Frame.PLACEMENT})
_STATES, _NO_ACTIONS = frozenset({Frame.COPULA, Frame.POSITION}), frozenset({Frame.COPULA, Frame.CLAUSAL})


class Form(NamedTuple):
    """The constructions that a clause may have at its place in the sentence."""

    is_main: bool = False  # the time may come first
    is_question: bool = False  # no quantifier, as its scope would be unclear
    may_negate: bool = True  # *not*, and *no* with the subject


MAIN, SUBORDINATE, QUESTION = Form(is_main=True), Form(), Form(is_question=True, may_negate=False)


@cache
def verbs_of(*frames: Frame) -> tuple[Verb, ...]:
    return tuple(verb for verb in (*lexicon.VERBS, lexicon.BE) if verb.frame in frames)


@cache
def _tense_weights(tenses: Tenses) -> Weights[Tense]:
    return Weights({tense: weight for tense, weight in _TENSES.items() if tense in tenses})


@cache
def _verbs_with_subject(kind: Kinds) -> tuple[Verb, ...]:
    return tuple(verb for verb in lexicon.VERBS if verb.subject & kind and verb.frame is not Frame.CLAUSAL)


@cache
def _verbs_with_object(kind: Kinds) -> tuple[Verb, ...]:
    return tuple(verb for verb in lexicon.VERBS if verb.object & kind and verb.frame in _OBJECT_FRAMES)


# Verbs of questions, by what is asked for.
_ASKING_WHICH = verbs_of(Frame.TRANSITIVE, Frame.PREPOSITIONAL)
_ASKING_WHOM = tuple(verb for verb in _ASKING_WHICH if Kind.PERSON in verb.object)
# *was* is asked about things that are eaten, made or used; *was kennt er* would be a strange question.
_ASKING_WHAT = tuple(
    verb
    for verb in (*_ASKING_WHICH, *verbs_of(Frame.DITRANSITIVE))
    if verb.object - _BEING and not verb.is_stative and verb.english not in {"understand", "describe"}
)
_ASKING_FOR_AN_OBJECT = ((_ASKING_WHOM, lexicon.WHO), (_ASKING_WHAT, lexicon.WHAT), (_ASKING_WHICH, None))
_ASKING_WHERE = tuple(verb for verb in lexicon.VERBS if verb.allows_place or verb.frame is Frame.POSITION)
# English does not ask *where does she come*.
_ASKING_WHERE_TO = tuple(verb for verb in verbs_of(Frame.MOTION, Frame.PLACEMENT) if verb.english != "come")
_QUESTIONS = Weights({"yes or no": 0.4, "subject": 0.17, "object": 0.23, "adverb": 0.2})
_SENTENCES = Weights({"simple": 0.46, "adverbial": 0.16, "complement": 0.13, "question": 0.18, "double": 0.07})


class SentenceSampler:
    """An endless, reproducible source of sentences. `depth`: how many clauses may be nested in a main clause.

    A sentence repeats a noun only if there is little choice.
    """

    def __init__(self, seed_text: str, depth: int = 2):
        self._rng = Rng(seed_text)
        self._depth = depth
        self._used: set[str] = set()

    # Noun phrases.

    def noun_phrase(self, kind: Kinds, freedom: Freedom) -> tree.NounPhrase:
        rng, noun = self._rng, self._noun(kind)
        if noun.is_mass:
            number, determiners = Number.SINGULAR, freedom.mass
        elif rng.chance(freedom.plural_share):
            number, determiners = Number.PLURAL, freedom.plural
        else:
            number, determiners = Number.SINGULAR, freedom.singular
        determiner, adjectives, possessor = rng.weighted(determiners), self.adjectives(noun.kind), None
        if determiner is lexicon.THE and noun.kind & OWNED:
            if rng.chance(0.22):
                determiner = rng.pick(lexicon.POSSESSIVES)
            elif rng.chance(0.15):
                possessor = self._possessor()
        return tree.NounPhrase(noun, number, determiner, adjectives, possessor)

    def adjectives(self, kind: Kinds) -> tuple[lexicon.Adjective, ...]:
        """None, one, or one before a colour: two equal ones would need a comma in German."""
        drawn: tuple[lexicon.Adjective, ...] = ()
        for colours, probability in ((False, 0.32), (True, 0.14)):
            choices = adjectives_of(kind, colours)
            if choices and self._rng.chance(probability):
                drawn += (self._rng.pick(choices),)
        return drawn

    def _noun(self, kind: Kinds) -> Noun:
        nouns = nouns_of(kind)
        for _ in range(_ATTEMPTS_AT_A_NEW_NOUN):
            noun = self._rng.pick(nouns)
            if noun.english not in self._used:
                break
        self._used.add(noun.english)
        return noun

    def _possessor(self) -> tree.NounPhrase:
        """*the old king 's*: a person, with a determiner that shows the genitive."""
        noun = self._noun(_PERSON)
        number = Number.PLURAL if self._rng.chance(0.2) else Number.SINGULAR
        determiner = self._rng.weighted(DEFINITE.singular)
        return tree.NounPhrase(noun, number, determiner, self.adjectives(noun.kind) if self._rng.chance(0.5) else ())

    def _object_pronoun(self, subject: tree.Phrase) -> lexicon.Pronoun:
        """Not *I see me*, which would need a reflexive."""
        subject_is_first = isinstance(subject, lexicon.Pronoun) and subject.is_first_person
        while True:
            pronoun = self._rng.pick(lexicon.PRONOUNS)
            if not (subject_is_first and pronoun.is_first_person):
                return pronoun

    # Clauses. `depth` is the number of clauses that may be nested in one another.

    def _verb(self, *, past: bool = False, dynamic: bool = False) -> Verb:
        """Any verb but a clausal one. `past`: its past differs from its present.  `dynamic`: it is not a state."""
        while True:
            verb = self._rng.pick(verbs_of(self._rng.weighted(_FRAMES)))
            is_state = verb.is_stative or verb.frame in _STATES
            if not (past and verb.past == verb.english) and not (dynamic and is_state):
                return verb

    def _clause(
        self,
        verb: Verb,
        depth: int,
        tenses: Tenses = ANY_TENSE,
        form: Form = SUBORDINATE,
        *,
        subject: tree.Phrase | None = None,
        object: tree.Phrase | None = None,
    ) -> tree.Clause:
        """A clause with the verb, and with the subject or object if one is given."""
        negated = form.may_negate and self._rng.chance(0.15)
        if subject is None:
            freedom = DEFINITE if negated or form.is_question else SUBJECT if form.may_negate else FREE
            subject = self._subject(verb, 0 if form.is_question else depth, freedom, tenses)
        clause = tree.Clause(verb, subject, self._tense(verb, tenses), is_negated=negated, object=object)
        is_action = not verb.is_stative and verb.frame not in _NO_ACTIONS
        if is_action and clause.tense in SIMPLE_TENSES and subject.kind & _BEING and self._rng.chance(0.22):
            clause.modal = self._rng.pick(lexicon.MODALS)
        self._add_objects(clause, depth, form)
        self._add_adverbials(clause, form)
        return clause

    def _tense(self, verb: Verb, tenses: Tenses) -> Tense:
        allowed = tenses & SIMPLE_TENSES if verb.is_stative or verb.frame is Frame.COPULA else tenses
        tense = self._rng.weighted(_tense_weights(allowed)) if allowed else Tense.PRESENT
        is_unclear = tense is Tense.PAST and verb.past == verb.english
        return Tense.PRESENT if is_unclear else tense

    def _subject(self, verb: Verb, depth: int, freedom: Freedom, tenses: Tenses) -> tree.Phrase:
        kind = _DESCRIBABLE if verb.frame is Frame.COPULA else verb.subject
        if Kind.PERSON in kind and self._rng.chance(0.3):
            return self._rng.pick(lexicon.PRONOUNS)
        phrase = self.noun_phrase(kind, DEFINITE if verb.frame is Frame.COPULA else freedom)
        if verb.frame is Frame.COPULA:
            phrase.adjectives = ()  # no other adjective: *the cheap gift is expensive*
        self._maybe_add_relative(phrase, 0.2, min(depth, 1), tenses)
        return phrase

    def _add_objects(self, clause: tree.Clause, depth: int, form: Form) -> None:
        """Adds what the frame requires and the clause lacks."""
        kind, frame = clause.verb.object, clause.verb.frame
        if frame in _OBJECT_FRAMES and clause.object is None:
            clause.object = self._object(clause, depth, form)
        if frame is Frame.COPULA:
            clause.predicate = self._rng.pick(adjectives_of(clause.subject.kind, False))
        elif frame is Frame.POSITION:
            clause.place = self._location(kind, clause, is_goal=False)
        elif frame is Frame.MOTION or frame is Frame.PLACEMENT:
            clause.goal = self._location(kind if frame is Frame.MOTION else _FURNITURE, clause, is_goal=True)
        elif frame is Frame.DITRANSITIVE:
            if _is_light(clause.subject) and self._rng.chance(0.3):
                clause.recipient = self._object_pronoun(clause.subject)
            else:
                clause.recipient = self.noun_phrase(_PERSON, DEFINITE)

    def _object(self, clause: tree.Clause, depth: int, form: Form) -> tree.Phrase:
        verb = clause.verb
        if Kind.PERSON in verb.object and _is_light(clause.subject) and self._rng.chance(0.2):
            return self._object_pronoun(clause.subject)
        if clause.is_negated:
            freedom = DEFINITE if verb.frame is Frame.PREPOSITIONAL else INDEFINITE
        else:
            freedom = INDEFINITE if form.is_question else FREE
        phrase = self.noun_phrase(verb.object, freedom)
        is_plain_dative = verb.case is lexicon.Case.DATIVE and verb.frame is Frame.TRANSITIVE
        if is_plain_dative and phrase.determiner is lexicon.NONE and not clause.is_negated:
            phrase.determiner = lexicon.THE  # *er hilft Köchen* is stiff
        if verb.frame is not Frame.PLACEMENT and not verb.recipient_to:  # else it is not the last
            self._maybe_add_relative(phrase, 0.25, depth, TENSES_INSIDE[clause.tense])
        return phrase

    def _location(self, kind: Kinds, clause: tree.Clause, *, is_goal: bool) -> tree.Location:
        phrase = self.noun_phrase(kind, DEFINITE_PLACE if clause.is_negated else PLACE)
        at, to = (phrase.noun.at, phrase.noun.to) if phrase.noun.at else self._rng.pick(lexicon.AROUND_FURNITURE)
        preposition = to if is_goal else at
        assert preposition is not None
        return tree.Location(preposition, phrase)

    def _add_adverbials(self, clause: tree.Clause, form: Form) -> None:
        """Adds time or frequency, manner and place; after a relative clause only a time that comes first."""
        rng, verb, is_negated = self._rng, clause.verb, clause.is_negated
        is_about_a_thing = isinstance(clause.subject, tree.NounPhrase) and not clause.subject.kind & _BEING
        if verb.frame is Frame.COPULA or is_about_a_thing:
            return
        is_closed = has_relative(clause.object)
        is_plain = not (form.is_question or is_negated or clause.tense is Tense.FUTURE or verb.is_stative)
        if verb.frame is not Frame.CLAUSAL and not verb.is_stative and rng.chance(0.35 if form.is_main else 0.15):
            time_first = form.is_main and (is_closed or rng.chance(0.45))
            # *not every day* and *every day not* are not the same: both are avoided.
            avoided = lexicon.EVERY_DAY if is_negated else None
            times = [time for time in lexicon.TIMES if clause.tense in time.tenses and time is not avoided]
            if time_first or not is_closed:
                clause.time, clause.time_first = rng.pick(times), time_first
        elif is_plain and _is_light(clause.subject) and rng.chance(0.15):
            # The subject is definite, for a clear scope, and without a relative clause: *who sleeps often reads*.
            clause.frequency = rng.pick(lexicon.FREQUENCIES)
        if is_closed:
            return

        may_have_manner = not clause.frequency
        if clause.object is not None:
            is_free = clause.time is None or clause.time_first
            may_have_manner = may_have_manner and is_free and _is_definite(clause.object)
        if verb.manners and may_have_manner and rng.chance(0.3):
            clause.manner = rng.pick(verb.manners)

        if clause.object is None:
            may_have_place = not (is_negated and clause.manner)
        else:
            may_have_place = clause.manner is None and not (is_negated and verb.frame is Frame.PREPOSITIONAL)
        if verb.allows_place and may_have_place and rng.chance(0.3):
            clause.place = self._location(_PLACE, clause, is_goal=False)

    def _maybe_add_relative(self, phrase: tree.NounPhrase, probability: float, depth: int, tenses: Tenses) -> None:
        """A relative clause restricts what is meant, so it does not go with *this*, *my* or a possessor.

        The head is subject or object in it, or owns the subject or object (*whose*).
        """
        is_bare_mass = phrase.noun.is_mass and phrase.determiner is lexicon.NONE
        is_restricted = phrase.determiner in _RESTRICTED or phrase.possessor is not None
        if depth <= 0 or is_bare_mass or is_restricted or not self._rng.chance(probability):
            return
        pronoun = tree.RelativePronoun(phrase.kind, phrase.noun.gender, phrase.number)
        opener: tree.Phrase = pronoun
        if Kind.PERSON in phrase.kind and self._rng.chance(0.2):
            opener = self.noun_phrase(OWNED, DEFINITE)
            opener.determiner, opener.possessor, opener.whose = lexicon.THE, None, pronoun
        as_subject = _verbs_with_subject(opener.kind)
        if as_subject and self._rng.chance(0.5):
            phrase.relative = self._clause(self._rng.pick(as_subject), depth - 1, tenses, subject=opener)
        else:
            verb = self._rng.pick(_verbs_with_object(opener.kind))
            phrase.relative = self._clause(verb, depth - 1, tenses, object=opener)

    # Sentences.

    def sentence(self) -> tree.Sentence:
        self._used.clear()
        form = self._rng.weighted(_SENTENCES)
        if form == "simple":
            return tree.Statement(self._clause(self._verb(), self._depth, form=MAIN))
        if form == "complement":
            return tree.Statement(self._clausal(self._depth, ANY_TENSE, is_main=True))
        if form == "question":
            return tree.Question(self._question())
        return self._with_adverbial_clause() if form == "adverbial" else self._coordination()

    def _with_adverbial_clause(self) -> tree.Sentence:
        """Conjunctions of time join two events of one tense and need no further time; *if* joins two presents."""
        conjunction = self._rng.pick(lexicon.SUBORDINATORS)
        comes_first = self._rng.chance(0.4)
        joins_events = conjunction in (lexicon.WHILE, lexicon.BEFORE)
        depth, form = self._depth - 1, Form(may_negate=not joins_events)
        verb = self._verb(past=True, dynamic=joins_events)
        main = self._clause(verb, depth, conjunction.tenses, form._replace(is_main=not comes_first))
        tenses = frozenset({main.tense}) if joins_events else TENSES_INSIDE[main.tense] & conjunction.tenses
        inner = self._clause(self._verb(past=True, dynamic=joins_events), depth, tenses, form)
        if joins_events:
            main.time, main.time_first = None, False
            inner.time = inner.frequency = inner.modal = None
        return tree.Statement(main, tree.Embedded(conjunction, inner), comes_first)

    def _coordination(self) -> tree.Sentence:
        left = self._clause(self._verb(), 0, ANY_TENSE - {Tense.FUTURE}, MAIN)
        right = self._clause(self._verb(past=left.tense is Tense.PAST), self._depth - 1, frozenset({left.tense}))
        return tree.Coordination(lexicon.AND if self._rng.chance(0.5) else lexicon.BUT, left, right)

    def _clausal(self, depth: int, tenses: Tenses, *, is_main: bool = False) -> tree.Clause:
        """*the teacher says that ...*; the complement may be such a clause again, or an indirect question."""
        verb = self._rng.pick(verbs_of(Frame.CLAUSAL))
        form = Form(is_main=is_main, may_negate=verb.english in {"know", "believe", "say"})
        clause = self._clause(verb, 0, tenses, form)
        tenses = TENSES_INSIDE[clause.tense]
        introducer = lexicon.THAT
        if verb.english == "ask" or (verb.english == "know" and self._rng.chance(0.5)):
            is_whether = self._rng.chance(0.5)
            introducer = lexicon.WHETHER if is_whether else self._rng.pick(lexicon.QUESTION_ADVERBS)
        if introducer in lexicon.QUESTION_ADVERBS:
            inner = self._asking_for(introducer, tenses, depth - 1)
        elif introducer is lexicon.THAT and depth > 1 and self._rng.chance(0.2):
            inner = self._clausal(depth - 1, tenses)
        else:
            inner = self._clause(self._verb(past=tenses == {Tense.PAST}), depth - 1, tenses)
        clause.complement = tree.Embedded(introducer, inner)
        return clause

    def _question(self) -> tree.Clause:
        rng = self._rng
        asked_for = rng.weighted(_QUESTIONS)
        if asked_for == "yes or no":
            return self._clause(self._verb(), self._depth - 1, form=QUESTION)
        if asked_for == "adverb":
            return self._asking_for(rng.pick(lexicon.QUESTION_ADVERBS), ANY_TENSE, 0)
        if asked_for == "subject":
            subject = lexicon.WHO if rng.chance(0.6) else self._which(_PERSON)
            verb = rng.pick(_verbs_with_subject(_PERSON))
            return self._clause(verb, self._depth - 1, form=QUESTION, subject=subject)
        verbs, word = rng.pick(_ASKING_FOR_AN_OBJECT)
        verb = rng.pick(verbs)
        return self._clause(verb, 0, form=QUESTION, object=word or self._which(verb.object))

    def _which(self, kind: Kinds) -> tree.NounPhrase:
        phrase = self.noun_phrase(kind, DEFINITE)
        phrase.determiner, phrase.possessor = lexicon.WHICH, None
        return phrase

    def _asking_for(self, adverb: lexicon.Expression, tenses: Tenses, depth: int) -> tree.Clause:
        """A clause that asks for its place, goal, time or reason, and so does not give it."""
        if adverb is lexicon.WHERE:
            verb = self._rng.pick(_ASKING_WHERE)
        elif adverb is lexicon.WHERE_TO:
            verb = self._rng.pick(_ASKING_WHERE_TO)
        else:
            verb = self._verb(past=tenses == {Tense.PAST})
        if adverb is lexicon.WHEN:
            tenses = tenses - {Tense.PERFECT} or frozenset({Tense.PRESENT})
        clause = self._clause(verb, depth, tenses, QUESTION._replace(may_negate=adverb is lexicon.WHY))
        clause.question = adverb
        if adverb is lexicon.WHEN:
            clause.time = clause.frequency = None
        elif adverb is not lexicon.WHY:
            clause.place = clause.goal = None
        return clause
