"""What a word is: the types of the lexicon, and the grammatical and semantic categories its entries use.

A word is a *pair*: one English word and its one German counterpart. That each English word has a single counterpart is
what makes the whole grammar a function from English to German.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Gender(enum.IntEnum):
    MASCULINE = 0
    NEUTER = 1
    FEMININE = 2


class Case(enum.IntEnum):
    NOMINATIVE = 0
    ACCUSATIVE = 1
    DATIVE = 2
    GENITIVE = 3


class Number(enum.IntEnum):
    SINGULAR = 0
    PLURAL = 1


class Tense(enum.Enum):
    """English simple present, simple past, present perfect, *will*; German Präsens, Präteritum, Perfekt, Futur."""

    PRESENT = "present"
    PAST = "past"
    PERFECT = "perfect"
    FUTURE = "future"


class Kind(enum.Flag):
    """Semantic classes. A noun carries some, a verb or adjective asks for some: one in common is a sensible match.

    OWN: people, animals and places of whom one says *my*.
    """

    NOTHING = 0
    PERSON = enum.auto()
    ADULT = enum.auto()
    OWN = enum.auto()
    ANIMAL = enum.auto()
    WILD = enum.auto()
    TEXT = enum.auto()
    WRITING = enum.auto()
    TALE = enum.auto()
    FOOD = enum.auto()
    DRINK = enum.auto()
    DISH = enum.auto()
    THING = enum.auto()
    FLAT = enum.auto()
    UPRIGHT = enum.auto()
    TOY = enum.auto()
    MACHINE = enum.auto()
    CLOTHES = enum.auto()
    VEHICLE = enum.auto()
    TRANSPORT = enum.auto()
    FURNITURE = enum.auto()
    OPENABLE = enum.auto()
    EVENT = enum.auto()
    PLACE = enum.auto()
    BUILDING = enum.auto()
    ROOM = enum.auto()
    TOWN = enum.auto()
    HOME = enum.auto()


class Frame(enum.Enum):
    """What a verb needs beside its subject."""

    INTRANSITIVE = "nothing more"
    TRANSITIVE = "one object, in the case the verb governs"
    DITRANSITIVE = "a recipient and a direct object"
    PREPOSITIONAL = "an object behind a fixed preposition"
    MOTION = "a goal"
    PLACEMENT = "a direct object and a goal"
    POSITION = "a place"
    CLAUSAL = "a subordinate clause"
    COPULA = "a predicative adjective"


@dataclass(frozen=True, slots=True)
class Preposition:
    english: str
    german: str
    case: Case


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """A noun. `german_plural` is empty for mass nouns, `oblique` filled for weak nouns (*den Jungen*)."""

    english: str
    german: str
    gender: Gender
    german_plural: str
    kind: Kind
    english_plural: str = ""
    oblique: str = ""
    genitive: str = ""
    at: Preposition | None = None
    to: Preposition | None = None

    @property
    def is_mass(self) -> bool:
        return not self.german_plural


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    """`stem` is what endings are added to where it is not the bare adjective: *teuer*, but *teure*."""

    english: str
    german: str
    kind: Kind
    stem: str = ""
    is_colour: bool = False


@dataclass(frozen=True, slots=True)
class GermanVerb:
    """The principal parts of a German verb, without the separable prefix; `first` (*ich*) and `plural` if irregular."""

    infinitive: str
    third: str
    past: str
    participle: str
    prefix: str = ""
    first: str = ""
    plural: str = ""
    takes_sein: bool = False


@dataclass(frozen=True, slots=True)
class Manner:
    english: str
    german: str


@dataclass(frozen=True, slots=True, eq=False)
class Verb:
    """A verb with its valency.

    english, past, participle: the English principal parts (regular ones are left out); `particle` as in *pick up*.
    german: the German principal parts.  subject, object: what these may be.  case: of the German object.
    english_preposition, german_preposition: before the object, each language for itself: *look for* is plain *suchen*.
    recipient_to: English says *explains the game to the child*, not *explains the child the game*.
    is_stative: only simple tenses and no modal, as in *belong to*.  allows_place: a place may be added freely.
    """

    english: str
    german: GermanVerb
    frame: Frame
    subject: Kind
    object: Kind = Kind.NOTHING
    past: str = ""
    participle: str = ""
    particle: str = ""
    case: Case = Case.ACCUSATIVE
    english_preposition: str = ""
    german_preposition: str = ""
    recipient_to: bool = False
    is_stative: bool = False
    allows_place: bool = False
    manners: tuple[Manner, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Modal:
    """A modal verb. English `infinitive` is empty for *can*, which needs no *do* and no *to*."""

    english: str
    english_third: str
    english_past: str
    infinitive: str
    german_singular: str
    german_plural: str
    german_past: str


@dataclass(frozen=True, slots=True, eq=False)
class TimeAdverbial:
    english: str
    german: str
    tenses: frozenset[Tense]


@dataclass(frozen=True, slots=True, eq=False)
class Frequency:
    english: str
    german: str


@dataclass(frozen=True, slots=True, eq=False)
class Conjunction:
    """`tenses` restricts the tense of both clauses, where the conjunction has an opinion on it."""

    english: str
    german: str
    tenses: frozenset[Tense]


class Declension(enum.Enum):
    """The endings an adjective takes behind a determiner."""

    STRONG = "no ending on the determiner"
    WEAK = "the determiner shows gender and case"
    MIXED = "like ein: sometimes it does"


class Inflection(enum.Enum):
    """How a German determiner itself is inflected."""

    NONE = "not at all: zwei"
    DEFINITE = "der, die, das"
    DIESER = "like dieser"
    EIN = "like ein and kein"


@dataclass(frozen=True, slots=True, eq=False)
class Determiner:
    """`german` is the stem that inflects; `is_definite` decides the word order of German objects."""

    english: str
    german: str
    inflection: Inflection
    declension: Declension
    is_definite: bool = False
    english_plural: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Pronoun:
    english: str
    english_object: str
    german: tuple[str, str, str]
    is_first_person: bool
    number: Number


class Interrogative(enum.Enum):
    """*who* and *what* in the place of a noun phrase."""

    WHO = "who"
    WHAT = "what"


class QuestionAdverb(enum.Enum):
    """Value: the English and the German word."""

    WHERE = ("where", "wo")
    WHERE_TO = ("where", "wohin")
    WHEN = ("when", "wann")
    WHY = ("why", "warum")
