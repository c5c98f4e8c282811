"""German conjugation: the finite form of a verb, and the verbs a clause has at its two ends."""

from __future__ import annotations

from dataclasses import dataclass

from transformer_jax.grammar.tree import Clause, NounPhrase, Phrase, RelativePronoun
from transformer_jax.grammar.verbs import BE
from transformer_jax.grammar.words import GermanVerb, Number, Pronoun, Tense

_HABEN = GermanVerb("haben", "hat", "hatte", "gehabt")
_WERDEN = GermanVerb("werden", "wird", "wurde", "geworden", takes_sein=True)


@dataclass(frozen=True, slots=True)
class VerbGroup:
    """The verbs of a clause: the finite one, its separable prefix, and the infinitive or participle that ends it."""

    finite: str
    prefix: str = ""
    ending: str = ""

    @property
    def right_bracket(self) -> list[str]:
        """What ends a main clause, whose finite verb stands near the beginning."""
        return [word for word in (self.prefix, self.ending) if word]

    @property
    def verb_final(self) -> list[str]:
        """What ends a subordinate clause: everything, the prefix joined again."""
        return [self.ending, self.finite] if self.ending else [self.prefix + self.finite]


def number_of(phrase: Phrase) -> Number:
    if isinstance(phrase, NounPhrase | Pronoun | RelativePronoun):
        return phrase.number
    return Number.SINGULAR


def finite(verb: GermanVerb, subject: Phrase, tense: Tense) -> str:
    """Present or past form that agrees with the subject, without the separable prefix."""
    is_plural = number_of(subject) is Number.PLURAL
    if tense is Tense.PAST:
        ending = "n" if verb.past.endswith("e") else "en"
        return verb.past + ending * is_plural
    if is_plural:
        return verb.plural or verb.infinitive
    if isinstance(subject, Pronoun) and subject.is_first_person:
        return verb.first or verb.infinitive.removesuffix("en") + "e"
    return verb.third


def verb_group(clause: Clause) -> VerbGroup:
    verb = clause.verb.german
    infinitive = verb.prefix + verb.infinitive
    if clause.modal:
        if clause.tense is Tense.PAST:
            is_plural = number_of(clause.subject) is Number.PLURAL
            return VerbGroup(clause.modal.german_past + "n" * is_plural, ending=infinitive)
        is_singular = number_of(clause.subject) is Number.SINGULAR
        return VerbGroup(clause.modal.german_singular if is_singular else clause.modal.german_plural, ending=infinitive)
    if clause.tense is Tense.FUTURE:
        return VerbGroup(finite(_WERDEN, clause.subject, Tense.PRESENT), ending=infinitive)
    if clause.tense is Tense.PERFECT:
        auxiliary = BE.german if verb.takes_sein else _HABEN
        return VerbGroup(finite(auxiliary, clause.subject, Tense.PRESENT), ending=verb.prefix + verb.participle)
    return VerbGroup(finite(verb, clause.subject, clause.tense), prefix=verb.prefix)
