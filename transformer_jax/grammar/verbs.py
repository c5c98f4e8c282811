"""The verbs, by frame: what each needs beside its subject, in English and in German.

German principal parts are infinitive, third person, past, participle; a bar sets a separable prefix off:
"ab|holen holt holte geholt" conjugates as *holt ... ab*, *abholt*, *abgeholt*.
"""

from __future__ import annotations

from transformer_jax.grammar.words import Case, Frame, GermanVerb, Kind, Manner, Verb


def _german(parts: str, *, first: str = "", sein: bool = False) -> GermanVerb:
    infinitive, third, past, participle = parts.split()
    prefix, _, stem = infinitive.rpartition("|")
    return GermanVerb(stem, third, past, participle, prefix, first, takes_sein=sein)


_PERSON, _BEING = Kind.PERSON, Kind.PERSON | Kind.ANIMAL
_TEXT, _PORTABLE = Kind.TEXT, Kind.THING | Kind.CLOTHES
_PORTABLE_OR_TEXT = Kind.THING | Kind.FLAT | Kind.CLOTHES
_GOODS = _PORTABLE | Kind.VEHICLE | Kind.FURNITURE | Kind.FLAT
_VISIBLE = _BEING | _GOODS | Kind.TRANSPORT | Kind.PLACE
_DATIVE = Case.DATIVE

_WELL, _DEEPLY = Manner("well", "gut"), Manner("deeply", "tief")
_HARD, _SLOWLY, _QUICKLY = Manner("hard", "hart"), Manner("slowly", "langsam"), Manner("quickly", "schnell")
_LOUDLY, _SOFTLY = Manner("loudly", "laut"), Manner("softly", "leise")
_CAREFULLY, _THOROUGHLY = Manner("carefully", "vorsichtig"), Manner("thoroughly", "gründlich")
_HAPPILY, _BITTERLY = Manner("happily", "fröhlich"), Manner("bitterly", "bitterlich")
_PATIENTLY, _WARMLY = Manner("patiently", "geduldig"), Manner("warmly", "herzlich")
_BY_BUS, _BY_TRAIN = Manner("by bus", "mit dem Bus"), Manner("by train", "mit dem Zug")
_BY_CAR, _BY_BICYCLE = Manner("by car", "mit dem Auto"), Manner("by bicycle", "mit dem Fahrrad")

_I, _T, _D = Frame.INTRANSITIVE, Frame.TRANSITIVE, Frame.DITRANSITIVE
_PP, _M, _PL = Frame.PREPOSITIONAL, Frame.MOTION, Frame.PLACEMENT
_POS, _C = Frame.POSITION, Frame.CLAUSAL

INTRANSITIVE = (
    Verb("sleep", _german("schlafen schläft schlief geschlafen"), _I, _BEING, past="slept", allows_place=True,
         manners=(_WELL, _DEEPLY)),
    Verb("work", _german("arbeiten arbeitet arbeitete gearbeitet"), _I, _PERSON, allows_place=True,
         manners=(_HARD, _SLOWLY)),
    Verb("laugh", _german("lachen lacht lachte gelacht"), _I, _PERSON, manners=(_LOUDLY, _HAPPILY)),
    Verb("cry", _german("weinen weint weinte geweint"), _I, _PERSON, allows_place=True,
         manners=(_BITTERLY, _SOFTLY)),
    Verb("dance", _german("tanzen tanzt tanzte getanzt"), _I, _PERSON, allows_place=True, manners=(_WELL, _HAPPILY)),
    Verb("sing", _german("singen singt sang gesungen"), _I, _PERSON, past="sang", participle="sung",
         allows_place=True, manners=(_LOUDLY, _SOFTLY, _WELL)),
    Verb("play", _german("spielen spielt spielte gespielt"), _I, _BEING, allows_place=True,
         manners=(_SOFTLY, _HAPPILY)),
    Verb("smile", _german("lächeln lächelt lächelte gelächelt", first="lächle"), _I, _PERSON, manners=(_HAPPILY,)),
    Verb("whistle", _german("pfeifen pfeift pfiff gepfiffen"), _I, _PERSON, allows_place=True,
         manners=(_LOUDLY, _SOFTLY)),
    Verb("swim", _german("schwimmen schwimmt schwamm geschwommen", sein=True), _I, _BEING, past="swam",
         participle="swum", manners=(_SLOWLY, _QUICKLY, _WELL)),
    Verb("wake", _german("auf|wachen wacht wachte gewacht", sein=True), _I, _BEING, past="woke", participle="woken",
         particle="up", manners=(_SLOWLY,)),
    Verb("get", _german("auf|stehen steht stand gestanden", sein=True), _I, _PERSON, past="got", particle="up",
         manners=(_SLOWLY, _QUICKLY)),
    Verb("arrive", _german("an|kommen kommt kam gekommen", sein=True), _I, _PERSON, allows_place=True),
    Verb("depart", _german("ab|reisen reist reiste gereist", sein=True), _I, _PERSON),
    Verb("return", _german("zurück|kehren kehrt kehrte gekehrt", sein=True), _I, _PERSON),
    Verb("watch", _german("fern|sehen sieht sah gesehen"), _I, _PERSON, particle="television", allows_place=True),
    Verb("fall", _german("ein|schlafen schläft schlief geschlafen", sein=True), _I, _BEING, past="fell",
         participle="fallen", particle="asleep", allows_place=True),
    Verb("run", _german("weg|laufen läuft lief gelaufen", sein=True), _I, _BEING, past="ran", participle="run",
         particle="away"),
)  # fmt: skip

