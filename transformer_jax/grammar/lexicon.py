"""The lexicon: grammatical categories, small words, and the words and phrases of the CSV files beside it.

An entry is a *pair*: one English word and its only German counterpart, which is what makes the whole grammar a function
from English to German. So these are left out: *you*, *it*, *as*, *when* and *after*, whose German counterparts depend
on what English does not say; nouns whose plural equals their singular (*fish*); words with two common counterparts.
"""

from __future__ import annotations

import csv
import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

Gender = enum.IntEnum("Gender", "MASCULINE NEUTER FEMININE", start=0)
Case = enum.IntEnum("Case", "NOMINATIVE ACCUSATIVE DATIVE GENITIVE", start=0)
Number = enum.IntEnum("Number", "SINGULAR PLURAL", start=0)
# English simple present, simple past, present perfect, *will*; German Präsens, Präteritum, Perfekt, Futur.
Tense = enum.IntEnum("Tense", "PRESENT PAST PERFECT FUTURE")
# What a verb needs beside its subject: nothing more, an object, a recipient and an object, an object after a
# preposition, a goal, an object and a goal, a place, a subordinate clause, a predicative adjective.
Frame = enum.IntEnum(
    "Frame", "INTRANSITIVE TRANSITIVE DITRANSITIVE PREPOSITIONAL MOTION PLACEMENT POSITION CLAUSAL COPULA"
)
# Semantic classes. A noun has some, a verb or adjective asks for some: one in common is a sensible match.
# PERSONAL: people, animals and places of whom one says *my*.
Kind = enum.IntEnum(
    "Kind",
    "PERSON ADULT PERSONAL ANIMAL WILD TEXT WRITING TALE FOOD DRINK DISH THING FLAT UPRIGHT TOY MACHINE CLOTHES "
    "VEHICLE TRANSPORT FURNITURE OPENABLE EVENT PLACE BUILDING ROOM TOWN HOME",
)
Kinds = frozenset[Kind]
Tenses = frozenset[Tense]
ANY_TENSE = frozenset(Tense)


class Expression(NamedTuple):
    """A word or phrase that is not inflected, and the tenses of the clauses it goes with."""

    english: str
    german: str
    tenses: Tenses = ANY_TENSE


class Preposition(NamedTuple):
    english: str
    german: str
    case: Case


class Determiner(NamedTuple):
    english: str
    german: str  # the stem
    inflection: str  # "der", "dieser", "ein" or "" for none
    declension: str  # of adjectives after it: "weak", "mixed" or "strong"
    is_definite: bool = False  # which decides the word order of German objects
    english_plural: str = ""


class Pronoun(NamedTuple):
    """A personal pronoun, or an interrogative in the place of a noun phrase. German: nominative, accusative, dative."""

    english: str
    english_object: str
    german: tuple[str, str, str]
    is_first_person: bool = False
    number: Number = Number.SINGULAR
    kind: Kinds = frozenset({Kind.PERSON})


class Modal(NamedTuple):
    """A modal verb. English `infinitive` is empty for *can*, which needs no *do* and no *to*."""

    english: str
    english_third: str
    english_past: str
    infinitive: str
    german_singular: str
    german_plural: str
    german_past: str


class Noun(NamedTuple):
    """`german_plural` is empty for mass nouns, `oblique` is for weak nouns (*den Jungen*), `at` and `to` for places."""

    english: str
    english_plural: str
    german: str
    gender: Gender
    german_plural: str
    oblique: str
    genitive: str
    kind: Kinds
    at: Preposition | None
    to: Preposition | None

    @property
    def is_mass(self) -> bool:
        return not self.german_plural


class Adjective(NamedTuple):
    """`stem` is what endings are added to: *teuer*, but *teure*."""

    english: str
    german: str
    stem: str
    kind: Kinds
    is_colour: bool


class GermanVerb(NamedTuple):
    """The principal parts of a German verb; `first` (*ich*) and `plural` if irregular.

    A bar separates a prefix: "ab|holen holt holte geholt" conjugates as *holt ... ab*, *abholt*, *abgeholt*.
    """

    prefix: str
    infinitive: str
    third: str
    past: str
    participle: str
    first: str = ""
    plural: str = ""
    takes_sein: bool = False

    @classmethod
    def parse(cls, parts: str, first: str = "", plural: str = "", takes_sein: bool = False) -> GermanVerb:
        prefixed, third, past, participle = parts.split()
        prefix, _, infinitive = prefixed.rpartition("|")
        return cls(prefix, infinitive, third, past, participle, first, plural, takes_sein)


class Verb(NamedTuple):
    """A verb with its valency. Prepositions before the object are independent: *look for* is plain *suchen*."""

    frame: Frame
    english: str
    third: str
    past: str
    participle: str
    particle: str  # as in *pick up*
    english_preposition: str
    german: GermanVerb
    german_preposition: str
    case: Case  # of the German object
    subject: Kinds
    object: Kinds
    recipient_to: bool  # English says *explains the game to the child*, not *explains the child the game*
    is_stative: bool  # only simple tenses and no modal, as in *belong to*
    allows_place: bool  # a place may be added freely
    manners: tuple[Expression, ...]


