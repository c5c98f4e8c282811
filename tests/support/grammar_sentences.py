"""Abstract sentences written by hand, each with its English and its German."""

from __future__ import annotations

from transformer_jax.grammar.corpus import dictionary_form
from transformer_jax.grammar.lexicon import (
    ADJECTIVES,
    ALL,
    ALTHOUGH,
    AND,
    AROUND_FURNITURE,
    BE,
    BECAUSE,
    BUT,
    CAN,
    EVERY,
    FREQUENCIES,
    HAVE_TO,
    MANY,
    NO,
    NONE,
    NOUNS,
    NUMERALS,
    POSSESSIVES,
    PRONOUNS,
    THAT,
    THE,
    THIS,
    TIMES,
    VERBS,
    WANT_TO,
    WHAT,
    WHERE,
    WHERE_TO,
    WHETHER,
    WHICH,
    WHO,
    WHY,
    A,
    Adjective,
    Determiner,
    Expression,
    Frame,
    Noun,
    Number,
    Tense,
    Verb,
)
from transformer_jax.grammar.tree import (
    Clause,
    Coordination,
    Embedded,
    Location,
    NounPhrase,
    Question,
    RelativePronoun,
    Sentence,
    Statement,
)

PAST, PERFECT, FUTURE = Tense.PAST, Tense.PERFECT, Tense.FUTURE
MY, OUR, HIS, HER, THEIR = POSSESSIVES
TWO = NUMERALS[0]
ME, HE, SHE, WE, THEY = PRONOUNS


def noun(name: str) -> Noun:
    return next(word for word in NOUNS if word.english == name)


def verb(name: str, german_form: str, frame: Frame | None = None) -> Verb:
    """The English and German form, and the frame where these have several."""
    return next(
        word
        for word in VERBS
        if (word.english, dictionary_form(word.german)) == (name, german_form) and frame in (None, word.frame)
    )


def adjective(name: str) -> Adjective:
    return next(word for word in ADJECTIVES if word.english == name)


def time(name: str) -> Expression:
    return next(word for word in TIMES if word.english == name)


def frequency(name: str) -> Expression:
    return next(word for word in FREQUENCIES if word.english == name)


def np(words: str, determiner: Determiner = THE, *, plural: bool = False, **rest: object) -> NounPhrase:
    """ "old black dog": adjectives and a noun."""
    *adjectives, head = words.split()
    number = Number.PLURAL if plural else Number.SINGULAR
    return NounPhrase(noun(head), number, determiner, tuple(map(adjective, adjectives)), **rest)  # type: ignore[arg-type]


def who(head: str, *, plural: bool = False) -> RelativePronoun:
    return RelativePronoun(noun(head), Number.PLURAL if plural else Number.SINGULAR)


def at(words: str, determiner: Determiner = THE, **rest: object) -> Location:
    phrase = np(words, determiner, **rest)
    assert phrase.noun.at
    return Location(phrase.noun.at, phrase)


def to(words: str, determiner: Determiner = THE) -> Location:
    phrase = np(words, determiner)
    assert phrase.noun.to
    return Location(phrase.noun.to, phrase)


def say(clause: Clause) -> Sentence:
    return Statement(clause)


SLEEP, READ, GIVE = verb("sleep", "schlafen"), verb("read", "lesen"), verb("give", "geben")
SEE, HELP, CALL = verb("see", "sehen"), verb("help", "helfen"), verb("call", "anrufen")
GO, WAKE = verb("go", "gehen"), verb("wake", "aufwachen")
SAY, KNOW, ASK = verb("say", "sagen"), verb("know", "wissen"), verb("ask", "fragen", Frame.CLAUSAL)
PICK_UP, PLAY_WITH = verb("pick", "abholen"), verb("play", "spielen", Frame.PREPOSITIONAL)
WAIT_FOR = verb("wait", "warten", Frame.PREPOSITIONAL)
LAY, TRAVEL, OPEN = verb("lay", "legen"), verb("travel", "reisen"), verb("open", "aufmachen")
ON, ONTO = AROUND_FURNITURE[0]
IN_FRONT = AROUND_FURNITURE[4]


