"""From the abstract sentence to German.

A German clause has five fields: forefield, left bracket, midfield, right bracket, postfield. In a main clause the
finite verb is the left bracket and thus comes second (first in a yes/no question); in a subordinate clause the
introducing word is, and all verbs stand in the right bracket. What is heavy (a relative clause at the end of the
midfield, the complement clause) goes to the postfield. Commas set every embedded clause off; `render` removes those
that meet other punctuation.
"""

from __future__ import annotations

from transformer_jax.grammar import declension, modifiers
from transformer_jax.grammar.conjugation import verb_group
from transformer_jax.grammar.tree import (
    Clause,
    Coordination,
    Embedded,
    Location,
    NounPhrase,
    Phrase,
    Question,
    RelativePronoun,
    Sentence,
    Statement,
    opens,
)
from transformer_jax.grammar.words import Case, Conjunction, Declension, Determiner, Frame, Interrogative, Pronoun

_CONTRACTIONS = {
    ("an", "dem"): "am",
    ("an", "das"): "ans",
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("von", "dem"): "vom",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
}


def render(sentence: Sentence) -> str:
    """The German sentence: tokens with single spaces between them, lower case but for nouns."""
    if isinstance(sentence, Question):
        tokens = [*_question(sentence.clause), "?"]
    elif isinstance(sentence, Coordination):
        comma = [","] if sentence.conjunction is modifiers.BUT else []
        left, right = _main_clause(sentence.left), _main_clause(sentence.right)
        tokens = [*left, *comma, sentence.conjunction.german, *right, "."]
    else:
        tokens = [*_statement(sentence), "."]
    return " ".join(_without_idle_commas(tokens))


def _without_idle_commas(tokens: list[str]) -> list[str]:
    """Drops commas at the beginning of a sentence and before other punctuation."""
    kept: list[str] = []
    for token, following in zip(tokens, [*tokens[1:], "."], strict=True):
        if token != "," or (kept and following not in {",", ".", "?"}):
            kept.append(token)
    return kept


def _statement(statement: Statement) -> list[str]:
    if statement.adverbial is None:
        return _main_clause(statement.clause)
    if statement.adverbial_first:
        return [*_embedded(statement.adverbial), *_verb_second([], statement.clause)]
    return [*_main_clause(statement.clause), *_embedded(statement.adverbial)]


def _main_clause(clause: Clause) -> list[str]:
    if clause.time_first and clause.time:
        return _verb_second(clause.time.german.split(), clause)
    subject = [*_phrase(clause.subject, Case.NOMINATIVE), *_relative(clause.subject)]
    return _verb_second(subject, clause, subject_is_first=True)


def _question(clause: Clause) -> list[str]:
    return _verb_second(_opening(clause), clause)


def _verb_second(forefield: list[str], clause: Clause, *, subject_is_first: bool = False) -> list[str]:
    group = verb_group(clause)
    subject = [] if subject_is_first or opens(clause.subject) else _phrase(clause.subject, Case.NOMINATIVE)
    midfield, postfield = _behind_the_subject(clause, postpones_relative=bool(subject))
    return [*forefield, group.finite, *subject, *midfield, *group.right_bracket, *postfield]


def _verb_final(clause: Clause, introducer: list[str]) -> list[str]:
    subject = [] if opens(clause.subject) else _phrase(clause.subject, Case.NOMINATIVE)
    midfield, postfield = _behind_the_subject(clause, postpones_relative=True)
    return [",", *introducer, *subject, *midfield, *verb_group(clause).verb_final, *postfield, ","]


def _embedded(embedded: Embedded) -> list[str]:
    if isinstance(embedded.introducer, Conjunction):
        return _verb_final(embedded.clause, [embedded.introducer.german])
    return _verb_final(embedded.clause, [embedded.introducer.value[1]])


def _opening(clause: Clause) -> list[str]:
    """The interrogative or relative word or phrase a clause opens with; nothing in a yes/no question."""
    if clause.question:
        return [clause.question.value[1]]
    if opens(clause.subject):
        return _phrase(clause.subject, Case.NOMINATIVE)
    if opens(clause.object):
        return _object(clause)
    return []


def _behind_the_subject(clause: Clause, *, postpones_relative: bool) -> tuple[list[str], list[str]]:
    """The rest of the midfield, and the postfield.

    If nothing but the verb would follow it, the subject's relative clause goes to the postfield as well: *gestern kam
    der Freund an , der ...*. (If the subject is in the forefield its relative clause is there already.)
    """
    midfield = _midfield(clause)
    postfield = [*_relative(clause.object), *(_embedded(clause.complement) if clause.complement else [])]
    relative = _relative(clause.subject) if postpones_relative else []
    return ([*relative, *midfield], postfield) if midfield else ([], [*relative, *postfield])