TRANSITIVE = (
    Verb("read", _german("lesen liest las gelesen"), _T, _PERSON, _TEXT, past="read", allows_place=True,
         manners=(_SLOWLY, _THOROUGHLY)),
    Verb("write", _german("schreiben schreibt schrieb geschrieben"), _T, _PERSON, Kind.WRITING, past="wrote",
         participle="written", allows_place=True),
    Verb("see", _german("sehen sieht sah gesehen"), _T, _BEING, _VISIBLE, past="saw", participle="seen"),
    Verb("hear", _german("hören hört hörte gehört"), _T, _BEING, _BEING, past="heard"),
    Verb("like", _german("mögen mag mochte gemocht", first="mag"), _T, _PERSON, _BEING | Kind.FOOD | Kind.DRINK,
         is_stative=True),
    Verb("love", _german("lieben liebt liebte geliebt"), _T, _PERSON, _BEING, is_stative=True),
    Verb("know", _german("kennen kennt kannte gekannt"), _T, _PERSON, _PERSON | _TEXT | Kind.PLACE, past="knew",
         participle="known", is_stative=True),
    Verb("need", _german("brauchen braucht brauchte gebraucht"), _T, _PERSON, _PORTABLE | Kind.VEHICLE,
         is_stative=True),
    Verb("visit", _german("besuchen besucht besuchte besucht"), _T, _PERSON, _PERSON | Kind.BUILDING),
    Verb("understand", _german("verstehen versteht verstand verstanden"), _T, _PERSON, _PERSON | _TEXT,
         past="understood"),
    Verb("eat", _german("essen isst aß gegessen"), _T, _PERSON, Kind.FOOD, past="ate", participle="eaten",
         allows_place=True, manners=(_SLOWLY, _QUICKLY)),
    Verb("drink", _german("trinken trinkt trank getrunken"), _T, _PERSON, Kind.DRINK, past="drank",
         participle="drunk", allows_place=True, manners=(_SLOWLY, _QUICKLY)),
    Verb("cook", _german("kochen kocht kochte gekocht"), _T, _PERSON, Kind.DISH, allows_place=True),
    Verb("buy", _german("kaufen kauft kaufte gekauft"), _T, _PERSON, _GOODS | Kind.FOOD | Kind.DRINK, past="bought"),
    Verb("sell", _german("verkaufen verkauft verkaufte verkauft"), _T, _PERSON, _GOODS | Kind.FOOD, past="sold"),
    Verb("find", _german("finden findet fand gefunden"), _T, _BEING, _PORTABLE | _BEING, past="found",
         allows_place=True),
    Verb("look", _german("suchen sucht suchte gesucht"), _T, _BEING, _PORTABLE | _BEING,
         english_preposition="for", allows_place=True),
    Verb("carry", _german("tragen trägt trug getragen"), _T, _PERSON, Kind.UPRIGHT, manners=(_CAREFULLY, _SLOWLY)),
    Verb("wash", _german("waschen wäscht wusch gewaschen"), _T, _PERSON, Kind.CLOTHES | Kind.VEHICLE,
         manners=(_THOROUGHLY,)),
    Verb("draw", _german("zeichnen zeichnet zeichnete gezeichnet"), _T, _PERSON, _BEING | Kind.PLACE, past="drew",
         participle="drawn"),
    Verb("repair", _german("reparieren repariert reparierte repariert"), _T, _PERSON, Kind.MACHINE,
         allows_place=True, manners=(_CAREFULLY, _QUICKLY)),
    Verb("lose", _german("verlieren verliert verlor verloren"), _T, _PERSON, _PORTABLE_OR_TEXT, past="lost"),
    Verb("meet", _german("treffen trifft traf getroffen"), _T, _PERSON, _PERSON, past="met", allows_place=True),
    Verb("greet", _german("grüßen grüßt grüßte gegrüßt"), _T, _PERSON, _PERSON, manners=(_WARMLY,)),
    Verb("ask", _german("fragen fragt fragte gefragt"), _T, _PERSON, _PERSON),
    Verb("praise", _german("loben lobt lobte gelobt"), _T, _PERSON, _PERSON),
    Verb("admire", _german("bewundern bewundert bewunderte bewundert", first="bewundere"), _T, _PERSON,
         _PERSON | Kind.BUILDING),
    Verb("rescue", _german("retten rettet rettete gerettet"), _T, _PERSON, _BEING),
    Verb("accompany", _german("begleiten begleitet begleitete begleitet"), _T, _PERSON, _PERSON),
    Verb("chase", _german("jagen jagt jagte gejagt"), _T, Kind.ANIMAL, Kind.ANIMAL),
    Verb("feed", _german("füttern füttert fütterte gefüttert", first="füttere"), _T, _PERSON, Kind.ANIMAL,
         past="fed", allows_place=True),
    Verb("build", _german("bauen baut baute gebaut"), _T, _PERSON, Kind.BUILDING, past="built"),
    Verb("open", _german("auf|machen macht machte gemacht"), _T, _PERSON, Kind.OPENABLE,
         manners=(_SLOWLY, _CAREFULLY)),
    Verb("close", _german("zu|machen macht machte gemacht"), _T, _PERSON, Kind.OPENABLE,
         manners=(_SLOWLY, _SOFTLY)),
    Verb("call", _german("an|rufen ruft rief gerufen"), _T, _PERSON, _PERSON),
    Verb("invite", _german("ein|laden lädt lud geladen"), _T, _PERSON, _PERSON),
    Verb("pick", _german("ab|holen holt holte geholt"), _T, _PERSON, _PERSON, particle="up", allows_place=True),
    Verb("bring", _german("mit|bringen bringt brachte gebracht"), _T, _PERSON, _PORTABLE | Kind.FOOD, past="brought",
         particle="along"),
    Verb("throw", _german("weg|werfen wirft warf geworfen"), _T, _PERSON, _PORTABLE_OR_TEXT, past="threw",
         participle="thrown", particle="away"),
    Verb("take", _german("aus|ziehen zieht zog gezogen"), _T, _PERSON, Kind.CLOTHES, past="took",
         participle="taken", particle="off", manners=(_SLOWLY, _QUICKLY)),
    Verb("tidy", _german("auf|räumen räumt räumte geräumt"), _T, _PERSON, Kind.ROOM, particle="up",
         manners=(_THOROUGHLY, _QUICKLY)),
    Verb("pack", _german("ein|packen packt packte gepackt"), _T, _PERSON, _PORTABLE_OR_TEXT),
    Verb("borrow", _german("aus|leihen leiht lieh geliehen"), _T, _PERSON, Kind.FLAT | Kind.UPRIGHT | Kind.VEHICLE),
    Verb("look", _german("an|sehen sieht sah gesehen"), _T, _BEING, _VISIBLE, english_preposition="at"),
    Verb("prepare", _german("vor|bereiten bereitet bereitete bereitet"), _T, _PERSON, Kind.EVENT,
         manners=(_THOROUGHLY,)),
    Verb("help", _german("helfen hilft half geholfen"), _T, _PERSON, _PERSON, case=_DATIVE, allows_place=True),
    Verb("thank", _german("danken dankt dankte gedankt"), _T, _PERSON, _PERSON, case=_DATIVE, manners=(_WARMLY,)),
    Verb("follow", _german("folgen folgt folgte gefolgt", sein=True), _T, _BEING, _BEING, case=_DATIVE,
         manners=(_SLOWLY,)),
    Verb("answer", _german("antworten antwortet antwortete geantwortet"), _T, _PERSON, _PERSON, case=_DATIVE),
    Verb("congratulate", _german("gratulieren gratuliert gratulierte gratuliert"), _T, _PERSON, _PERSON,
         case=_DATIVE, manners=(_WARMLY,)),
    Verb("trust", _german("vertrauen vertraut vertraute vertraut"), _T, _PERSON, _PERSON, case=_DATIVE,
         is_stative=True),
    Verb("belong", _german("gehören gehört gehörte gehört"), _T, Kind.THING | Kind.VEHICLE | Kind.CLOTHES, _PERSON,
         case=_DATIVE, english_preposition="to", is_stative=True),
    Verb("listen", _german("zu|hören hört hörte gehört"), _T, _PERSON, _PERSON, case=_DATIVE,
         english_preposition="to", manners=(_PATIENTLY,)),
    Verb("agree", _german("zu|stimmen stimmt stimmte gestimmt"), _T, _PERSON, _PERSON, case=_DATIVE,
         english_preposition="with"),
)  # fmt: skip

