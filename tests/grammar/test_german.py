"""German: paradigms against tables typed by hand. The sentences are tested in `test_corpus.py`."""

from __future__ import annotations

import pytest

from transformer_jax.grammar import german, lexicon
from transformer_jax.grammar.lexicon import THE, Adjective, Case, Determiner, Noun, Number, Tense

ME, HE, _, WE, _ = lexicon.PRONOUNS


def noun(english: str) -> Noun:
    return next(word for word in lexicon.NOUNS if word.english == english)


def adjective(english: str) -> Adjective:
    return next(word for word in lexicon.ADJECTIVES if word.english == english)


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
    ("name", "determiner"),
    [("definite", THE), ("kein", lexicon.NO), ("dieser", lexicon.THIS), ("none", lexicon.NONE)],
    ids=list(DECLENSION),
)
def test_declension_of_articles_adjectives_and_nouns(name: str, determiner: Determiner) -> None:
    columns = [("dog", Number.SINGULAR), ("child", Number.SINGULAR), ("woman", Number.SINGULAR), ("dog", Number.PLURAL)]
    rows = [line.strip().split(" | ") for line in DECLENSION[name].strip().splitlines()]
    for case, row in zip(Case, rows, strict=True):
        for (word, number), expected in zip(columns, row, strict=True):
            head = noun(word)
            article = german.inflected(determiner, head.gender, number, case)
            middle = german.declined(adjective("old"), determiner.declension, head.gender, number, case)
            assert f"{article} {middle} {german.noun_form(head, number, case)}".strip() == expected


@pytest.mark.parametrize(
    ("infinitive", "present", "past"),
    [
        ("lesen", "lese liest lesen", "las las lasen"),
        ("lächeln", "lächle lächelt lächeln", "lächelte lächelte lächelten"),
        ("arbeiten", "arbeite arbeitet arbeiten", "arbeitete arbeitete arbeiteten"),
        ("wissen", "weiß weiß wissen", "wusste wusste wussten"),
        ("sein", "bin ist sind", "war war waren"),
    ],
)
def test_conjugation(infinitive: str, present: str, past: str) -> None:
    verb = next(verb.german for verb in (*lexicon.VERBS, lexicon.BE) if verb.german.infinitive == infinitive)
    for tense, forms in ((Tense.PRESENT, present), (Tense.PAST, past)):
        assert [german.finite(verb, subject, tense) for subject in (ME, HE, WE)] == forms.split()