def _midfield(clause: Clause) -> list[str]:
    """Pronouns, recipient, time, definite objects, negation, manner, place, and what is closest to the verb.

    Definite objects move before the time in negated clauses and with adverbs of frequency (*liest das Buch heute
    nicht*, *liest das Buch oft*); indefinite ones stay behind the place (*liest im Garten ein Buch*).
    """
    recipient = _phrase(clause.recipient, Case.DATIVE) if clause.recipient else []
    time = clause.time.german.split() if clause.time and not clause.time_first else []
    pronoun, definite, indefinite, closest = _objects(clause)
    says_kein = _turns_to_kein(clause.object, clause)
    scope = ["nicht"] if clause.is_negated and not says_kein else []
    if clause.frequency:
        scope = [clause.frequency.german]
    objects_and_time = [*definite, *time, *scope] if scope else [*time, *definite]
    manner = clause.manner.german.split() if clause.manner else []
    place = _location(clause.place) if clause.place else []
    goal = _location(clause.goal) if clause.goal else []
    predicate = [clause.predicate.german] if clause.predicate else []
    return [
        *pronoun, *recipient, *objects_and_time, *manner, *place, *indefinite, *closest, *goal, *predicate
    ]  # fmt: skip


def _objects(clause: Clause) -> tuple[list[str], list[str], list[str], list[str]]:
    """The object's tokens, in one of the four places of the midfield: pronoun, definite, indefinite, closest."""
    phrase = clause.object
    if phrase is None or opens(phrase):
        return [], [], [], []
    tokens = _object(clause)
    if clause.verb.frame is Frame.PREPOSITIONAL:
        return [], [], [], tokens
    if isinstance(phrase, Pronoun):
        return tokens, [], [], []
    if isinstance(phrase, NounPhrase) and phrase.determiner.is_definite:
        return [], tokens, [], []
    return [], [], tokens, []


def _relative(phrase: Phrase | None) -> list[str]:
    """The relative clause of a phrase, if it has one."""
    if not isinstance(phrase, NounPhrase) or phrase.relative is None:
        return []
    return _verb_final(phrase.relative, _opening(phrase.relative))


def _turns_to_kein(phrase: Phrase | None, clause: Clause) -> bool:
    return clause.is_negated and isinstance(phrase, NounPhrase) and phrase.is_indefinite


def _object(clause: Clause) -> list[str]:
    phrase, verb = clause.object, clause.verb
    assert phrase is not None
    if not verb.german_preposition:
        return _phrase(phrase, verb.case, modifiers.NO if _turns_to_kein(phrase, clause) else None)
    if phrase is Interrogative.WHAT:
        link = "r" if verb.german_preposition[0] in "aeiouäöü" else ""
        return ["wo" + link + verb.german_preposition]
    return _contracted(verb.german_preposition, phrase, verb.case)


def _location(location: Location) -> list[str]:
    return _contracted(location.preposition.german, location.phrase, location.preposition.case)


def _contracted(preposition: str, phrase: Phrase, case: Case) -> list[str]:
    """Preposition and phrase: *im Garten*, but *in dem Garten , in dem ...*, where the article points ahead."""
    tokens = _phrase(phrase, case)
    has_plain_article = (
        isinstance(phrase, NounPhrase) and phrase.determiner is modifiers.THE and phrase.relative is None
    )
    contraction = _CONTRACTIONS.get((preposition, tokens[0])) if has_plain_article else None
    return [contraction, *tokens[1:]] if contraction else [preposition, *tokens]


def _phrase(phrase: Phrase, case: Case, determiner: Determiner | None = None) -> list[str]:
    """A phrase without its relative clause; `determiner` overrides that of a noun phrase."""
    if isinstance(phrase, Pronoun):
        return [declension.pronoun(phrase, case)]
    if isinstance(phrase, RelativePronoun):
        return [declension.relative_pronoun(phrase.antecedent.gender, phrase.number, case)]
    if isinstance(phrase, Interrogative):
        return [declension.interrogative(phrase, case)]
    return _noun_phrase(phrase, case, determiner or phrase.determiner)


def _noun_phrase(phrase: NounPhrase, case: Case, determiner: Determiner) -> list[str]:
    gender, number = phrase.noun.gender, phrase.number
    if phrase.whose:
        whose = phrase.whose
        first = declension.relative_pronoun(whose.antecedent.gender, whose.number, Case.GENITIVE)
        kind = Declension.STRONG
    else:
        first = declension.determiner(determiner, gender, number, case)
        kind = determiner.declension
    adjectives = [declension.adjective(word, kind, gender, number, case) for word in phrase.adjectives]
    possessor = _phrase(phrase.possessor, Case.GENITIVE) if phrase.possessor else []
    head = declension.noun(phrase.noun, number, case)
    return [*([first] if first else []), *adjectives, head, *possessor]