DITRANSITIVE = (
    Verb("give", _german("geben gibt gab gegeben"), _D, _PERSON, _PORTABLE_OR_TEXT | Kind.FOOD, past="gave",
         participle="given"),
    Verb("show", _german("zeigen zeigt zeigte gezeigt"), _D, _PERSON, _GOODS | _TEXT | Kind.PLACE, participle="shown"),
    Verb("send", _german("schicken schickt schickte geschickt"), _D, _PERSON, _PORTABLE_OR_TEXT, past="sent"),
    Verb("lend", _german("leihen leiht lieh geliehen"), _D, _PERSON, Kind.FLAT | Kind.UPRIGHT | Kind.VEHICLE,
         past="lent"),
    Verb("tell", _german("erzählen erzählt erzählte erzählt"), _D, _PERSON, Kind.TALE, past="told"),
    Verb("offer", _german("an|bieten bietet bot geboten"), _D, _PERSON, Kind.FOOD | Kind.DRINK),
    Verb("bring", _german("bringen bringt brachte gebracht"), _D, _PERSON, _PORTABLE_OR_TEXT | Kind.DRINK,
         past="brought"),
    Verb("explain", _german("erklären erklärt erklärte erklärt"), _D, _PERSON, _TEXT, recipient_to=True),
    Verb("recommend", _german("empfehlen empfiehlt empfahl empfohlen"), _D, _PERSON, _TEXT | Kind.BUILDING,
         recipient_to=True),
    Verb("describe", _german("beschreiben beschreibt beschrieb beschrieben"), _D, _PERSON, _BEING | Kind.PLACE,
         recipient_to=True),
    Verb("return", _german("zurück|geben gibt gab gegeben"), _D, _PERSON, _PORTABLE_OR_TEXT | Kind.VEHICLE,
         recipient_to=True),
)  # fmt: skip

