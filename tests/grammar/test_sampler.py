"""The grammar: its paradigms against tables typed by hand, its sentences against translations made by hand."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, pairwise

import pytest

from tests.support.grammar_samples import sample_table
from tests.support.places import ROOT
from transformer_jax.grammar import MAX_TOKENS, Section, declension, english, german, modifiers, phrases, sentence_pairs
from transformer_jax.grammar.conjugation import finite
from transformer_jax.grammar.holdout import HELD_OUT, Construction, dictionary_form, is_held_out, pairs
from transformer_jax.grammar.nouns import AROUND_FURNITURE, NOUNS
from transformer_jax.grammar.sampler import SentenceSampler
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
from transformer_jax.grammar.verbs import BE, VERBS
from transformer_jax.grammar.words import (
    Adjective,
    Case,
    Determiner,
    Frame,
    Frequency,
    Interrogative,
    Manner,
    Noun,
    Number,
    QuestionAdverb,
    Tense,
    TimeAdverbial,
    Verb,
)

PAST, PERFECT, FUTURE = Tense.PAST, Tense.PERFECT, Tense.FUTURE
THE, A, NO, THIS, EVERY, ALL, NONE, MANY, WHICH = (
    modifiers.THE,
    modifiers.A,
    modifiers.NO,
    modifiers.THIS,
    modifiers.EVERY,
    modifiers.ALL,
    modifiers.NONE,
    modifiers.MANY,
    modifiers.WHICH,
)
MY, OUR, HIS, HER, THEIR = modifiers.POSSESSIVES
TWO = modifiers.NUMERALS[0]
WHO, WHAT = Interrogative.WHO, Interrogative.WHAT
ME, HE, SHE, WE, THEY = modifiers.PRONOUNS


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
    return next(word for word in modifiers.ADJECTIVES if word.english == name)


def time(name: str) -> TimeAdverbial:
    return next(word for word in modifiers.TIMES if word.english == name)


def frequency(name: str) -> Frequency:
    return next(word for word in modifiers.FREQUENCIES if word.english == name)


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
CAN, HAVE_TO, WANT_TO = modifiers.MODALS
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
        Statement(Clause(SLEEP, SHE), Embedded(modifiers.BECAUSE, Clause(CALL, HE, object=np("friend")))),
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
                TRAVEL, np("queen"), goal=to("village"), manner=Manner("by train", "mit dem Zug"), time=time("today")
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
        Question(Clause(GO, np("girl", EVERY), PAST, question=QuestionAdverb.WHERE_TO)),
        "where did every girl go ?",
        "wohin ging jedes Mädchen ?",
    ),
    (
        Question(Clause(SLEEP, np("guest"), is_negated=True, question=QuestionAdverb.WHY)),
        "why does the guest not sleep ?",
        "warum schläft der Gast nicht ?",
    ),
    # Subordinate clauses, before and behind; complements; indirect questions; coordination.
    (
        Statement(
            Clause(SLEEP, np("cat")),
            Embedded(modifiers.ALTHOUGH, Clause(READ, HE, modal=WANT_TO, object=np("long book"))),
            adverbial_first=True,
        ),
        "although he wants to read the long book , the cat sleeps .",
        "obwohl er das lange Buch lesen will , schläft die Katze .",
    ),
    (
        say(Clause(SAY, np("lawyer"), complement=Embedded(modifiers.THAT, Clause(SLEEP, THEY, PERFECT)))),
        "the lawyer says that they have slept .",
        "der Anwalt sagt , dass sie geschlafen haben .",
    ),
    (
        say(
            Clause(
                KNOW,
                ME,
                is_negated=True,
                complement=Embedded(modifiers.WHETHER, Clause(CALL, np("pupil"), PAST, object=SHE)),
            )
        ),
        "I do not know whether the pupil called her .",
        "ich weiß nicht , ob der Schüler sie anrief .",
    ),
    (
        say(Clause(ASK, SHE, complement=Embedded(QuestionAdverb.WHERE, Clause(SLEEP, np("dog", HIS))))),
        "she asks where his dog sleeps .",
        "sie fragt , wo sein Hund schläft .",
    ),
    (
        Coordination(
            modifiers.BUT,
            Clause(SLEEP, np("giant", ALL, plural=True)),
            Clause(SEE, np("tired captain", OUR), object=np("big ship", THEIR)),
        ),
        "all giants sleep , but our tired captain sees their big ship .",
        "alle Riesen schlafen , aber unser müder Kapitän sieht ihr großes Schiff .",
    ),
    (
        Coordination(
            modifiers.AND,
            Clause(SEE, HE, object=np("duck", A, relative=Clause(SLEEP, who("duck")))),
            Clause(SLEEP, SHE),
        ),
        "he sees a duck that sleeps and she sleeps .",
        "er sieht eine Ente , die schläft , und sie schläft .",
    ),
]


@pytest.mark.parametrize(("sentence", "source", "target"), GOLD, ids=[source for _, source, _ in GOLD])
def test_gold_sentences(sentence: Sentence, source: str, target: str) -> None:
    assert english.render(sentence) == source
    assert german.render(sentence) == target


# Masculine Hund, neuter Kind, feminine Frau, plural of Hund, in nominative, accusative, dative, genitive.
DECLENSION = {
    "definite": """
        der alte Hund | das alte Kind | die alte Frau | die alten Hunde
        den alten Hund | das alte Kind | die alte Frau | die alten Hunde
        dem alten Hund | dem alten Kind | der alten Frau | den alten Hunden
        des alten Hunds | des alten Kindes | der alten Frau | der alten Hunde""",
    "kein": """
        kein alter Hund | kein altes Kind | keine alte Frau | keine alten Hunde
        keinen alten Hund | kein altes Kind | keine alte Frau | keine alten Hunde
        keinem alten Hund | keinem alten Kind | keiner alten Frau | keinen alten Hunden
        keines alten Hunds | keines alten Kindes | keiner alten Frau | keiner alten Hunde""",
    "dieser": """
        dieser alte Hund | dieses alte Kind | diese alte Frau | diese alten Hunde
        diesen alten Hund | dieses alte Kind | diese alte Frau | diese alten Hunde
        diesem alten Hund | diesem alten Kind | dieser alten Frau | diesen alten Hunden
        dieses alten Hunds | dieses alten Kindes | dieser alten Frau | dieser alten Hunde""",
    "none": """
        alter Hund | altes Kind | alte Frau | alte Hunde
        alten Hund | altes Kind | alte Frau | alte Hunde
        altem Hund | altem Kind | alter Frau | alten Hunden
        alten Hunds | alten Kindes | alter Frau | alter Hunde""",
}


@pytest.mark.parametrize(
    ("name", "determiner"), [("definite", THE), ("kein", NO), ("dieser", THIS), ("none", NONE)], ids=list(DECLENSION)
)
def test_declension_of_articles_adjectives_and_nouns(name: str, determiner: Determiner) -> None:
    columns = [("dog", Number.SINGULAR), ("child", Number.SINGULAR), ("woman", Number.SINGULAR), ("dog", Number.PLURAL)]
    rows = [line.strip().split(" | ") for line in DECLENSION[name].strip().splitlines()]
    for case, row in zip(Case, rows, strict=True):
        for (word, number), expected in zip(columns, row, strict=True):
            head = noun(word)
            article = declension.determiner(determiner, head.gender, number, case)
            middle = declension.adjective(adjective("old"), determiner.declension, head.gender, number, case)
            assert f"{article} {middle} {declension.noun(head, number, case)}".strip() == expected


@pytest.mark.parametrize(
    ("name", "singular", "plural"),
    [
        ("boy", "Junge Jungen Jungen Jungen", "Jungen Jungen Jungen Jungen"),
        ("man", "Mann Mann Mann Mannes", "Männer Männer Männern Männer"),
        ("car", "Auto Auto Auto Autos", "Autos Autos Autos Autos"),
        ("queen", "Königin Königin Königin Königin", "Königinnen Königinnen Königinnen Königinnen"),
        ("teacher", "Lehrer Lehrer Lehrer Lehrers", "Lehrer Lehrer Lehrern Lehrer"),
    ],
)
def test_nouns_in_all_cases(name: str, singular: str, plural: str) -> None:
    for number, forms in ((Number.SINGULAR, singular), (Number.PLURAL, plural)):
        assert [declension.noun(noun(name), number, case) for case in Case] == forms.split()


@pytest.mark.parametrize(
    ("word", "expected"),
    [("expensive", "teure"), ("dark", "dunkle"), ("tired", "müde"), ("new", "neue")],
)
def test_adjective_stems(word: str, expected: str) -> None:
    declined = declension.adjective(
        adjective(word), THE.declension, noun("woman").gender, Number.SINGULAR, Case.NOMINATIVE
    )
    assert declined == expected


@pytest.mark.parametrize(
    ("case", "forms"),
    [
        (Case.NOMINATIVE, "der das die die"),
        (Case.ACCUSATIVE, "den das die die"),
        (Case.DATIVE, "dem dem der denen"),
        (Case.GENITIVE, "dessen dessen deren deren"),
    ],
)
def test_relative_pronouns(case: Case, forms: str) -> None:
    antecedents = [(noun("dog"), False), (noun("child"), False), (noun("woman"), False), (noun("dog"), True)]
    found = [declension.relative_pronoun(word.gender, Number(is_plural), case) for word, is_plural in antecedents]
    assert found == forms.split()


@pytest.mark.parametrize(
    ("word", "present", "past"),
    [
        (READ, "lese liest lesen", "las las lasen"),
        (verb("smile", "lächeln"), "lächle lächelt lächeln", "lächelte lächelte lächelten"),
        (verb("work", "arbeiten"), "arbeite arbeitet arbeiten", "arbeitete arbeitete arbeiteten"),
        (KNOW, "weiß weiß wissen", "wusste wusste wussten"),
        (BE, "bin ist sind", "war war waren"),
    ],
)
def test_conjugation(word: Verb, present: str, past: str) -> None:
    for tense, forms in ((Tense.PRESENT, present), (PAST, past)):
        assert [finite(word.german, subject, tense) for subject in (ME, HE, WE)] == forms.split()


@pytest.fixture(scope="module")
def sampled() -> list[tuple[Sentence, str, str]]:
    """9,000 sentences, a third of them deeply nested."""
    found = []
    for seed, depth, count in (("a", 2, 6_000), ("b", 4, 3_000)):
        sampler = SentenceSampler(seed, depth)
        for _ in range(count):
            sentence = sampler.sentence()
            found.append((sentence, english.render(sentence), german.render(sentence)))
    return found


def test_english_determines_german(sampled: list[tuple[Sentence, str, str]]) -> None:
    assert _contradictions((source, target) for _, source, target in sampled) == []


@pytest.mark.drill
def test_english_determines_german_in_200_000_sentences() -> None:
    sampler = SentenceSampler("many", depth=3)
    sentences = (sampler.sentence() for _ in range(200_000))
    assert _contradictions((english.render(sentence), german.render(sentence)) for sentence in sentences) == []


def _contradictions(stream: Iterable[tuple[str, str]]) -> list[str]:
    known: dict[str, str] = {}
    return [source for source, target in stream if known.setdefault(source, target) != target]


def test_a_small_lexicon_leaves_no_ambiguity(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few nouns the same English comes up again and again, from different trees: a contradiction would show."""
    all_nouns_of = phrases.nouns_of
    monkeypatch.setattr(phrases, "nouns_of", lambda kind: all_nouns_of(kind)[:2])
    monkeypatch.setattr(phrases, "adjectives_of", lambda kind, colours: ())
    sampler = SentenceSampler("small lexicon", depth=0)
    found = [(english.render(tree), german.render(tree)) for tree in (sampler.sentence() for _ in range(8_000))]
    short = [source for source, _ in found if source.count(" ") < 6]
    assert len(set(short)) < 0.97 * len(short)
    assert _contradictions(found) == []


