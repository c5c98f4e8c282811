"""Random clauses: which words go together.

Constructions that would be ambiguous or odd in one of the languages are avoided: an adverbial after a relative clause
could belong to either clause, *never* does not go with *no*, and so on.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple

from transformer_jax.grammar import lexicon, phrases
from transformer_jax.grammar.lexicon import ANY_TENSE, Case, Frame, Kind, Modal, Pronoun, Tense, Verb
from transformer_jax.grammar.phrases import Freedom, PhraseSampler, adjectives_of
from transformer_jax.grammar.rng import Rng
from transformer_jax.grammar.tree import Clause, Location, NounPhrase, Phrase, RelativePronoun

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


def _kind(phrase: Phrase) -> Kind:
    """The kind of what a phrase is about; pronouns are about persons."""
    if isinstance(phrase, RelativePronoun):
        return phrase.antecedent.kind
    return phrase.noun.kind if isinstance(phrase, NounPhrase) else Kind.PERSON


def is_animate(subject: Phrase) -> bool:
    return bool(_kind(subject) & _BEING)


def has_relative(phrase: Phrase | None) -> bool:
    return isinstance(phrase, NounPhrase) and phrase.relative is not None


class Form(NamedTuple):
    """What its place in the sentence allows a clause."""

    is_main: bool = False  # the time may come first
    is_question: bool = False  # no quantifier, as its scope would be unclear
    may_negate: bool = True  # *not*, and *no* with the subject


MAIN, SUBORDINATE, QUESTION = Form(is_main=True), Form(), Form(is_question=True, may_negate=False)


class ClauseSampler:
    """Random clauses. `depth` is the number of clauses that may be nested in one another."""

    def __init__(self, rng: Rng):
        self._rng = rng
        self.phrases = PhraseSampler(rng)

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
        subject: Phrase | None = None,
        object: Phrase | None = None,
    ) -> Clause:
        """A clause with the verb, and with the subject or object if one is given."""
        negated = form.may_negate and self._rng.chance(0.15)
        if subject is None:
            freedom = phrases.SUBJECT if form.may_negate else phrases.FREE
            if negated or form.is_question:
                freedom = phrases.DEFINITE
            subject = self._subject(verb, 0 if form.is_question else depth, freedom, tenses)
        tense = self._tense(verb, tenses)
        clause = Clause(verb, subject, tense, self._modal(verb, subject, tense), negated, object=object)
        return self._with_adverbials(self._with_objects(clause, depth, form), form)

    def _tense(self, verb: Verb, tenses: frozenset[Tense]) -> Tense:
        allowed = tenses & SIMPLE_TENSES if verb.is_stative or verb.frame is Frame.COPULA else tenses
        weights = [(tense, weight) for tense, weight in _TENSE_WEIGHTS if tense in allowed]
        tense = self._rng.weighted(weights) if weights else Tense.PRESENT
        is_unclear = tense is Tense.PAST and verb.past == verb.english
        return Tense.PRESENT if is_unclear else tense

    def _modal(self, verb: Verb, subject: Phrase, tense: Tense) -> Modal | None:
        fits = tense in SIMPLE_TENSES and is_animate(subject)
        if not fits or verb.is_stative or verb.frame in {Frame.COPULA, Frame.CLAUSAL}:
            return None
        return self._rng.pick(lexicon.MODALS) if self._rng.chance(0.22) else None

    def _subject(self, verb: Verb, depth: int, freedom: Freedom, tenses: frozenset[Tense]) -> Phrase:
        kind = _DESCRIBABLE if verb.frame is Frame.COPULA else verb.subject
        if kind & Kind.PERSON and self._rng.chance(0.3):
            return self.phrases.pronoun()
        if verb.frame is Frame.COPULA:  # no other adjective: *the cheap gift is expensive*
            phrase = replace(self.phrases.noun_phrase(kind, phrases.DEFINITE), adjectives=())
        else:
            phrase = self.phrases.noun_phrase(kind, freedom)
        return self._maybe_with_relative(phrase, 0.2, min(depth, 1), tenses)

    def _with_objects(self, clause: Clause, depth: int, form: Form) -> Clause:
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

    def _object(self, clause: Clause, depth: int, form: Form) -> Phrase:
        verb = clause.verb
        if verb.object & Kind.PERSON and _is_light(clause.subject) and self._rng.chance(0.2):
            return self._object_pronoun(clause.subject)
        if clause.is_negated:
            freedom = phrases.DEFINITE if verb.frame is Frame.PREPOSITIONAL else phrases.INDEFINITE
        else:
            freedom = phrases.INDEFINITE if form.is_question else phrases.FREE
        phrase = self.phrases.noun_phrase(verb.object, freedom)
        is_plain_dative = verb.case is Case.DATIVE and verb.frame is Frame.TRANSITIVE
        if is_plain_dative and phrase.determiner is lexicon.NONE and not clause.is_negated:
            phrase = replace(phrase, determiner=lexicon.THE)  # *er hilft Köchen* is stiff
        is_last = verb.frame is not Frame.PLACEMENT and not verb.recipient_to
        return self._maybe_with_relative(phrase, 0.25, depth, TENSES_INSIDE[clause.tense]) if is_last else phrase

    def _object_pronoun(self, subject: Phrase) -> Pronoun:
        """Not *I see me*, which would need a reflexive."""
        subject_is_first = isinstance(subject, Pronoun) and subject.is_first_person
        pronoun = self.phrases.pronoun()
        while subject_is_first and pronoun.is_first_person:
            pronoun = self.phrases.pronoun()
        return pronoun

    def _recipient(self, clause: Clause) -> NounPhrase | Pronoun:
        if _is_light(clause.subject) and self._rng.chance(0.3):
            return self._object_pronoun(clause.subject)
        return self.phrases.noun_phrase(Kind.PERSON, phrases.DEFINITE)

    def _location(self, kind: Kind, clause: Clause, *, is_goal: bool) -> Location:
        freedom = phrases.DEFINITE_PLACE if clause.is_negated else phrases.PLACE
        phrase = self.phrases.noun_phrase(kind, freedom)
        at, to = (phrase.noun.at, phrase.noun.to) if phrase.noun.at else self._rng.pick(lexicon.AROUND_FURNITURE)
        preposition = to if is_goal else at
        assert preposition is not None
        return Location(preposition, phrase)

    def _with_adverbials(self, clause: Clause, form: Form) -> Clause:
        """Adds time or frequency, manner and place; after a relative clause only a time that comes first."""
        rng, verb = self._rng, clause.verb
        if verb.frame is Frame.COPULA or (isinstance(clause.subject, NounPhrase) and not is_animate(clause.subject)):
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

    def _may_be_frequent(self, clause: Clause) -> bool:
        """Only with definite subjects, for a clear scope, and not after a relative clause: *who sleeps often reads*."""
        is_plain = not (clause.is_negated or clause.tense is Tense.FUTURE or clause.verb.is_stative)
        return is_plain and _is_light(clause.subject)

    def _may_have_manner(self, clause: Clause) -> bool:
        if clause.frequency:
            return False
        if clause.object is None:
            return True
        is_plain = _is_definite(clause.object) or isinstance(clause.object, RelativePronoun)
        return is_plain and (clause.time is None or clause.time_first)

    def _may_have_place(self, clause: Clause) -> bool:
        if clause.object is None:
            return not (clause.is_negated and clause.manner)
        return clause.manner is None and not (clause.is_negated and clause.verb.frame is Frame.PREPOSITIONAL)

    def _maybe_with_relative(
        self, phrase: NounPhrase, probability: float, depth: int, tenses: frozenset[Tense]
    ) -> NounPhrase:
        """A relative clause restricts what is meant, so it does not go with *this*, *my* or a possessor."""
        is_bare_mass = phrase.noun.is_mass and phrase.determiner is lexicon.NONE
        is_restricted = phrase.determiner in _NEVER_WITH_RELATIVE or phrase.possessor is not None
        if depth <= 0 or is_bare_mass or is_restricted or not self._rng.chance(probability):
            return phrase
        return replace(phrase, relative=self._relative(phrase, depth - 1, tenses))

    def _relative(self, head: NounPhrase, depth: int, tenses: frozenset[Tense]) -> Clause:
        """The head is subject or object in it, or owns the subject or object (*whose*)."""
        pronoun = RelativePronoun(head.noun, head.number)
        if head.noun.kind & Kind.PERSON and self._rng.chance(0.2):
            owned = self.phrases.noun_phrase(phrases.OWNED, phrases.DEFINITE)
            owned = replace(owned, determiner=lexicon.THE, possessor=None, whose=pronoun)
            return self._clause_about(owned, depth, tenses)
        return self._clause_about(pronoun, depth, tenses)

    def _clause_about(self, opener: Phrase, depth: int, tenses: frozenset[Tense]) -> Clause:
        as_subject, as_object = _verbs_with_subject(_kind(opener)), _verbs_with_object(_kind(opener))
        if as_subject and self._rng.chance(0.5):
            return self.clause(self._rng.pick(as_subject), depth, tenses, subject=opener)
        return self.clause(self._rng.pick(as_object), depth, tenses, object=opener)


def _is_light(subject: Phrase) -> bool:
    """Whether German may put the subject before an object pronoun: pronouns come before what is long or new."""
    return _is_definite(subject) and not has_relative(subject)


def _is_definite(phrase: Phrase | None) -> bool:
    """Pronouns and definite noun phrases that are about particular ones: not *every* and not *all*."""
    if isinstance(phrase, NounPhrase):
        return phrase.determiner.is_definite and phrase.determiner not in (lexicon.EVERY, lexicon.ALL)
    return phrase is not None