PREPOSITIONAL = (
    Verb("wait", _german("warten wartet wartete gewartet"), _PP, _PERSON, _PERSON | Kind.TRANSPORT,
         english_preposition="for", german_preposition="auf", allows_place=True, manners=(_PATIENTLY,)),
    Verb("think", _german("denken denkt dachte gedacht"), _PP, _PERSON, _PERSON | Kind.EVENT, past="thought",
         english_preposition="of", german_preposition="an"),
    Verb("talk", _german("sprechen spricht sprach gesprochen"), _PP, _PERSON, _BEING | _TEXT | Kind.EVENT,
         english_preposition="about", german_preposition="über"),
    Verb("write", _german("schreiben schreibt schrieb geschrieben"), _PP, _PERSON, _PERSON, past="wrote",
         participle="written", english_preposition="to", german_preposition="an"),
    Verb("laugh", _german("lachen lacht lachte gelacht"), _PP, _PERSON, _PERSON | Kind.TALE,
         english_preposition="at", german_preposition="über", manners=(_LOUDLY,)),
    Verb("dream", _german("träumen träumt träumte geträumt"), _PP, _PERSON, _BEING | Kind.PLACE | Kind.EVENT,
         english_preposition="of", german_preposition="von", case=_DATIVE),
    Verb("play", _german("spielen spielt spielte gespielt"), _PP, _BEING, _BEING | Kind.TOY,
         english_preposition="with", german_preposition="mit", case=_DATIVE, allows_place=True),
    Verb("dance", _german("tanzen tanzt tanzte getanzt"), _PP, _PERSON, _PERSON, english_preposition="with",
         german_preposition="mit", case=_DATIVE, allows_place=True),
    Verb("take", _german("teil|nehmen nimmt nahm genommen"), _PP, _PERSON, Kind.EVENT, past="took",
         participle="taken", particle="part", english_preposition="in", german_preposition="an", case=_DATIVE),
)  # fmt: skip