def test_no_english_word_has_two_german_ones() -> None:
    noun_forms = [
        english.noun_form(word, number) for word in NOUNS for number in Number if number == 0 or not word.is_mass
    ]
    frames = [(word.english, word.particle, word.english_preposition, word.frame) for word in VERBS]
    for words in (noun_forms, frames, [word.english for word in modifiers.ADJECTIVES]):
        assert len(words) == len(set(words))


def test_tokens_and_punctuation(sampled: list[tuple[Sentence, str, str]]) -> None:
    for _, source, target in sampled:
        for tokens in (source.split(" "), target.split(" ")):
            assert all(tokens)
            assert tokens[-1] in {".", "?"} and tokens[0] != ","
            neighbours = list(pairwise(tokens))
            assert not any(first == "," and second in {",", ".", "?"} for first, second in neighbours)
        assert source.endswith("?") == target.endswith("?")


def test_german_nouns_and_only_they_are_capitalised(sampled: list[tuple[Sentence, str, str]]) -> None:
    nouns = {declension.noun(word, number, case) for word in NOUNS for number in Number for case in Case}
    in_adverbials = {"Tag", "Morgen", "Abend", "Sonntag", "Montag", "Sommer", "Winter", "Woche"}
    in_adverbials |= {"Bus", "Zug", "Auto", "Fahrrad"}
    capitalised = {word for _, _, target in sampled for word in target.split() if word[0].isupper()}
    assert capitalised <= nouns | in_adverbials


