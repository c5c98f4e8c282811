"""German declension: nouns, articles and other determiners, adjectives, pronouns."""

from __future__ import annotations

from transformer_jax.grammar.words import (
    Adjective,
    Case,
    Declension,
    Determiner,
    Gender,
    Inflection,
    Interrogative,
    Noun,
    Number,
    Pronoun,
)

# A paradigm has a row for each case in the order of Case, and columns masculine, neuter, feminine, plural.
_Paradigm = tuple[tuple[str, str, str, str], ...]


def _paradigm(*rows: str) -> _Paradigm:
    """Rows of four cells; "-" stands for no ending."""
    cells = ([cell.replace("-", "") for cell in row.split()] for row in rows)
    return tuple((masculine, neuter, feminine, plural) for masculine, neuter, feminine, plural in cells)


_ADJECTIVE = {
    Declension.STRONG: _paradigm("er es e e", "en es e e", "em em er en", "en en er er"),
    Declension.WEAK: _paradigm("e e e en", "en e e en", "en en en en", "en en en en"),
    Declension.MIXED: _paradigm("er es e en", "en es e en", "en en en en", "en en en en"),
}
_DETERMINER = {
    Inflection.DEFINITE: _paradigm("der das die die", "den das die die", "dem dem der den", "des des der der"),
    Inflection.DIESER: _paradigm("er es e e", "en es e e", "em em er en", "es es er er"),
    Inflection.EIN: _paradigm("- - e e", "en - e e", "em em er en", "es es er er"),
    Inflection.NONE: _paradigm("- - - -", "- - - -", "- - - -", "- - - -"),
}
_RELATIVE_PRONOUN = _paradigm("der das die die", "den das die die", "dem dem der denen", "dessen dessen deren deren")
_WHO = ("wer", "wen", "wem")


def _column(gender: Gender, number: Number) -> int:
    return 3 if number is Number.PLURAL else gender


def determiner(word: Determiner, gender: Gender, number: Number, case: Case) -> str:
    return word.german + _DETERMINER[word.inflection][case][_column(gender, number)]


def adjective(word: Adjective, declension: Declension, gender: Gender, number: Number, case: Case) -> str:
    return (word.stem or word.german) + _ADJECTIVE[declension][case][_column(gender, number)]


def noun(word: Noun, number: Number, case: Case) -> str:
    if number is Number.PLURAL:
        needs_n = case is Case.DATIVE and not word.german_plural.endswith(("n", "s"))
        return word.german_plural + "n" * needs_n
    if word.oblique and case is not Case.NOMINATIVE:
        return word.oblique
    if case is Case.GENITIVE and word.gender is not Gender.FEMININE:
        return word.genitive or word.german + "s"
    return word.german


def relative_pronoun(gender: Gender, number: Number, case: Case) -> str:
    return _RELATIVE_PRONOUN[case][_column(gender, number)]


def pronoun(word: Pronoun, case: Case) -> str:
    return word.german[case]


def interrogative(word: Interrogative, case: Case) -> str:
    """*was* has no dative of its own; verbs that govern one are never asked about with it."""
    return _WHO[case] if word is Interrogative.WHO else "was"
