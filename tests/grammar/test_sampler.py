"""Random sentences: English determines German, and both look like sentences."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest

from transformer_jax.grammar import english, german, phrases
from transformer_jax.grammar.lexicon import NOUNS, TIMES, VERBS, Case, Number
from transformer_jax.grammar.sampler import SentenceSampler
from transformer_jax.grammar.tree import Sentence


def test_english_determines_german(sampled: list[tuple[Sentence, str, str]]) -> None:
    assert _contradictions((source, target) for _, source, target in sampled) == []


@pytest.mark.drill
def test_english_determines_german_in_200_000_sentences() -> None:
    sampler = SentenceSampler("many", depth=3)
    sentences = (sampler.sentence() for _ in range(200_000))
    assert _contradictions((english.render(sentence), german.render(sentence)) for sentence in sentences) == []


def _contradictions(stream: Iterable[tuple[str, str]]) -> list[str]:
    known: dict[str, str] = {}
    return [source for source, target in stream if known.setdefault(source, target) != target]


def test_tokens_and_punctuation(sampled: list[tuple[Sentence, str, str]]) -> None:
    for _, source, target in sampled:
        for tokens in (source.split(" "), target.split(" ")):
            assert all(tokens)
            assert tokens[-1] in {".", "?"} and tokens[0] != ","
            neighbours = list(pairwise(tokens))
            assert not any(first == "," and second in {",", ".", "?"} for first, second in neighbours)
        assert source.endswith("?") == target.endswith("?")


def test_german_nouns_and_only_they_are_capitalised(sampled: list[tuple[Sentence, str, str]]) -> None:
    nouns = {german.noun_form(word, number, case) for word in NOUNS for number in Number for case in Case}
    in_adverbials = {"Tag", "Morgen", "Abend", "Sonntag", "Montag", "Sommer", "Winter", "Woche"}
    in_adverbials |= {"Bus", "Zug", "Auto", "Fahrrad"}
    capitalised = {word for _, _, target in sampled for word in target.split() if word[0].isupper()}
    assert capitalised <= nouns | in_adverbials


def test_every_word_is_used(sampled: list[tuple[Sentence, str, str]]) -> None:
    seen = {word for _, _, target in sampled for word in target.split()}
    assert {word.german for word in NOUNS} <= seen
    assert {word.german for word in TIMES if " " not in word.german} <= seen
    assert all({word.german.third, word.german.past} & seen for word in VERBS)


def test_a_small_lexicon_leaves_no_ambiguity(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few nouns the same English comes up again and again, from different trees: a contradiction would show."""
    all_nouns_of = phrases.nouns_of
    monkeypatch.setattr(phrases, "nouns_of", lambda kind: all_nouns_of(kind)[:1])
    monkeypatch.setattr(phrases, "adjectives_of", lambda kind, colours: ())
    sampler = SentenceSampler("small lexicon", depth=0)
    found = [(english.render(tree), german.render(tree)) for tree in (sampler.sentence() for _ in range(4_000))]
    short = [source for source, _ in found if source.count(" ") < 6]
    assert len(set(short)) < 0.97 * len(short)
    assert _contradictions(found) == []
