"""From the abstract sentence to German.

A German clause has five fields: forefield, left bracket, midfield, right bracket, postfield. In a main clause the
finite verb is the left bracket and thus comes second (first in a yes/no question); in a subordinate clause the
introducing word is, and all verbs are in the right bracket. What is heavy (a relative clause at the end of the
midfield, the complement clause) goes to the postfield. Commas enclose every embedded clause; `render` removes those
beside other punctuation.
"""

from __future__ import annotations

import re
from functools import cache

from transformer_jax.grammar import lexicon, tree
from transformer_jax.grammar.lexicon import Adjective, Case, Determiner, Gender, GermanVerb, Noun, Number, Tense

_HABEN = GermanVerb.parse("haben hat hatte gehabt")
_WERDEN = GermanVerb.parse("werden wird wurde geworden")
_SUPERFLUOUS_COMMA = re.compile(", (?=[,.?])")
_CONTRACTIONS = {"an dem": "am", "an das": "ans", "in dem": "im", "in das": "ins"}
_CONTRACTIONS |= {"von dem": "vom", "zu dem": "zum", "zu der": "zur"}


def render(sentence: tree.Sentence) -> str:
    """The German sentence: tokens with single spaces between them, lower case but for nouns."""
    if isinstance(sentence, tree.Question):
        tokens = [*_verb_second(_opening(sentence.clause), sentence.clause), "?"]
    elif isinstance(sentence, tree.Coordination):
        comma = [","] if sentence.conjunction is lexicon.BUT else []
        left, right = _main_clause(sentence.left), _main_clause(sentence.right)
        tokens = [*left, *comma, sentence.conjunction.german, *right, "."]
    elif sentence.adverbial_first:
        tokens = [*_embedded(sentence.adverbial), *_verb_second([], sentence.clause), "."]
    else:
        tokens = [*_main_clause(sentence.clause), *_embedded(sentence.adverbial), "."]
    return _SUPERFLUOUS_COMMA.sub("", " ".join(tokens)).removeprefix(", ")


def _main_clause(clause: tree.Clause) -> list[str]:
    if clause.time_first and clause.time:
        return _verb_second(_words(clause.time), clause)
    subject = [*_phrase(clause.subject, Case.NOMINATIVE), *_relative(clause.subject)]
    return _verb_second(subject, clause, subject_is_first=True)


def _verb_second(forefield: list[str], clause: tree.Clause, *, subject_is_first: bool = False) -> list[str]:
    finite_verb, *right_bracket = _verbs(clause)
    subject = [] if subject_is_first or tree.opens(clause.subject) else _phrase(clause.subject, Case.NOMINATIVE)
    midfield, postfield = _after_the_subject(clause, postpones_relative=bool(subject))
    return [*forefield, finite_verb, *subject, *midfield, *right_bracket, *postfield]


def _verb_final(clause: tree.Clause, introducer: list[str]) -> list[str]:
    subject = [] if tree.opens(clause.subject) else _phrase(clause.subject, Case.NOMINATIVE)
    midfield, postfield = _after_the_subject(clause, postpones_relative=True)
    finite_verb, *last = _verbs(clause)
    is_separable = last == [clause.verb.german.prefix]  # *kam ... an*, but *dass ... ankam*
    verbs = [last[0] + finite_verb] if is_separable else [*last, finite_verb]
    return [",", *introducer, *subject, *midfield, *verbs, *postfield, ","]


def _embedded(embedded: tree.Embedded | None) -> list[str]:
    return _verb_final(embedded.clause, [embedded.introducer.german]) if embedded else []


def _opening(clause: tree.Clause) -> list[str]:
    """The interrogative or relative word or phrase a clause opens with; nothing in a yes/no question."""
    if clause.question:
        return [clause.question.german]
    if tree.opens(clause.subject):
        return _phrase(clause.subject, Case.NOMINATIVE)
    if tree.opens(clause.object):
        return _object(clause)
    return []


