"""Random sentences: choices, noun phrases that fit, clauses that are complete, and English that determines German."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest

from transformer_jax.grammar import english, german, sampler
from transformer_jax.grammar.lexicon import (
    ALL,
    EVERY,
    MANY,
    NO,
    NONE,
    NOUNS,
    POSSESSIVES,
    THE,
    THIS,
    TIMES,
    VERBS,
    A,
    Case,
    Frame,
    Kind,
    Number,
    Pronoun,
    Tense,
)
from transformer_jax.grammar.sampler import (
    DEFINITE,
    OWNED,
    SIMPLE_TENSES,
    SUBJECT,
    TENSES_INSIDE,
    Freedom,
    PhraseSampler,
    Rng,
    SentenceSampler,
    has_relative,
)
from transformer_jax.grammar.tree import Clause, Coordination, NounPhrase, Sentence, Statement

Sampled = list[tuple[Sentence, str, str]]


def test_the_sequence_never_changes():
    rng = Rng("x")
    assert [rng.below(100) for _ in range(5)] == [63, 59, 48, 76, 38]
    assert [Rng("y").below(10**6) for _ in range(2)] == [Rng("y").below(10**6)] * 2


def test_choices_have_the_given_probabilities():
    rng = Rng("shares")
    counts = Counter(rng.weighted((("a", 1.0), ("b", 3.0), ("c", 0.0))) for _ in range(4000))
    assert counts["c"] == 0 and 0.22 < counts["a"] / 4000 < 0.28
    assert 0.27 < sum(rng.chance(0.3) for _ in range(4000)) / 4000 < 0.33
    assert {rng.pick("abc") for _ in range(100)} == set("abc")


# Noun phrases.

NAMES = ["DEFINITE", "INDEFINITE", "FREE", "SUBJECT", "PLACE", "DEFINITE_PLACE"]


@pytest.mark.parametrize("freedom", [getattr(sampler, name) for name in NAMES], ids=NAMES)
def test_determiners_fit_the_noun_and_the_context(freedom: Freedom) -> None:
    phrases = PhraseSampler("phrases")
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


# Clauses.


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


# Sentences.


def test_english_determines_german(sampled: Sampled) -> None:
    assert _contradictions((source, target) for _, source, target in sampled) == []


@pytest.mark.drill
def test_english_determines_german_in_200_000_sentences() -> None:
    source = SentenceSampler("many", depth=3)
    sentences = (source.sentence() for _ in range(200_000))
    assert _contradictions((english.render(sentence), german.render(sentence)) for sentence in sentences) == []


def _contradictions(stream: Iterable[tuple[str, str]]) -> list[str]:
    known: dict[str, str] = {}
    return [source for source, target in stream if known.setdefault(source, target) != target]


def test_tokens_and_punctuation(sampled: Sampled) -> None:
    for _, source, target in sampled:
        for tokens in (source.split(" "), target.split(" ")):
            assert all(tokens)
            assert tokens[-1] in {".", "?"} and tokens[0] != ","
            neighbours = list(pairwise(tokens))
            assert not any(first == "," and second in {",", ".", "?"} for first, second in neighbours)
        assert source.endswith("?") == target.endswith("?")


def test_german_nouns_and_only_they_are_capitalised(sampled: Sampled) -> None:
    nouns = {german.noun_form(word, number, case) for word in NOUNS for number in Number for case in Case}
    in_adverbials = {"Tag", "Morgen", "Abend", "Sonntag", "Montag", "Sommer", "Winter", "Woche"}
    in_adverbials |= {"Bus", "Zug", "Auto", "Fahrrad"}
    capitalised = {word for _, _, target in sampled for word in target.split() if word[0].isupper()}
    assert capitalised <= nouns | in_adverbials


def test_every_word_is_used(sampled: Sampled) -> None:
    seen = {word for _, _, target in sampled for word in target.split()}
    assert {word.german for word in NOUNS} <= seen
    assert {word.german for word in TIMES if " " not in word.german} <= seen
    assert all({word.german.third, word.german.past} & seen for word in VERBS)


def test_a_small_lexicon_leaves_no_ambiguity(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few nouns the same English comes up again and again, from different trees: a contradiction would show."""
    all_nouns_of = sampler.nouns_of
    monkeypatch.setattr(sampler, "nouns_of", lambda kind: all_nouns_of(kind)[:1])
    monkeypatch.setattr(PhraseSampler, "adjectives", lambda self, kind: ())
    source = SentenceSampler("small lexicon", depth=0)
    found = [(english.render(tree), german.render(tree)) for tree in (source.sentence() for _ in range(4_000))]
    short = [source for source, _ in found if source.count(" ") < 6]
    assert len(set(short)) < 0.97 * len(short)
    assert _contradictions(found) == []