GOLD: list[tuple[Sentence, str, str]] = [
    # Relative clause on the subject, verb last in it, commas around it.
    (
        say(Clause(READ, np("old teacher", relative=Clause(SLEEP, who("teacher"))), object=np("book", A))),
        "the old teacher who sleeps reads a book .",
        "der alte Lehrer , der schläft , liest ein Buch .",
    ),
    # Verb second, also behind a time adverbial.
    (
        say(Clause(READ, np("woman"), PAST, WANT_TO, object=np("letter"), time=time("yesterday"), time_first=True)),
        "yesterday the woman wanted to read the letter .",
        "gestern wollte die Frau den Brief lesen .",
    ),
    (
        say(Clause(SLEEP, np("child"), place=at("small house"), time=time("in the evening"))),
        "the child sleeps in the small house in the evening .",
        "das Kind schläft am Abend im kleinen Haus .",
    ),
    (
        say(Clause(SEE, ME, object=np("small black dog", A), time=time("now"), time_first=True)),
        "now I see a small black dog .",
        "jetzt sehe ich einen kleinen schwarzen Hund .",
    ),
    # Separable verbs.
    (say(Clause(CALL, HE, object=np("doctor"))), "he calls the doctor .", "er ruft den Arzt an ."),
    (say(Clause(CALL, HE, PERFECT, object=SHE)), "he has called her .", "er hat sie angerufen ."),
    (say(Clause(CALL, HE, FUTURE, object=THEY)), "he will call them .", "er wird sie anrufen ."),
    (
        say(Clause(PICK_UP, np("uncle"), object=np("girl"))),
        "the uncle picks up the girl .",
        "der Onkel holt das Mädchen ab .",
    ),
    (say(Clause(PICK_UP, WE, PAST, object=HE)), "we picked him up .", "wir holten ihn ab ."),
    (
        Statement(Clause(SLEEP, SHE), Embedded(BECAUSE, Clause(CALL, HE, object=np("friend")))),
        "she sleeps because he calls the friend .",
        "sie schläft , weil er den Freund anruft .",
    ),
    (say(Clause(WAKE, np("cat", plural=True), PAST)), "the cats woke up .", "die Katzen wachten auf ."),
    # Perfect with sein and haben.
    (say(Clause(WAKE, ME, PERFECT)), "I have woken up .", "ich bin aufgewacht ."),
    (
        say(Clause(GO, THEY, PERFECT, goal=to("garden"))),
        "they have gone into the garden .",
        "sie sind in den Garten gegangen .",
    ),
    (
        say(Clause(HELP, np("nurse"), PERFECT, object=np("old man"))),
        "the nurse has helped the old man .",
        "die Krankenschwester hat dem alten Mann geholfen .",
    ),
    # Modal verbs.
    (
        say(Clause(READ, np("student"), modal=HAVE_TO, object=np("long letter"))),
        "the student has to read the long letter .",
        "der Student muss den langen Brief lesen .",
    ),
    (
        say(Clause(SLEEP, ME, modal=CAN, is_negated=True)),
        "I cannot sleep .",
        "ich kann nicht schlafen .",
    ),
    (
        say(Clause(SLEEP, np("boy", plural=True), PAST, WANT_TO, is_negated=True)),
        "the boys did not want to sleep .",
        "die Jungen wollten nicht schlafen .",
    ),
    # Negation: nicht behind definite objects and time, before places; kein for indefinite objects.
    (
        say(Clause(SEE, np("king"), is_negated=True, object=np("boy"), time=time("today"))),
        "the king does not see the boy today .",
        "der König sieht den Jungen heute nicht .",
    ),
    (
        say(Clause(READ, SHE, is_negated=True, object=np("interesting book", A))),
        "she does not read an interesting book .",
        "sie liest kein interessantes Buch .",
    ),
    (
        say(Clause(HELP, SHE, PERFECT, is_negated=True, object=np("old neighbour", NONE, plural=True))),
        "she has not helped old neighbours .",
        "sie hat keinen alten Nachbarn geholfen .",
    ),
    (
        say(Clause(GO, HE, is_negated=True, goal=to("city"))),
        "he does not go to the city .",
        "er geht nicht in die Stadt .",
    ),
    (
        say(Clause(verb("drink", "trinken"), WE, is_negated=True, object=np("cold milk", NONE))),
        "we do not drink cold milk .",
        "wir trinken keine kalte Milch .",
    ),
    (say(Clause(SLEEP, np("dog", NO))), "no dog sleeps .", "kein Hund schläft ."),
    (
        say(Clause(BE, np("lamp"), is_negated=True, predicate=adjective("new"))),
        "the lamp is not new .",
        "die Lampe ist nicht neu .",
    ),
    # Two objects.
    (
        say(Clause(GIVE, np("aunt", MY), PAST, object=np("apple", A), recipient=np("child", plural=True))),
        "my aunt gave the children an apple .",
        "meine Tante gab den Kindern einen Apfel .",
    ),
    (
        say(Clause(verb("explain", "erklären"), HE, PERFECT, object=np("short story"), recipient=WE)),
        "he has explained the short story to us .",
        "er hat uns die kurze Geschichte erklärt .",
    ),
    (
        say(
            Clause(
                verb("return", "zurückgeben"),
                np("guest"),
                object=np("key"),
                recipient=np("waitress"),
                time=time("today"),
            )
        ),
        "the guest returns the key to the waitress today .",
        "der Gast gibt der Kellnerin heute den Schlüssel zurück .",
    ),
    # Prepositions: dative for where, accusative for where to, contraction, order of time, manner and place.
    (
        say(Clause(verb("lie", "liegen"), np("red book"), place=Location(ON, np("table")))),
        "the red book lies on the table .",
        "das rote Buch liegt auf dem Tisch .",
    ),
    (
        say(Clause(LAY, HE, PAST, object=np("key"), goal=Location(ONTO, np("table")))),
        "he laid the key on the table .",
        "er legte den Schlüssel auf den Tisch .",
    ),
    (
        say(Clause(verb("place", "stellen"), ME, PERFECT, object=np("vase", A), goal=Location(IN_FRONT[1], np("bed")))),
        "I have placed a vase in front of the bed .",
        "ich habe eine Vase vor das Bett gestellt .",
    ),
    (
        say(
            Clause(
                TRAVEL,
                np("queen"),
                goal=to("village"),
                manner=Expression("by train", "mit dem Zug"),
                time=time("today"),
            )
        ),
        "the queen travels to the village by train today .",
        "die Königin reist heute mit dem Zug ins Dorf .",
    ),
    (
        say(Clause(WAIT_FOR, np("tourist", plural=True), object=np("bus"), place=at("station"))),
        "the tourists wait for the bus at the station .",
        "die Touristen warten am Bahnhof auf den Bus .",
    ),
    (
        say(Clause(READ, np("judge"), object=np("newspaper", A), place=at("garden"))),
        "the judge reads a newspaper in the garden .",
        "der Richter liest im Garten eine Zeitung .",
    ),
    (
        say(Clause(PLAY_WITH, np("child", TWO, plural=True), object=np("dog", MANY, plural=True))),
        "two children play with many dogs .",
        "zwei Kinder spielen mit vielen Hunden .",
    ),
    # Adverbs of frequency.
    (
        say(Clause(verb("visit", "besuchen"), np("prince"), object=np("princess"), frequency=frequency("never"))),
        "the prince never visits the princess .",
        "der Prinz besucht die Prinzessin nie .",
    ),
    # The genitive.
    (
        say(Clause(SEE, WE, object=np("black horse", possessor=np("old king")))),
        "we see the old king 's black horse .",
        "wir sehen das schwarze Pferd des alten Königs .",
    ),
    (
        say(Clause(SLEEP, np("dog", possessor=np("neighbour", THIS, plural=True)))),
        "these neighbours ' dog sleeps .",
        "der Hund dieser Nachbarn schläft .",
    ),
    # Relative clauses: case, number, prepositions, whose; in the postfield where only verbs would follow.
    (
        say(Clause(SEE, HE, PERFECT, object=np("dog", relative=Clause(SLEEP, who("dog"))))),
        "he has seen the dog that sleeps .",
        "er hat den Hund gesehen , der schläft .",
    ),
    (
        say(Clause(SLEEP, np("woman", relative=Clause(HELP, ME, object=who("woman"))))),
        "the woman whom I help sleeps .",
        "die Frau , der ich helfe , schläft .",
    ),
    (
        say(Clause(SLEEP, np("friend", plural=True, relative=Clause(WAIT_FOR, WE, object=who("friend", plural=True))))),
        "the friends for whom we wait sleep .",
        "die Freunde , auf die wir warten , schlafen .",
    ),
    (
        say(
            Clause(
                SLEEP, np("child", plural=True, relative=Clause(HELP, HE, PERFECT, object=who("child", plural=True)))
            )
        ),
        "the children whom he has helped sleep .",
        "die Kinder , denen er geholfen hat , schlafen .",
    ),
    (
        say(Clause(SEE, ME, object=np("witch", relative=Clause(SLEEP, np("old cat", whose=who("witch")))))),
        "I see the witch whose old cat sleeps .",
        "ich sehe die Hexe , deren alte Katze schläft .",
    ),
    (
        say(
            Clause(
                verb("arrive", "ankommen"),
                np("farmer", relative=Clause(CALL, SHE, object=who("farmer"))),
                PERFECT,
                time=time("today"),
                time_first=True,
            )
        ),
        "today the farmer whom she calls has arrived .",
        "heute ist der Bauer angekommen , den sie anruft .",
    ),
    # Questions.
    (
        Question(Clause(READ, np("teacher"), object=np("book", A))),
        "does the teacher read a book ?",
        "liest der Lehrer ein Buch ?",
    ),
    (
        Question(Clause(OPEN, WHO, PERFECT, object=np("window"))),
        "who has opened the window ?",
        "wer hat das Fenster aufgemacht ?",
    ),
    (Question(Clause(HELP, np("cook"), PAST, object=WHO)), "whom did the cook help ?", "wem half der Koch ?"),
    (Question(Clause(WAIT_FOR, THEY, object=WHAT)), "what do they wait for ?", "worauf warten sie ?"),
    (
        Question(Clause(SEE, np("boy"), modal=CAN, object=np("wild bear", WHICH))),
        "which wild bear can the boy see ?",
        "welchen wilden Bären kann der Junge sehen ?",
    ),
    (
        Question(Clause(GO, np("girl", EVERY), PAST, question=WHERE_TO)),
        "where did every girl go ?",
        "wohin ging jedes Mädchen ?",
    ),
    (
        Question(Clause(SLEEP, np("guest"), is_negated=True, question=WHY)),
        "why does the guest not sleep ?",
        "warum schläft der Gast nicht ?",
    ),
    # Subordinate clauses, before and behind; complements; indirect questions; coordination.
    (
        Statement(
            Clause(SLEEP, np("cat")),
            Embedded(ALTHOUGH, Clause(READ, HE, modal=WANT_TO, object=np("long book"))),
            adverbial_first=True,
        ),
        "although he wants to read the long book , the cat sleeps .",
        "obwohl er das lange Buch lesen will , schläft die Katze .",
    ),
    (
        say(Clause(SAY, np("lawyer"), complement=Embedded(THAT, Clause(SLEEP, THEY, PERFECT)))),
        "the lawyer says that they have slept .",
        "der Anwalt sagt , dass sie geschlafen haben .",
    ),
    (
        say(
            Clause(
                KNOW,
                ME,
                is_negated=True,
                complement=Embedded(WHETHER, Clause(CALL, np("pupil"), PAST, object=SHE)),
            )
        ),
        "I do not know whether the pupil called her .",
        "ich weiß nicht , ob der Schüler sie anrief .",
    ),
    (
        say(Clause(ASK, SHE, complement=Embedded(WHERE, Clause(SLEEP, np("dog", HIS))))),
        "she asks where his dog sleeps .",
        "sie fragt , wo sein Hund schläft .",
    ),
    (
        Coordination(
            BUT,
            Clause(SLEEP, np("giant", ALL, plural=True)),
            Clause(SEE, np("tired captain", OUR), object=np("big ship", THEIR)),
        ),
        "all giants sleep , but our tired captain sees their big ship .",
        "alle Riesen schlafen , aber unser müder Kapitän sieht ihr großes Schiff .",
    ),
    (
        Coordination(
            AND,
            Clause(SEE, HE, object=np("duck", A, relative=Clause(SLEEP, who("duck")))),
            Clause(SLEEP, SHE),
        ),
        "he sees a duck that sleeps and she sleeps .",
        "er sieht eine Ente , die schläft , und sie schläft .",
    ),
]