def _after_the_subject(clause: tree.Clause, *, postpones_relative: bool) -> tuple[list[str], list[str]]:
    """The rest of the midfield, and the postfield.

    If nothing but the verb would follow it, the subject's relative clause goes to the postfield as well: *gestern kam
    der Freund an , der ...*. (If the subject is in the forefield its relative clause is there already.)
    """
    midfield = _midfield(clause)
    postfield = [*_relative(clause.object), *_embedded(clause.complement)]
    relative = _relative(clause.subject) if postpones_relative else []
    return ([*relative, *midfield], postfield) if midfield else ([], [*relative, *postfield])


def _midfield(clause: tree.Clause) -> list[str]:
    """Pronouns, recipient, time, definite objects, negation, manner, place, and what is closest to the verb.

    Definite objects move before the time in negated clauses and with adverbs of frequency (*liest das Buch heute
    nicht*, *liest das Buch oft*); indefinite ones stay after the place (*liest im Garten ein Buch*).
    """
    recipient = _phrase(clause.recipient, Case.DATIVE) if clause.recipient else []
    time = [] if clause.time_first else _words(clause.time)
    pronoun, definite, closest = [], [], []
    if clause.object and not tree.opens(clause.object):
        is_plain = clause.verb.frame is not lexicon.Frame.PREPOSITIONAL
        if is_plain and isinstance(clause.object, lexicon.Pronoun):
            pronoun = _object(clause)
        elif is_plain and isinstance(clause.object, tree.NounPhrase) and clause.object.determiner.is_definite:
            definite = _object(clause)
        else:
            closest = _object(clause)
    says_nicht = clause.is_negated and not _turns_to_kein(clause.object, clause)
    scope = _words(clause.frequency) or ["nicht"] * says_nicht
    objects_and_time = [*definite, *time, *scope] if scope else [*time, *definite]
    manner_and_place = [*_words(clause.manner), *_location(clause.place)]
    goal_and_predicate = [*_location(clause.goal), *_words(clause.predicate)]
    return [*pronoun, *recipient, *objects_and_time, *manner_and_place, *closest, *goal_and_predicate]


def _words(entry: lexicon.Expression | Adjective | None) -> list[str]:
    return entry.german.split() if entry else []


def _relative(phrase: tree.Phrase | None) -> list[str]:
    """The relative clause of a phrase, if it has one."""
    if not isinstance(phrase, tree.NounPhrase) or phrase.relative is None:
        return []
    return _verb_final(phrase.relative, _opening(phrase.relative))


def _turns_to_kein(phrase: tree.Phrase | None, clause: tree.Clause) -> bool:
    is_indefinite = isinstance(phrase, tree.NounPhrase) and phrase.determiner in (lexicon.A, lexicon.NONE)
    return clause.is_negated and is_indefinite


def _object(clause: tree.Clause) -> list[str]:
    phrase, verb = clause.object, clause.verb
    assert phrase is not None
    if not verb.german_preposition:
        return _phrase(phrase, verb.case, lexicon.NO if _turns_to_kein(phrase, clause) else None)
    if phrase is lexicon.WHAT:
        link = "r" if verb.german_preposition[0] in "aeiouäöü" else ""
        return ["wo" + link + verb.german_preposition]
    return _contracted(verb.german_preposition, phrase, verb.case)


def _location(location: tree.Location | None) -> list[str]:
    return _contracted(location.preposition.german, location.phrase, location.preposition.case) if location else []


def _contracted(preposition: str, phrase: tree.Phrase, case: Case) -> list[str]:
    """Preposition and phrase: *im Garten*, but *in dem Garten , in dem ...*, where the article points ahead."""
    tokens = _phrase(phrase, case)
    if isinstance(phrase, tree.NounPhrase) and phrase.determiner is lexicon.THE and phrase.relative is None:
        both = f"{preposition} {tokens[0]}"
        return [*_CONTRACTIONS.get(both, both).split(), *tokens[1:]]
    return [preposition, *tokens]


def _phrase(phrase: tree.Phrase, case: Case, determiner: Determiner | None = None) -> list[str]:
    """A phrase without its relative clause; `determiner` overrides the noun phrase's own."""
    if isinstance(phrase, lexicon.Pronoun):
        return [phrase.german[case]]
    if isinstance(phrase, tree.RelativePronoun):
        return [relative_pronoun(phrase.gender, phrase.number, case)]
    return _noun_phrase(phrase, case, determiner or phrase.determiner)


