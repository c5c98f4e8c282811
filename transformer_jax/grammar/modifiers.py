"""The small words and the modifiers: determiners, pronouns, adjectives, adverbials, modals and conjunctions."""

from __future__ import annotations

from transformer_jax.grammar.words import (
    Adjective,
    Conjunction,
    Declension,
    Determiner,
    Frequency,
    Inflection,
    Kind,
    Modal,
    Number,
    Pronoun,
    Tense,
    TimeAdverbial,
)

_WEAK, _MIXED, _STRONG = Declension.WEAK, Declension.MIXED, Declension.STRONG
_DIESER, _EIN, _BARE = Inflection.DIESER, Inflection.EIN, Inflection.NONE

THE = Determiner("the", "", Inflection.DEFINITE, _WEAK, is_definite=True)
THIS = Determiner("this", "dies", _DIESER, _WEAK, is_definite=True, english_plural="these")
EVERY = Determiner("every", "jed", _DIESER, _WEAK, is_definite=True)
ALL = Determiner("all", "all", _DIESER, _WEAK, is_definite=True)
WHICH = Determiner("which", "welch", _DIESER, _WEAK)
A = Determiner("a", "ein", _EIN, _MIXED)
NO = Determiner("no", "kein", _EIN, _MIXED)
POSSESSIVES = (
    Determiner("my", "mein", _EIN, _MIXED, is_definite=True),
    Determiner("our", "unser", _EIN, _MIXED, is_definite=True),
    Determiner("his", "sein", _EIN, _MIXED, is_definite=True),
    Determiner("her", "ihr", _EIN, _MIXED, is_definite=True),
    Determiner("their", "ihr", _EIN, _MIXED, is_definite=True),
)
NONE = Determiner("", "", _BARE, _STRONG)
MANY = Determiner("many", "viel", _DIESER, _STRONG)
SOME = Determiner("some", "einig", _DIESER, _STRONG)
NUMERALS = (
    Determiner("two", "zwei", _BARE, _STRONG),
    Determiner("three", "drei", _BARE, _STRONG),
    Determiner("four", "vier", _BARE, _STRONG),
    Determiner("five", "fünf", _BARE, _STRONG),
)

# *you* and *it* are missing: their German counterparts depend on what English does not say.
PRONOUNS = (
    Pronoun("I", "me", ("ich", "mich", "mir"), True, Number.SINGULAR),
    Pronoun("he", "him", ("er", "ihn", "ihm"), False, Number.SINGULAR),
    Pronoun("she", "her", ("sie", "sie", "ihr"), False, Number.SINGULAR),
    Pronoun("we", "us", ("wir", "uns", "uns"), True, Number.PLURAL),
    Pronoun("they", "them", ("sie", "sie", "ihnen"), False, Number.PLURAL),
)

_BEING = Kind.PERSON | Kind.ANIMAL
_GOODS = Kind.THING | Kind.CLOTHES | Kind.VEHICLE | Kind.TRANSPORT | Kind.FURNITURE
_OLD = Kind.ADULT | Kind.ANIMAL | _GOODS | Kind.PLACE | Kind.TEXT