def _rows(name: str) -> Iterator[dict[str, Any]]:
    with open(Path(__file__).with_name(f"{name}.csv"), encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _kinds(names: str) -> Kinds:
    return frozenset(Kind[name.upper()] for name in names.split())


def _noun(row: dict[str, Any]) -> Noun:
    row["gender"], row["kind"] = Gender[row["gender"].upper()], _kinds(row["kind"])
    for role in ("at", "to"):
        english, _, german = row[role].partition(" ")
        is_dative = role == "at" or german == "zu"
        row[role] = Preposition(english, german, Case.DATIVE if is_dative else Case.ACCUSATIVE) if german else None
    return Noun(**row)


def _verb(row: dict[str, Any]) -> Verb:
    row |= {name: bool(row[name]) for name in ("recipient_to", "is_stative", "allows_place", "takes_sein")}
    row |= {role: _kinds(row[role]) for role in ("subject", "object")}
    german = (row.pop(column) for column in ("german", "german_first", "german_plural", "takes_sein"))
    row["german"] = GermanVerb.parse(*german)
    row["frame"], row["case"] = Frame[row["frame"].upper()], Case[row["case"].upper() or "ACCUSATIVE"]
    row["manners"] = tuple(_MANNERS[name] for name in row["manners"].split("; ") if name)
    return Verb(**row)


def _expressions(role: str) -> tuple[Expression, ...]:
    found = (row for row in _rows("expressions") if row["role"] == role)
    return tuple(Expression(row["english"], row["german"], _tenses(row["tenses"])) for row in found)


def _tenses(names: str) -> Tenses:
    return frozenset(Tense[name.upper()] for name in names.split()) or ANY_TENSE


TIMES, FREQUENCIES = _expressions("time"), _expressions("frequency")
EVERY_DAY = next(time for time in TIMES if time.english == "every day")
_MANNERS = {manner.english: manner for manner in _expressions("manner")}
NOUNS = tuple(map(_noun, _rows("nouns")))
ADJECTIVES = tuple(
    Adjective(**{**row, "kind": _kinds(row["kind"]), "is_colour": bool(row["is_colour"])})
    for row in _rows("adjectives")
)
_verbs = tuple(map(_verb, _rows("verbs")))
VERBS, BE = _verbs[:-1], _verbs[-1]

_TWO_WAY = {"on": "auf", "under": "unter", "beside": "neben", "behind": "hinter", "in front of": "vor"}
# (location, goal) for pieces of furniture: the two-way prepositions, dative for where, accusative for where to.
AROUND_FURNITURE = tuple(
    (Preposition(english, german, Case.DATIVE), Preposition(english, german, Case.ACCUSATIVE))
    for english, german in _TWO_WAY.items()
)

THE = Determiner("the", "", "der", "weak", is_definite=True)
THIS = Determiner("this", "dies", "dieser", "weak", is_definite=True, english_plural="these")
EVERY = Determiner("every", "jed", "dieser", "weak", is_definite=True)
ALL = Determiner("all", "all", "dieser", "weak", is_definite=True)
WHICH = Determiner("which", "welch", "dieser", "weak")
A = Determiner("a", "ein", "ein", "mixed")
NO = Determiner("no", "kein", "ein", "mixed")
POSSESSIVES = tuple(
    Determiner(english, german, "ein", "mixed", is_definite=True)
    for english, german in (("my", "mein"), ("our", "unser"), ("his", "sein"), ("her", "ihr"), ("their", "ihr"))
)
NONE = Determiner("", "", "", "strong")
MANY = Determiner("many", "viel", "dieser", "strong")
SOME = Determiner("some", "einig", "dieser", "strong")
NUMERALS = tuple(
    Determiner(english, german, "", "strong")
    for english, german in (("two", "zwei"), ("three", "drei"), ("four", "vier"), ("five", "fünf"))
)

PRONOUNS = (
    Pronoun("I", "me", ("ich", "mich", "mir"), is_first_person=True),
    Pronoun("he", "him", ("er", "ihn", "ihm")),
    Pronoun("she", "her", ("sie", "sie", "ihr")),
    Pronoun("we", "us", ("wir", "uns", "uns"), is_first_person=True, number=Number.PLURAL),
    Pronoun("they", "them", ("sie", "sie", "ihnen"), number=Number.PLURAL),
)
# *was* has no dative; verbs that govern one are never asked about with it.
WHO, WHAT = Pronoun("who", "whom", ("wer", "wen", "wem")), Pronoun("what", "what", ("was", "was", "was"))
WHERE, WHERE_TO, WHEN, WHY = QUESTION_ADVERBS = _expressions("question")

CAN = Modal("can", "can", "could", "", "kann", "können", "konnte")
MODALS = (
    CAN,
    Modal("have", "has", "had", "have", "muss", "müssen", "musste"),
    Modal("want", "wants", "wanted", "want", "will", "wollen", "wollte"),
)

*_, WHILE, BEFORE = SUBORDINATORS = _expressions("subordinator")
THAT, WHETHER = _expressions("complementizer")
AND, BUT = _expressions("coordinator")
