"""Random sentences: statements, questions and coordinations, made of random clauses."""

from __future__ import annotations

from dataclasses import replace

from transformer_jax.grammar import lexicon
from transformer_jax.grammar.clauses import MAIN, QUESTION, TENSES_INSIDE, ClauseSampler, Form, verbs_of
from transformer_jax.grammar.lexicon import ANY_TENSE, Expression, Frame, Kind, Tense, Verb
from transformer_jax.grammar.phrases import DEFINITE
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
        self._clause, self._verb = self._clauses.clause, self._clauses.verb
        self._depth = depth

    def sentence(self) -> Sentence:
        self._clauses.phrases.start_sentence()
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

    def _simple(self) -> Sentence:
        return Statement(self._clause(self._verb(), self._depth, form=MAIN))

    def _with_adverbial_clause(self) -> Sentence:
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
            main = replace(main, time=None, time_first=False)
            inner = replace(inner, time=None, frequency=None, modal=None)
        return Statement(main, Embedded(conjunction, inner), comes_first)

    def _with_complement(self) -> Sentence:
        return Statement(self._clausal(self._depth, ANY_TENSE, is_main=True))

    def _clausal(self, depth: int, tenses: frozenset[Tense], *, is_main: bool = False) -> Clause:
        """*the teacher says that ...*; the complement may be such a clause again."""
        verb = self._rng.pick(verbs_of(Frame.CLAUSAL))
        clause = self._clause(verb, 0, tenses, Form(is_main=is_main, may_negate=verb.english in _NEGATED_CLAUSAL))
        asks = verb in _INDIRECT_QUESTION_VERBS and (verb not in _THAT_VERBS or self._rng.chance(0.5))
        tenses = TENSES_INSIDE[clause.tense]
        if asks:
            return replace(clause, complement=self._indirect_question(depth - 1, tenses))
        if depth > 1 and self._rng.chance(0.2):
            return replace(clause, complement=Embedded(lexicon.THAT, self._clausal(depth - 1, tenses)))
        inner = self._clause(self._verb_for(tenses), depth - 1, tenses)
        return replace(clause, complement=Embedded(lexicon.THAT, inner))

    def _verb_for(self, tenses: frozenset[Tense]) -> Verb:
        return self._verb(past=tenses == {Tense.PAST})

    def _indirect_question(self, depth: int, tenses: frozenset[Tense]) -> Embedded:
        if self._rng.chance(0.5):
            return Embedded(lexicon.WHETHER, self._clause(self._verb_for(tenses), depth, tenses))
        adverb = self._rng.pick(lexicon.QUESTION_ADVERBS)
        return Embedded(adverb, self._adverb_clause(adverb, tenses, depth))

    def _question(self) -> Sentence:
        rule = self._rng.weighted(
            (
                (self._yes_no_question, 0.4),
                (self._subject_question, 0.17),
                (self._object_question, 0.23),
                (self._adverb_question, 0.2),
            )
        )
        return Question(rule())

    def _yes_no_question(self) -> Clause:
        return self._clause(self._verb(), self._depth - 1, form=QUESTION)

    def _subject_question(self) -> Clause:
        subject = lexicon.WHO if self._rng.chance(0.6) else self._which(Kind.PERSON)
        return self._clause(self._rng.pick(_WHO_VERBS), self._depth - 1, form=QUESTION, subject=subject)

    def _object_question(self) -> Clause:
        verbs, asked = self._rng.pick(((_WHOM_VERBS, lexicon.WHO), (_WHAT_VERBS, lexicon.WHAT), (_OBJECT_VERBS, None)))
        verb = self._rng.pick(verbs)
        return self._clause(verb, 0, form=QUESTION, object=asked or self._which(verb.object))

    def _which(self, kind: Kind) -> NounPhrase:
        phrase = self._clauses.phrases.noun_phrase(kind, DEFINITE)
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
        clause = self._clause(verb, depth, tenses, QUESTION._replace(may_negate=adverb is lexicon.WHY))
        clause = replace(clause, question=adverb)
        if adverb is lexicon.WHY:
            return clause
        if adverb is lexicon.WHEN:
            return replace(clause, time=None, frequency=None)
        return replace(clause, place=None, goal=None)

    def _coordination(self) -> Sentence:
        left = self._clause(self._verb(), 0, _NOT_FUTURE, MAIN)
        tenses = frozenset({left.tense})
        right = self._clause(self._verb_for(tenses), self._depth - 1, tenses)
        return Coordination(lexicon.AND if self._rng.chance(0.5) else lexicon.BUT, left, right)