MOTION = (
    Verb("go", _german("gehen geht ging gegangen", sein=True), _M, _PERSON, Kind.PLACE, past="went",
         participle="gone"),
    Verb("come", _german("kommen kommt kam gekommen", sein=True), _M, _PERSON, Kind.PLACE, past="came",
         participle="come"),
    Verb("run", _german("laufen läuft lief gelaufen", sein=True), _M, _BEING, Kind.PLACE, past="ran",
         participle="run"),
    Verb("travel", _german("reisen reist reiste gereist", sein=True), _M, _PERSON, Kind.TOWN, past="travelled",
         manners=(_BY_BUS, _BY_TRAIN, _BY_CAR, _BY_BICYCLE)),
    Verb("drive", _german("fahren fährt fuhr gefahren", sein=True), _M, _PERSON, Kind.TOWN, past="drove",
         participle="driven"),
)  # fmt: skip

PLACEMENT = (
    Verb("lay", _german("legen legt legte gelegt"), _PL, _PERSON, Kind.FLAT, past="laid", manners=(_CAREFULLY,)),
    Verb("place", _german("stellen stellt stellte gestellt"), _PL, _PERSON, Kind.UPRIGHT, manners=(_CAREFULLY,)),
)

POSITION = (
    Verb("live", _german("wohnen wohnt wohnte gewohnt"), _POS, _PERSON, Kind.HOME, is_stative=True),
    Verb("stay", _german("bleiben bleibt blieb geblieben", sein=True), _POS, _BEING, Kind.PLACE),
    Verb("wait", _german("warten wartet wartete gewartet"), _POS, _PERSON, Kind.PLACE, manners=(_PATIENTLY,)),
    Verb("sit", _german("sitzen sitzt saß gesessen"), _POS, _BEING, Kind.PLACE | Kind.FURNITURE, past="sat"),
    Verb("lie", _german("liegen liegt lag gelegen"), _POS, Kind.ANIMAL | Kind.FLAT, Kind.FURNITURE, past="lay",
         participle="lain"),
    Verb("stand", _german("stehen steht stand gestanden"), _POS, Kind.UPRIGHT, Kind.FURNITURE, past="stood"),
)  # fmt: skip

CLAUSAL = (
    Verb("say", _german("sagen sagt sagte gesagt"), _C, _PERSON, past="said"),
    Verb("think", _german("denken denkt dachte gedacht"), _C, _PERSON, past="thought"),
    Verb("believe", _german("glauben glaubt glaubte geglaubt"), _C, _PERSON),
    Verb("hope", _german("hoffen hofft hoffte gehofft"), _C, _PERSON),
    Verb("notice", _german("bemerken bemerkt bemerkte bemerkt"), _C, _PERSON),
    Verb(
        "know",
        _german("wissen weiß wusste gewusst", first="weiß"),
        _C,
        _PERSON,
        past="knew",
        participle="known",
        is_stative=True,
    ),
    Verb("ask", _german("fragen fragt fragte gefragt"), _C, _PERSON),
)

_SEIN = GermanVerb("sein", "ist", "war", "gewesen", first="bin", plural="sind", takes_sein=True)
BE = Verb("be", _SEIN, Frame.COPULA, Kind.NOTHING, past="was", participle="been")

VERBS = INTRANSITIVE + TRANSITIVE + DITRANSITIVE + PREPOSITIONAL + MOTION + PLACEMENT + POSITION + CLAUSAL
