"""Random sentences: choices, noun phrases that fit, clauses that are complete, and English that determines German."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest

from transformer_jax.grammar import english, german, lexicon, sampler
from transformer_jax.grammar.lexicon import NOUNS, TIMES, VERBS, Case, Frame, Kind, Number, Pronoun, Tense
from transformer_jax.grammar.sampler import SIMPLE_TENSES, TENSES_INSIDE, Rng, SentenceSampler, Weights, has_relative
from transformer_jax.grammar.tree import Clause, Coordination, NounPhrase, Sentence, Statement

Sampled = list[tuple[Sentence, str, str]]


def test_the_sequence_never_changes():
    rng = Rng("x")
    assert [rng.pick(range(100)) for _ in range(5)] == [63, 59, 48, 76, 38]


def test_choices_have_the_given_probabilities():
    rng, weights = Rng("shares"), Weights({"a": 1.0, "b": 3.0, "c": 0.0})
    counts = Counter(rng.weighted(weights) for _ in range(4000))
    assert counts["c"] == 0 and 0.22 < counts["a"] / 4000 < 0.28
    assert 0.27 < sum(rng.chance(0.3) for _ in range(4000)) / 4000 < 0.33


@pytest.mark.parametrize("name", ["DEFINITE", "INDEFINITE", "FREE", "SUBJECT", "PLACE", "DEFINITE_PLACE"])
def test_determiners_fit_the_noun_and_the_context(name: str) -> None:
    source, freedom = SentenceSampler("phrases"), getattr(sampler, name)
    phrases = [source.noun_phrase(frozenset({Kind.PERSON, Kind.FOOD, Kind.DRINK}), freedom) for _ in range(500)]
    for phrase in phrases:
        is_plural = phrase.number is Number.PLURAL
        assert not (phrase.noun.is_mass and is_plural)
        assert phrase.determiner not in {lexicon.A, lexicon.EVERY} or not is_plural
        assert phrase.determiner not in {lexicon.ALL, lexicon.MANY} or is_plural
        assert phrase.determiner is not lexicon.NONE or phrase.noun.is_mass or is_plural
        if phrase.possessor:
            assert phrase.determiner is lexicon.THE and phrase.noun.kind & sampler.OWNED
        colours = [adjective.is_colour for adjective in phrase.adjectives]
        assert colours in ([], [False], [True], [False, True])
    used = {phrase.determiner for phrase in phrases}
    if name == "DEFINITE":
        assert used <= {lexicon.THE, lexicon.THIS, *lexicon.POSSESSIVES}
    assert (lexicon.NO in used) == (name == "SUBJECT")


def clauses(sampled: Sampled) -> Iterator[Clause]:
    for sentence, _, _ in sampled:
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
    for clause in clauses(sampled):
        frame, asked = clause.verb.frame, clause.question is not None
        takes_object = {Frame.TRANSITIVE, Frame.DITRANSITIVE, Frame.PREPOSITIONAL, Frame.PLACEMENT}
        assert (clause.object is not None) == (frame in takes_object)
        assert (clause.recipient is not None) == (frame is Frame.DITRANSITIVE)
        assert (clause.predicate is not None) == (frame is Frame.COPULA)
        assert asked or (clause.goal is not None) == (frame in {Frame.MOTION, Frame.PLACEMENT})
        assert asked or frame is not Frame.POSITION or clause.place is not None


def test_tenses_agree(sampled: Sampled) -> None:
    for clause in clauses(sampled):
        if clause.verb.is_stative or clause.verb.frame is Frame.COPULA:
            assert clause.tense in SIMPLE_TENSES and clause.modal is None
        assert clause.modal is None or clause.tense in SIMPLE_TENSES
        assert clause.time is None or clause.tense in clause.time.tenses
        assert clause.tense is not Tense.PAST or clause.verb.past != clause.verb.english
        if clause.complement and clause.complement.clause.tense is not Tense.PRESENT:
            assert clause.complement.clause.tense in TENSES_INSIDE[clause.tense]


def test_nothing_could_belong_to_a_relative_clause_before_it_and_no_reflexive_is_needed(sampled: Sampled) -> None:
    for clause in clauses(sampled):
        if has_relative(clause.object):
            assert clause.manner is None and (clause.time is None or clause.time_first)
        for phrase in (clause.object, clause.recipient):
            if isinstance(phrase, Pronoun) and phrase.is_first_person:
                assert not (isinstance(clause.subject, Pronoun) and clause.subject.is_first_person)


def test_english_determines_german(sampled: Sampled) -> None:
    assert _contradictions((source, target) for _, source, target in sampled) == []


@pytest.mark.drill
def test_english_determines_german_in_200_000_sentences() -> None:
    assert _contradictions(_rendered(SentenceSampler("many", depth=3), 200_000)) == []


def test_a_small_lexicon_leaves_no_ambiguity(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few nouns the same English comes up again and again, from different trees: a contradiction would show."""
    all_nouns_of = sampler.nouns_of
    monkeypatch.setattr(sampler, "nouns_of", lambda kind: all_nouns_of(kind)[:1])
    monkeypatch.setattr(SentenceSampler, "adjectives", lambda self, kind: ())
    pairs = list(_rendered(SentenceSampler("small lexicon", depth=0), 4_000))
    short = [source for source, _ in pairs if source.count(" ") < 6]
    assert len(set(short)) < 0.97 * len(short)
    assert _contradictions(pairs) == []


def _rendered(source: SentenceSampler, count: int) -> Iterator[tuple[str, str]]:
    sentences = (source.sentence() for _ in range(count))
    return ((english.render(sentence), german.render(sentence)) for sentence in sentences)


def _contradictions(pairs: Iterable[tuple[str, str]]) -> list[str]:
    known: dict[str, str] = {}
    return [source for source, target in pairs if known.setdefault(source, target) != target]


def test_tokens_and_punctuation(sampled: Sampled) -> None:
    for _, source, target in sampled:
        for tokens in (source.split(" "), target.split(" ")):
            assert all(tokens)
            assert tokens[-1] in {".", "?"} and tokens[0] != ","
            assert not any(first == "," and second in {",", ".", "?"} for first, second in pairwise(tokens))
        assert source.endswith("?") == target.endswith("?")


def test_german_nouns_and_only_they_are_capitalised_and_every_word_is_used(sampled: Sampled) -> None:
    nouns = {german.noun_form(word, number, case) for word in NOUNS for number in Number for case in Case}
    in_adverbials = {"Tag", "Morgen", "Abend", "Sonntag", "Montag", "Sommer", "Winter", "Woche"}
    in_adverbials |= {"Bus", "Zug", "Auto", "Fahrrad"}
    seen = {word for _, _, target in sampled for word in target.split()}
    assert {word for word in seen if word[0].isupper()} <= nouns | in_adverbials
    assert {word.german for word in NOUNS} <= seen
    assert {word.german for word in TIMES if " " not in word.german} <= seen
    assert all({word.german.third, word.german.past} & seen for word in VERBS)
