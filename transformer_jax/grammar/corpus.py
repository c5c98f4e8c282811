"""The grammar as a stream of pairs, in three sections that cannot share a sentence.

The compositional section has pairs of a word and a construction that no other section contains. Each of these words is
common in the others, and so is each construction; only the two together are new.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator

from transformer_jax.grammar import english, german
from transformer_jax.grammar.lexicon import Case, GermanVerb, Number, Tense
from transformer_jax.grammar.sampler import SentenceSampler
from transformer_jax.grammar.tree import Clause, Coordination, NounPhrase, Phrase, Sentence, Statement

# Sentences of the long section exceed this on *both* sides, all others on neither; sentences in between are not used.
MAX_TOKENS = 24
MAX_TOKENS_LONG = 60
_DEPTH, _DEPTH_LONG = 2, 4


class CorpusSection(enum.Enum):
    """Where a sentence belongs, by its form alone."""

    COMMON = "at most MAX_TOKENS on either side, and no held-out pair"
    LONG = "more than MAX_TOKENS on both sides, more deeply nested, and no held-out pair"
    COMPOSITIONAL = "at most MAX_TOKENS on either side, and at least one held-out pair"


def sentence_pairs(
    section: CorpusSection, seed_text: str, is_wanted: Callable[[str], bool] = lambda source: True
) -> Iterator[tuple[str, str]]:
    """An endless stream of (English, German), a function of the section and the seed text, whose English is wanted."""
    is_long = section is CorpusSection.LONG
    sampler = SentenceSampler(seed_text, _DEPTH_LONG if is_long else _DEPTH)
    shortest, longest = (MAX_TOKENS + 1, MAX_TOKENS_LONG) if is_long else (1, MAX_TOKENS)
    while True:
        sentence = sampler.sentence()
        if is_held_out(sentence) is not (section is CorpusSection.COMPOSITIONAL):
            continue
        source = english.render(sentence)
        if not (shortest <= source.count(" ") + 1 <= longest and is_wanted(source)):
            continue
        target = german.render(sentence)
        if shortest <= target.count(" ") + 1 <= longest:
            yield source, target


# A verb in the perfect tense, a verb of a subordinate or relative clause, an adjective after *be*, a noun in the dative
# plural, a noun with a relative clause, a noun in the genitive.
Construction = enum.IntEnum("Construction", "PERFECT VERB_FINAL PREDICATIVE DATIVE_PLURAL RELATIVE_HEAD POSSESSOR")
Pair = tuple[str, Construction]
HELD_OUT = {
    Construction.PERFECT: ("helfen", "einladen", "lesen", "aufwachen", "verkaufen", "gehen"),
    Construction.VERB_FINAL: ("anrufen", "trinken", "tanzen", "suchen", "geben", "laufen"),
    Construction.PREDICATIVE: ("müde", "teuer", "klug", "neu"),
    Construction.DATIVE_PLURAL: ("Kind", "Freund", "Hund", "Schüler", "Arzt", "Nachbar"),
    Construction.RELATIVE_HEAD: ("Buch", "Mann", "Katze", "Löwe", "Brief", "Tante"),
    Construction.POSSESSOR: ("König", "Mädchen", "Onkel", "Schwester", "Student"),
}


_HELD_OUT_PAIRS = frozenset((word, construction) for construction, words in HELD_OUT.items() for word in words)


def is_held_out(sentence: Sentence) -> bool:
    return not _HELD_OUT_PAIRS.isdisjoint(pairs(sentence))


def pairs(sentence: Sentence) -> Iterator[Pair]:
    """Every word and construction pair of the sentence, words named by their German dictionary form."""
    for clause in (sentence.left, sentence.right) if isinstance(sentence, Coordination) else (sentence.clause,):
        yield from _of_clause(clause, is_verb_final=False)
    if isinstance(sentence, Statement) and sentence.adverbial:
        yield from _of_clause(sentence.adverbial.clause, is_verb_final=True)


def dictionary_form(verb: GermanVerb) -> str:
    return verb.prefix + verb.infinitive


def _of_clause(clause: Clause, *, is_verb_final: bool) -> Iterator[Pair]:
    verb = dictionary_form(clause.verb.german)
    if clause.tense is Tense.PERFECT:
        yield verb, Construction.PERFECT
    if is_verb_final:
        yield verb, Construction.VERB_FINAL
    if clause.predicate:
        yield clause.predicate.german, Construction.PREDICATIVE
    yield from _of_phrase(clause.subject, Case.NOMINATIVE)
    yield from _of_phrase(clause.object, clause.verb.case)
    yield from _of_phrase(clause.recipient, Case.DATIVE)
    for location in filter(None, (clause.place, clause.goal)):
        yield from _of_phrase(location.phrase, location.preposition.case)
    if clause.complement:
        yield from _of_clause(clause.complement.clause, is_verb_final=True)


def _of_phrase(phrase: Phrase | None, case: Case) -> Iterator[Pair]:
    if not isinstance(phrase, NounPhrase):
        return
    if case is Case.DATIVE and phrase.number is Number.PLURAL:
        yield phrase.noun.german, Construction.DATIVE_PLURAL
    if phrase.possessor:
        yield phrase.possessor.noun.german, Construction.POSSESSOR
    if phrase.relative:
        yield phrase.noun.german, Construction.RELATIVE_HEAD
        yield from _of_clause(phrase.relative, is_verb_final=True)
