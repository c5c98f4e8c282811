"""Clauses: every verb has what it needs, and nothing that would be ambiguous or odd."""

from __future__ import annotations

from collections.abc import Iterator

from transformer_jax.grammar.clauses import SIMPLE_TENSES, TENSES_INSIDE, has_relative
from transformer_jax.grammar.lexicon import Frame, Pronoun, Tense
from transformer_jax.grammar.tree import Clause, Coordination, NounPhrase, Sentence, Statement

Sampled = list[tuple[Sentence, str, str]]


def clauses(sentence: Sentence) -> Iterator[Clause]:
    tops = [sentence.left, sentence.right] if isinstance(sentence, Coordination) else [sentence.clause]
    if isinstance(sentence, Statement) and sentence.adverbial:
        tops.append(sentence.adverbial.clause)
    for clause in tops:
        yield from nested(clause)


def nested(clause: Clause) -> Iterator[Clause]:
    yield clause
    for phrase in (clause.subject, clause.object):
        if isinstance(phrase, NounPhrase) and phrase.relative:
            yield from nested(phrase.relative)
    if clause.complement:
        yield from nested(clause.complement.clause)


def test_every_clause_has_what_its_verb_needs(sampled: Sampled) -> None:
    for clause in (clause for sentence, _, _ in sampled for clause in clauses(sentence)):
        frame, asked = clause.verb.frame, clause.question is not None
        takes_object = {Frame.TRANSITIVE, Frame.DITRANSITIVE, Frame.PREPOSITIONAL, Frame.PLACEMENT}
        assert (clause.object is not None) == (frame in takes_object)
        assert (clause.recipient is not None) == (frame is Frame.DITRANSITIVE)
        assert (clause.predicate is not None) == (frame is Frame.COPULA)
        assert asked or (clause.goal is not None) == (frame in {Frame.MOTION, Frame.PLACEMENT})
        assert asked or frame is not Frame.POSITION or clause.place is not None


def test_tenses_agree(sampled: Sampled) -> None:
    for clause in (clause for sentence, _, _ in sampled for clause in clauses(sentence)):
        if clause.verb.is_stative or clause.verb.frame is Frame.COPULA:
            assert clause.tense in SIMPLE_TENSES and clause.modal is None
        assert clause.modal is None or clause.tense in SIMPLE_TENSES
        assert clause.time is None or clause.tense in clause.time.tenses
        assert clause.tense is not Tense.PAST or clause.verb.past != clause.verb.english
        if clause.complement and clause.complement.clause.tense is not Tense.PRESENT:
            assert clause.complement.clause.tense in TENSES_INSIDE[clause.tense]


def test_nothing_stands_behind_a_relative_clause_that_could_belong_to_it(sampled: Sampled) -> None:
    for clause in (clause for sentence, _, _ in sampled for clause in clauses(sentence)):
        if has_relative(clause.object):
            assert clause.manner is None and (clause.time is None or clause.time_first)


def test_no_reflexive_is_needed(sampled: Sampled) -> None:
    for clause in (clause for sentence, _, _ in sampled for clause in clauses(sentence)):
        for phrase in (clause.object, clause.recipient):
            if isinstance(phrase, Pronoun) and phrase.is_first_person:
                assert not (isinstance(clause.subject, Pronoun) and clause.subject.is_first_person)