ADJECTIVES = (
    Adjective("old", "alt", _OLD),
    Adjective("young", "jung", Kind.ADULT | Kind.ANIMAL),
    Adjective("big", "groß", Kind.ANIMAL | _GOODS | Kind.PLACE),
    Adjective("small", "klein", Kind.ANIMAL | _GOODS | Kind.PLACE),
    Adjective("friendly", "freundlich", Kind.PERSON),
    Adjective("polite", "höflich", Kind.PERSON),
    Adjective("clever", "klug", _BEING),
    Adjective("tired", "müde", _BEING, stem="müd"),
    Adjective("hungry", "hungrig", _BEING),
    Adjective("famous", "berühmt", Kind.ADULT | Kind.TEXT | Kind.BUILDING),
    Adjective("rich", "reich", Kind.ADULT),
    Adjective("poor", "arm", Kind.PERSON),
    Adjective("happy", "glücklich", Kind.PERSON),
    Adjective("sad", "traurig", Kind.PERSON | Kind.TEXT),
    Adjective("brave", "mutig", _BEING),
    Adjective("strong", "stark", _BEING),
    Adjective("strict", "streng", Kind.ADULT),
    Adjective("curious", "neugierig", _BEING),
    Adjective("wild", "wild", Kind.WILD),
    Adjective("dangerous", "gefährlich", Kind.WILD),
    Adjective("new", "neu", _GOODS | Kind.TEXT | Kind.BUILDING),
    Adjective("expensive", "teuer", _GOODS, stem="teur"),
    Adjective("cheap", "billig", _GOODS),
    Adjective("heavy", "schwer", Kind.UPRIGHT | Kind.FURNITURE),
    Adjective("beautiful", "schön", _GOODS | Kind.PLACE),
    Adjective("ugly", "hässlich", _GOODS | Kind.BUILDING),
    Adjective("dirty", "schmutzig", Kind.CLOTHES | Kind.VEHICLE | Kind.ROOM | Kind.UPRIGHT),
    Adjective("dark", "dunkel", Kind.ROOM, stem="dunkl"),
    Adjective("quiet", "ruhig", Kind.PLACE),
    Adjective("modern", "modern", Kind.VEHICLE | Kind.TRANSPORT | Kind.BUILDING | Kind.FURNITURE),
    Adjective("fast", "schnell", Kind.VEHICLE | Kind.TRANSPORT),
    Adjective("long", "lang", Kind.TEXT | Kind.EVENT),
    Adjective("short", "kurz", Kind.TEXT | Kind.EVENT),
    Adjective("interesting", "interessant", Kind.TEXT | Kind.EVENT),
    Adjective("boring", "langweilig", Kind.TEXT | Kind.EVENT),
    Adjective("exciting", "spannend", Kind.TEXT | Kind.EVENT),
    Adjective("fresh", "frisch", Kind.FOOD),
    Adjective("delicious", "köstlich", Kind.FOOD | Kind.DRINK),
    Adjective("cold", "kalt", Kind.DRINK | Kind.DISH),
    Adjective("hot", "heiß", Kind.DISH),
    Adjective("red", "rot", _GOODS, is_colour=True),
    Adjective("green", "grün", _GOODS, is_colour=True),
    Adjective("blue", "blau", _GOODS, is_colour=True),
    Adjective("yellow", "gelb", _GOODS, is_colour=True),
    Adjective("black", "schwarz", Kind.ANIMAL | _GOODS, is_colour=True),
    Adjective("white", "weiß", Kind.ANIMAL | _GOODS, is_colour=True),
    Adjective("brown", "braun", Kind.ANIMAL | _GOODS, is_colour=True),
)

_PRESENT, _PAST, _PERFECT, _FUTURE = Tense.PRESENT, Tense.PAST, Tense.PERFECT, Tense.FUTURE
_ANY = frozenset(Tense)

EVERY_DAY = TimeAdverbial("every day", "jeden Tag", frozenset({_PRESENT, _PAST}))
TIMES = (
    TimeAdverbial("today", "heute", _ANY),
    TimeAdverbial("yesterday", "gestern", frozenset({_PAST})),
    TimeAdverbial("tomorrow", "morgen", frozenset({_FUTURE})),
    TimeAdverbial("now", "jetzt", frozenset({_PRESENT})),
    EVERY_DAY,
    TimeAdverbial("in the morning", "am Morgen", frozenset({_PRESENT, _PAST, _FUTURE})),
    TimeAdverbial("in the evening", "am Abend", frozenset({_PRESENT, _PAST, _FUTURE})),
    TimeAdverbial("on Sunday", "am Sonntag", frozenset({_PAST, _FUTURE})),
    TimeAdverbial("on Monday", "am Montag", frozenset({_PAST, _FUTURE})),
    TimeAdverbial("in summer", "im Sommer", frozenset({_PRESENT, _PAST, _FUTURE})),
    TimeAdverbial("in winter", "im Winter", frozenset({_PRESENT, _PAST, _FUTURE})),
    TimeAdverbial("last week", "letzte Woche", frozenset({_PAST})),
    TimeAdverbial("next week", "nächste Woche", frozenset({_FUTURE})),
    TimeAdverbial("this week", "diese Woche", frozenset({_PERFECT, _FUTURE})),
)

FREQUENCIES = (
    Frequency("often", "oft"),
    Frequency("always", "immer"),
    Frequency("sometimes", "manchmal"),
    Frequency("never", "nie"),
)

CAN = Modal("can", "can", "could", "", "kann", "können", "konnte")
HAVE_TO = Modal("have", "has", "had", "have", "muss", "müssen", "musste")
WANT_TO = Modal("want", "wants", "wanted", "want", "will", "wollen", "wollte")
MODALS = (CAN, HAVE_TO, WANT_TO)

# *as*, *when* and *after* are missing: their German counterparts depend on more than the English clause shows.
BECAUSE = Conjunction("because", "weil", _ANY)
ALTHOUGH = Conjunction("although", "obwohl", _ANY)
IF = Conjunction("if", "wenn", frozenset({_PRESENT}))
WHILE = Conjunction("while", "während", frozenset({_PRESENT, _PAST}))
BEFORE = Conjunction("before", "bevor", frozenset({_PRESENT, _PAST}))
SUBORDINATORS = (BECAUSE, ALTHOUGH, IF, WHILE, BEFORE)
THAT = Conjunction("that", "dass", _ANY)
WHETHER = Conjunction("whether", "ob", _ANY)
AND = Conjunction("and", "und", _ANY)
BUT = Conjunction("but", "aber", _ANY)