def test_every_word_is_used(sampled: list[tuple[Sentence, str, str]]) -> None:
    seen = {word for _, _, target in sampled for word in target.split()}
    assert {word.german for word in NOUNS} <= seen
    assert {word.german for word in modifiers.TIMES if " " not in word.german} <= seen
    assert all({word.german.third, word.german.past} & seen for word in VERBS)


@pytest.mark.parametrize("section", list(Section))
def test_sections_are_streams_that_only_grow(section: Section) -> None:
    assert list(islice(sentence_pairs(section, "x"), 40))[:15] == list(islice(sentence_pairs(section, "x"), 15))
    assert next(sentence_pairs(section, "x")) != next(sentence_pairs(section, "y"))


def test_held_out_words_and_constructions_are_common_apart(sampled: list[tuple[Sentence, str, str]]) -> None:
    kept = [sentence for sentence, _, _ in sampled if not is_held_out(sentence)]
    assert 0.6 * len(sampled) < len(kept) < len(sampled)
    seen = [pair for sentence in kept for pair in pairs(sentence)]
    assert not HELD_OUT & set(seen)
    for construction in Construction:
        assert sum(found is construction for _, found in seen) > 100
    text = " ".join(german.render(sentence) for sentence in kept)
    verbs = {dictionary_form(word.german): word.german for word in VERBS}
    stems = {word.german: word.stem for word in modifiers.ADJECTIVES if word.stem}
    for word, _ in HELD_OUT:
        forms = (verbs[word].third, verbs[word].past) if word in verbs else (stems.get(word, word),)
        assert sum(text.count(f" {form}") for form in forms) > 10, word


def test_length_limit_is_on_both_sides() -> None:
    for section, is_long in ((Section.COMMON, False), (Section.LONG, True)):
        for pair in islice(sentence_pairs(section, "length"), 100):
            assert all((len(text.split()) > MAX_TOKENS) is is_long for text in pair)


def test_documented_samples_are_what_the_code_produces() -> None:
    page = (ROOT / "docs" / "grammar.md").read_text(encoding="utf-8")
    assert sample_table() in page, (
        "run `python -m tests.support.grammar_samples` and paste its table into docs/grammar.md"
    )
