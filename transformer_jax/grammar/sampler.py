"""Random sentences: statements, questions and coordinations, made of random clauses."""

from __future__ import annotations

from dataclasses import replace

from transformer_jax.grammar import lexicon
from transformer_jax.grammar.clauses import TENSES_INSIDE, ClauseSampler, verbs_of
from transformer_jax.grammar.lexicon import ANY_TENSE, Expression, Frame, Kind, Tense, Verb
from transformer_jax.grammar.phrases import Freedom
from transformer_jax.grammar.rng import Rng
from transformer_jax.grammar.tree import Clause, Coordination, Embedded, NounPhrase, Question, Sentence, Statement

_BEING = Kind.PERSON | Kind.ANIMAL
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


class SentenceSampler:
    """An endless, reproducible source of sentences. `depth`: how many clauses may be nested in a main clause."""

    def __init__(self, seed_text: str, depth: int = 2):
        self._rng = Rng(seed_text)
        self._clauses = ClauseSampler(self._rng)
        self._depth = depth

    def sentence(self) -> Sentence:
        self._clauses.phrases.start_sentence()
        draw = self._rng.weighted(
            (
                (self._simple, 0.46),
                (self._with_adverbial_clause, 0.16),
                (self._with_complement, 0.13),
                (self._question, 0.18),
                (self._coordination, 0.07),
            )
        )
        return draw()

    def _main_clause(self, tenses: frozenset[Tense] = ANY_TENSE, verb: Verb | None = None) -> Clause:
        return self._clauses.clause(verb or self._clauses.verb(), self._depth, tenses, is_main=True)

    def _simple(self) -> Sentence:
        return Statement(self._main_clause())

    def _with_adverbial_clause(self) -> Sentence:
        """Conjunctions of time join two events of one tense and need no further time; *if* joins two presents."""
        conjunction = self._rng.pick(lexicon.SUBORDINATORS)
        comes_first = self._rng.chance(0.4)
        joins_events = conjunction in (lexicon.WHILE, lexicon.BEFORE)
        depth = self._depth - 1
        verb = self._clauses.verb(past=True, dynamic=joins_events)
        main = self._clauses.clause(
            verb, depth, conjunction.tenses, is_main=not comes_first, may_negate=not joins_events
        )
        tenses = frozenset({main.tense}) if joins_events else TENSES_INSIDE[main.tense] & conjunction.tenses
        inner_verb = self._clauses.verb(past=True, dynamic=joins_events)
        inner = self._clauses.clause(inner_verb, depth, tenses, may_negate=not joins_events)
        if joins_events:
            main = replace(main, time=None, time_first=False)
            inner = replace(inner, time=None, frequency=None, modal=None)
        return Statement(main, Embedded(conjunction, inner), comes_first)

    def _with_complement(self) -> Sentence:
        return Statement(self._clausal(self._depth, is_main=True))

    def _clausal(self, depth: int, tenses: frozenset[Tense] = ANY_TENSE, *, is_main: bool = False) -> Clause:
        """*the teacher says that ...*; the complement may be such a clause again."""
        verb = self._rng.pick(verbs_of(Frame.CLAUSAL))
        may_negate = verb.english in _NEGATED_CLAUSAL
        clause = self._clauses.clause(verb, 0, tenses, is_main=is_main, may_negate=may_negate)
        asks = verb in _INDIRECT_QUESTION_VERBS and (verb not in _THAT_VERBS or self._rng.chance(0.5))
        tenses = TENSES_INSIDE[clause.tense]
        if asks:
            return replace(clause, complement=self._indirect_question(depth - 1, tenses))
        if depth > 1 and self._rng.chance(0.2):
            return replace(clause, complement=Embedded(lexicon.THAT, self._clausal(depth - 1, tenses)))
        inner = self._clauses.clause(self._verb_for(tenses), depth - 1, tenses)
        return replace(clause, complement=Embedded(lexicon.THAT, inner))

    def _verb_for(self, tenses: frozenset[Tense]) -> Verb:
        return self._clauses.verb(past=tenses == {Tense.PAST})

    def _indirect_question(self, depth: int, tenses: frozenset[Tense]) -> Embedded:
        if self._rng.chance(0.5):
            return Embedded(lexicon.WHETHER, self._clauses.clause(self._verb_for(tenses), depth, tenses))
        adverb = self._rng.pick(lexicon.QUESTION_ADVERBS)
        return Embedded(adverb, self._adverb_clause(adverb, tenses, depth))

    def _question(self) -> Sentence:
        draw = self._rng.weighted(
            (
                (self._yes_no_question, 0.4),
                (self._subject_question, 0.17),
                (self._object_question, 0.23),
                (self._adverb_question, 0.2),
            )
        )
        return Question(draw())

    def _yes_no_question(self) -> Clause:
        return self._clauses.clause(self._clauses.verb(), self._depth - 1, is_question=True, may_negate=False)

    def _subject_question(self) -> Clause:
        subject = lexicon.WHO if self._rng.chance(0.6) else self._which(Kind.PERSON)
        verb = self._rng.pick(_WHO_VERBS)
        return self._clauses.clause(verb, self._depth - 1, subject=subject, is_question=True, may_negate=False)

    def _object_question(self) -> Clause:
        roll = self._rng.below(3)
        if roll == 0:
            verb, asked = self._rng.pick(_WHOM_VERBS), lexicon.WHO
        elif roll == 1:
            verb, asked = self._rng.pick(_WHAT_VERBS), lexicon.WHAT
        else:
            verb = self._rng.pick(_OBJECT_VERBS)
            return self._clauses.clause(verb, 0, object=self._which(verb.object), is_question=True, may_negate=False)
        return self._clauses.clause(verb, 0, object=asked, is_question=True, may_negate=False)

    def _which(self, kind: Kind) -> NounPhrase:
        phrase = self._clauses.phrases.noun_phrase(kind, Freedom.DEFINITE)
        return replace(phrase, determiner=lexicon.WHICH, possessor=None)

    def _adverb_question(self) -> Clause:
        return self._adverb_clause(self._rng.pick(lexicon.QUESTION_ADVERBS), ANY_TENSE, 0)

    def _adverb_clause(self, adverb: Expression, tenses: frozenset[Tense], depth: int) -> Clause:
        """A clause that asks for its place, goal, time or reason, and so does not give it."""
        if adverb is lexicon.WHERE:
            verb = self._rng.pick(_PLACED_VERBS)
        elif adverb is lexicon.WHERE_TO:
            verb = self._rng.pick(_AIMED_VERBS)
        else:
            verb = self._verb_for(tenses)
        if adverb is lexicon.WHEN:
            tenses = tenses - {Tense.PERFECT} or frozenset({Tense.PRESENT})
        may_negate = adverb is lexicon.WHY
        clause = self._clauses.clause(verb, depth, tenses, is_question=True, may_negate=may_negate)
        clause = replace(clause, question=adverb)
        if adverb is lexicon.WHY:
            return clause
        if adverb is lexicon.WHEN:
            return replace(clause, time=None, frequency=None)
        return replace(clause, place=None, goal=None)

    def _coordination(self) -> Sentence:
        left = self._clauses.clause(self._clauses.verb(), 0, _NOT_FUTURE, is_main=True)
        right = self._clauses.clause(self._verb_for(frozenset({left.tense})), self._depth - 1, frozenset({left.tense}))
        return Coordination(lexicon.AND if self._rng.chance(0.5) else lexicon.BUT, left, right)
