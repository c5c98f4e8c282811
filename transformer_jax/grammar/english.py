"""From the abstract sentence to English."""

from __future__ import annotations

from transformer_jax.grammar import lexicon, tree
from transformer_jax.grammar.lexicon import BE, Adjective, Expression, Kind, Noun, Number, Pronoun, Tense


def render(sentence: tree.Sentence) -> str:
    """The English sentence: tokens with single spaces between them, lower case but for *I* and the days."""
    if isinstance(sentence, tree.Question):
        tokens = [*_question(sentence.clause), "?"]
    elif isinstance(sentence, tree.Coordination):
        comma = [","] if sentence.conjunction is lexicon.BUT else []
        left, right = _declarative(sentence.left), _declarative(sentence.right)
        tokens = [*left, *comma, sentence.conjunction.english, *right, "."]
    elif sentence.adverbial_first:
        tokens = [*_embedded(sentence.adverbial), ",", *_declarative(sentence.clause), "."]
    else:
        tokens = [*_declarative(sentence.clause), *_embedded(sentence.adverbial), "."]
    return " ".join(tokens)


def _embedded(embedded: tree.Embedded | None) -> list[str]:
    return [embedded.introducer.english, *_declarative(embedded.clause)] if embedded else []


def _declarative(clause: tree.Clause) -> list[str]:
    auxiliary, main = _verb_group(clause, needs_auxiliary=clause.is_negated)
    time_first = _words(clause.time) if clause.time_first else []
    if auxiliary == ["can"] and clause.is_negated:
        auxiliary = ["cannot"]
    elif clause.is_negated:
        auxiliary = [*auxiliary, "not"]
    subject = _phrase(clause.subject, is_subject=True)
    return [*time_first, *subject, *auxiliary, *_words(clause.frequency), *main, *_after_the_verb(clause)]


def _question(clause: tree.Clause) -> list[str]:
    """Subject questions keep the order of statements; in all others the auxiliary comes before the subject."""
    if tree.opens(clause.subject):
        return _declarative(clause)
    auxiliary, main = _verb_group(clause, needs_auxiliary=True)
    if clause.question:
        auxiliary = [clause.question.english, *auxiliary]
    stranded = ""
    if tree.opens(clause.object):
        auxiliary, stranded = [*_phrase(clause.object), *auxiliary], clause.verb.english_preposition
    subject = [*_phrase(clause.subject, is_subject=True), *(["not"] if clause.is_negated else [])]
    rest = _after_the_verb(clause, stranded_preposition=stranded)
    return [*auxiliary, *subject, *_words(clause.frequency), *main, *rest]


def _relative(clause: tree.Clause | None) -> list[str]:
    if clause is None:
        return []
    opener = _prepositional(clause.verb.english_preposition, clause.object) if tree.opens(clause.object) else []
    return [*opener, *_declarative(clause)]


def _words(entry: Expression | Adjective | None) -> list[str]:
    return entry.english.split() if entry else []


def _after_the_verb(clause: tree.Clause, stranded_preposition: str = "") -> list[str]:
    """Particle, objects, predicate, goal, manner, place, time, complement."""
    objects = [*_particle_and_objects(clause), *stranded_preposition.split(), *_words(clause.predicate)]
    places = [*_location(clause.goal), *_words(clause.manner), *_location(clause.place)]
    time = [] if clause.time_first else _words(clause.time)
    return [*objects, *places, *time, *_embedded(clause.complement)]


def _particle_and_objects(clause: tree.Clause) -> list[str]:
    """*picks up the child*, but *picks him up*; *gives him a book*, but *explains the book to him*."""
    particle, direct = clause.verb.particle.split(), []
    if clause.object is not None and not tree.opens(clause.object):
        direct = _prepositional(clause.verb.english_preposition, clause.object)
    recipient = _phrase(clause.recipient) if clause.recipient else []
    if clause.verb.recipient_to:
        return [*direct, "to", *recipient]
    if direct and isinstance(clause.object, Pronoun) and not clause.verb.english_preposition:
        return [*direct, *particle]
    return [*particle, *recipient, *direct]


def _location(location: tree.Location | None) -> list[str]:
    return [*location.preposition.english.split(), *_phrase(location.phrase)] if location else []


def _prepositional(preposition: str, phrase: tree.Phrase) -> list[str]:
    if preposition and isinstance(phrase, tree.RelativePronoun) and Kind.PERSON not in phrase.kind:
        return [preposition, "which"]
    return [*preposition.split(), *_phrase(phrase)]


def _phrase(phrase: tree.Phrase, *, is_subject: bool = False) -> list[str]:
    if isinstance(phrase, Pronoun):
        return [phrase.english if is_subject else phrase.english_object]
    if isinstance(phrase, tree.RelativePronoun):
        who = "who" if is_subject else "whom"
        return [who if Kind.PERSON in phrase.kind else "that"]
    return _noun_phrase(phrase)


def _noun_phrase(phrase: tree.NounPhrase) -> list[str]:
    adjectives = [word.english for word in phrase.adjectives]
    head = noun_form(phrase.noun, phrase.number)
    if phrase.possessor:
        owner = _noun_phrase(phrase.possessor)
        ends_in_plural_s = phrase.possessor.number is Number.PLURAL and owner[-1].endswith("s")
        determiner = [*owner, "'" if ends_in_plural_s else "'s"]
    elif phrase.whose:
        determiner = ["whose"]
    elif phrase.determiner is lexicon.A:
        determiner = ["an" if [*adjectives, head][0][0] in "aeiou" else "a"]
    elif phrase.number is Number.PLURAL and phrase.determiner.english_plural:
        determiner = [phrase.determiner.english_plural]
    else:
        determiner = phrase.determiner.english.split()
    return [*determiner, *adjectives, *head.split(), *_relative(phrase.relative)]


def noun_form(noun: Noun, number: Number) -> str:
    return noun.english if number is Number.SINGULAR else noun.english_plural


def _verb_group(clause: tree.Clause, *, needs_auxiliary: bool) -> tuple[list[str], list[str]]:
    """(auxiliary, rest), with *do* where an auxiliary is needed and the verb has none."""
    verb, modal, is_past = clause.verb, clause.modal, clause.tense is Tense.PAST
    if clause.tense is Tense.FUTURE:
        return ["will"], [verb.english]
    if clause.tense is Tense.PERFECT:
        return ["has" if _is_third_singular(clause.subject) else "have"], [verb.participle]
    if verb is BE and clause.subject.number is Number.PLURAL:
        return ["were" if is_past else "are"], []
    if verb is BE:
        return [_inflected("am", "is", "was", clause)], []
    if modal is lexicon.CAN:
        return [modal.english_past if is_past else modal.english], [verb.english]
    if needs_auxiliary:
        infinitive = [modal.infinitive, "to", verb.english] if modal else [verb.english]
        return [_inflected("do", "does", "did", clause)], infinitive
    if modal:
        return [], [_inflected(modal.english, modal.english_third, modal.english_past, clause), "to", verb.english]
    return [], [_inflected(verb.english, verb.third, verb.past, clause)]


def _inflected(base: str, third: str, past: str, clause: tree.Clause) -> str:
    if clause.tense is Tense.PAST:
        return past
    return third if _is_third_singular(clause.subject) else base


def _is_third_singular(subject: tree.Phrase) -> bool:
    is_first_person = isinstance(subject, Pronoun) and subject.is_first_person
    return subject.number is Number.SINGULAR and not is_first_person