def _noun_phrase(phrase: tree.NounPhrase, case: Case, determiner: Determiner) -> list[str]:
    gender, number = phrase.noun.gender, phrase.number
    first, declension = inflected(determiner, gender, number, case), determiner.declension
    if phrase.whose:
        first = relative_pronoun(phrase.whose.gender, phrase.whose.number, Case.GENITIVE)
        declension = "strong"
    adjectives = [declined(word, declension, gender, number, case) for word in phrase.adjectives]
    possessor = _phrase(phrase.possessor, Case.GENITIVE) if phrase.possessor else []
    head = noun_form(phrase.noun, number, case)
    return [*first.split(), *adjectives, head, *possessor]


def finite(verb: GermanVerb, subject: tree.Phrase, tense: Tense) -> str:
    """Present or past form that agrees with the subject, without the separable prefix."""
    is_plural = subject.number is Number.PLURAL
    if tense is Tense.PAST:
        ending = "n" if verb.past.endswith("e") else "en"
        return verb.past + ending * is_plural
    if is_plural:
        return verb.plural or verb.infinitive
    if isinstance(subject, lexicon.Pronoun) and subject.is_first_person:
        return verb.first or verb.infinitive.removesuffix("en") + "e"
    return verb.third


def _verbs(clause: tree.Clause) -> list[str]:
    """The finite verb, and the infinitive, participle or separable prefix that ends a main clause."""
    verb, modal, is_plural = clause.verb.german, clause.modal, clause.subject.number is Number.PLURAL
    infinitive = verb.prefix + verb.infinitive
    if modal:
        if clause.tense is Tense.PAST:
            return [modal.german_past + "n" * is_plural, infinitive]
        return [modal.german_plural if is_plural else modal.german_singular, infinitive]
    if clause.tense is Tense.FUTURE:
        return [finite(_WERDEN, clause.subject, Tense.PRESENT), infinitive]
    if clause.tense is Tense.PERFECT:
        auxiliary = lexicon.BE.german if verb.takes_sein else _HABEN
        return [finite(auxiliary, clause.subject, Tense.PRESENT), verb.prefix + verb.participle]
    return [finite(verb, clause.subject, clause.tense), *verb.prefix.split()]


# A paradigm has a row for each case in the order of Case, and columns masculine, neuter, feminine, plural; "-" is no
# ending. Adjectives by declension, determiners by inflection.
_ADJECTIVE = {
    "strong": "er es e e | en es e e | em em er en | en en er er",
    "weak": "e e e en | en e e en | en en en en | en en en en",
    "mixed": "er es e en | en es e en | en en en en | en en en en",
}
_DETERMINER = {
    "der": "der das die die | den das die die | dem dem der den | des des der der",
    "dieser": "er es e e | en es e e | em em er en | es es er er",
    "ein": "- - e e | en - e e | em em er en | es es er er",
    "": "- - - - | - - - - | - - - - | - - - -",
}
_RELATIVE_PRONOUN = "der das die die | den das die die | dem dem der denen | dessen dessen deren deren"


@cache
def _ending(paradigm: str, gender: Gender, number: Number, case: Case) -> str:
    cell = paradigm.split(" | ")[case].split()[3 if number is Number.PLURAL else gender]
    return cell.replace("-", "")


def inflected(word: Determiner, gender: Gender, number: Number, case: Case) -> str:
    return word.german + _ending(_DETERMINER[word.inflection], gender, number, case)


def declined(word: Adjective, declension: str, gender: Gender, number: Number, case: Case) -> str:
    return word.stem + _ending(_ADJECTIVE[declension], gender, number, case)


def relative_pronoun(gender: Gender, number: Number, case: Case) -> str:
    return _ending(_RELATIVE_PRONOUN, gender, number, case)


def noun_form(word: Noun, number: Number, case: Case) -> str:
    if number is Number.PLURAL:
        needs_n = case is Case.DATIVE and not word.german_plural.endswith(("n", "s"))
        return word.german_plural + "n" * needs_n
    if word.oblique and case is not Case.NOMINATIVE:
        return word.oblique
    if case is Case.GENITIVE and word.gender is not Gender.FEMININE:
        return word.genitive or word.german + "s"
    return word.german
