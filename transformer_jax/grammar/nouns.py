"""The nouns: each English word with its one German counterpart.

Left out on purpose: English nouns whose plural equals their singular (*fish*), and words with two common German
counterparts.
"""

from __future__ import annotations

from transformer_jax.grammar.words import Case, Gender, Kind, Noun, Preposition

_M, _N, _F = Gender.MASCULINE, Gender.NEUTER, Gender.FEMININE
_PERSON, _OWN_PERSON = Kind.PERSON | Kind.ADULT, Kind.PERSON | Kind.ADULT | Kind.OWN
_YOUNG = Kind.PERSON | Kind.OWN
_ANIMAL, _WILD = Kind.ANIMAL | Kind.OWN, Kind.ANIMAL | Kind.WILD
_THING, _FURNITURE = Kind.THING, Kind.FURNITURE
_FLAT, _UPRIGHT = Kind.THING | Kind.FLAT, Kind.THING | Kind.UPRIGHT
_TEXT, _WRITING = Kind.TEXT | Kind.FLAT, Kind.TEXT | Kind.WRITING
_CLOTHES, _EVENT = Kind.CLOTHES, Kind.EVENT
_FOOD, _DISH, _DRINK = Kind.FOOD, Kind.FOOD | Kind.DISH, Kind.DRINK
_VEHICLE, _TRANSPORT = Kind.VEHICLE | Kind.MACHINE, Kind.TRANSPORT | Kind.MACHINE
_TOY, _PLACE, _BUILDING = Kind.THING | Kind.TOY, Kind.PLACE, Kind.PLACE | Kind.BUILDING
_ROOM, _TOWN = Kind.PLACE | Kind.ROOM, Kind.PLACE | Kind.TOWN

_IN, _INTO, _TO = (
    Preposition("in", "in", Case.DATIVE),
    Preposition("into", "in", Case.ACCUSATIVE),
    Preposition("to", "in", Case.ACCUSATIVE),
)
_AT_SIDE, _TO_SIDE = Preposition("at", "an", Case.DATIVE), Preposition("to", "an", Case.ACCUSATIVE)
_AT_OPEN, _TO_OPEN = Preposition("at", "auf", Case.DATIVE), Preposition("to", "auf", Case.ACCUSATIVE)
_ON, _ONTO = Preposition("on", "auf", Case.DATIVE), Preposition("onto", "auf", Case.ACCUSATIVE)
_TOWARDS = Preposition("to", "zu", Case.DATIVE)

# (location, goal) for pieces of furniture: the two-way prepositions, dative for where, accusative for where to.
AROUND_FURNITURE = tuple(
    (Preposition(english, german, Case.DATIVE), Preposition(english, german, Case.ACCUSATIVE))
    for english, german in (
        ("on", "auf"),
        ("under", "unter"),
        ("beside", "neben"),
        ("behind", "hinter"),
        ("in front of", "vor"),
    )
)

PEOPLE = (
    Noun("teacher", "Lehrer", _M, "Lehrer", _OWN_PERSON),
    Noun("man", "Mann", _M, "Männer", _PERSON, "men", genitive="Mannes"),
    Noun("woman", "Frau", _F, "Frauen", _PERSON, "women"),
    Noun("child", "Kind", _N, "Kinder", _YOUNG, "children", genitive="Kindes"),
    Noun("boy", "Junge", _M, "Jungen", _YOUNG, oblique="Jungen"),
    Noun("girl", "Mädchen", _N, "Mädchen", _YOUNG),
    Noun("brother", "Bruder", _M, "Brüder", _OWN_PERSON),
    Noun("sister", "Schwester", _F, "Schwestern", _OWN_PERSON),
    Noun("son", "Sohn", _M, "Söhne", _YOUNG, genitive="Sohnes"),
    Noun("daughter", "Tochter", _F, "Töchter", _YOUNG),
    Noun("uncle", "Onkel", _M, "Onkel", _OWN_PERSON),
    Noun("aunt", "Tante", _F, "Tanten", _OWN_PERSON),
    Noun("friend", "Freund", _M, "Freunde", _OWN_PERSON, genitive="Freundes"),
    Noun("neighbour", "Nachbar", _M, "Nachbarn", _OWN_PERSON, oblique="Nachbarn"),
    Noun("colleague", "Kollege", _M, "Kollegen", _OWN_PERSON, oblique="Kollegen"),
    Noun("student", "Student", _M, "Studenten", _OWN_PERSON, oblique="Studenten"),
    Noun("pupil", "Schüler", _M, "Schüler", _YOUNG),
    Noun("doctor", "Arzt", _M, "Ärzte", _OWN_PERSON, genitive="Arztes"),
    Noun("nurse", "Krankenschwester", _F, "Krankenschwestern", _PERSON),
    Noun("cook", "Koch", _M, "Köche", _OWN_PERSON),
    Noun("baker", "Bäcker", _M, "Bäcker", _PERSON),
    Noun("gardener", "Gärtner", _M, "Gärtner", _OWN_PERSON),
    Noun("farmer", "Bauer", _M, "Bauern", _PERSON, oblique="Bauern"),
    Noun("king", "König", _M, "Könige", _PERSON),
    Noun("queen", "Königin", _F, "Königinnen", _PERSON),
    Noun("prince", "Prinz", _M, "Prinzen", _PERSON, oblique="Prinzen"),
    Noun("princess", "Prinzessin", _F, "Prinzessinnen", _PERSON),
    Noun("painter", "Maler", _M, "Maler", _PERSON),
    Noun("actress", "Schauspielerin", _F, "Schauspielerinnen", _PERSON),
    Noun("waitress", "Kellnerin", _F, "Kellnerinnen", _PERSON),
    Noun("musician", "Musiker", _M, "Musiker", _PERSON),
    Noun("judge", "Richter", _M, "Richter", _PERSON),
    Noun("guest", "Gast", _M, "Gäste", _OWN_PERSON, genitive="Gastes"),
    Noun("writer", "Schriftsteller", _M, "Schriftsteller", _PERSON),
    Noun("customer", "Kunde", _M, "Kunden", _OWN_PERSON, oblique="Kunden"),
    Noun("tourist", "Tourist", _M, "Touristen", _PERSON, oblique="Touristen"),
    Noun("policeman", "Polizist", _M, "Polizisten", _PERSON, "policemen", oblique="Polizisten"),
    Noun("witch", "Hexe", _F, "Hexen", _PERSON),
    Noun("giant", "Riese", _M, "Riesen", _PERSON, oblique="Riesen"),
    Noun("captain", "Kapitän", _M, "Kapitäne", _PERSON),
    Noun("lawyer", "Anwalt", _M, "Anwälte", _OWN_PERSON),
    Noun("scientist", "Wissenschaftler", _M, "Wissenschaftler", _PERSON),
)

ANIMALS = (
    Noun("dog", "Hund", _M, "Hunde", _ANIMAL),
    Noun("cat", "Katze", _F, "Katzen", _ANIMAL),
    Noun("horse", "Pferd", _N, "Pferde", _ANIMAL),
    Noun("cow", "Kuh", _F, "Kühe", _ANIMAL),
    Noun("bird", "Vogel", _M, "Vögel", _ANIMAL),
    Noun("bear", "Bär", _M, "Bären", _WILD, oblique="Bären"),
    Noun("lion", "Löwe", _M, "Löwen", _WILD, oblique="Löwen"),
    Noun("elephant", "Elefant", _M, "Elefanten", _WILD, oblique="Elefanten"),
    Noun("monkey", "Affe", _M, "Affen", _WILD, oblique="Affen"),
    Noun("rabbit", "Kaninchen", _N, "Kaninchen", _ANIMAL),
    Noun("fox", "Fuchs", _M, "Füchse", _WILD),
    Noun("wolf", "Wolf", _M, "Wölfe", _WILD, "wolves"),
    Noun("mouse", "Maus", _F, "Mäuse", _ANIMAL, "mice"),
    Noun("goat", "Ziege", _F, "Ziegen", _ANIMAL),
    Noun("duck", "Ente", _F, "Enten", _ANIMAL),
    Noun("pig", "Schwein", _N, "Schweine", _ANIMAL),
    Noun("frog", "Frosch", _M, "Frösche", _ANIMAL),
    Noun("donkey", "Esel", _M, "Esel", _ANIMAL),
    Noun("goose", "Gans", _F, "Gänse", _ANIMAL, "geese"),
    Noun("tiger", "Tiger", _M, "Tiger", _WILD),
)

THINGS = (
    Noun("book", "Buch", _N, "Bücher", _WRITING | Kind.FLAT),
    Noun("letter", "Brief", _M, "Briefe", _WRITING | Kind.FLAT),
    Noun("newspaper", "Zeitung", _F, "Zeitungen", _TEXT),
    Noun("poem", "Gedicht", _N, "Gedichte", _WRITING),
    Noun("story", "Geschichte", _F, "Geschichten", _WRITING | Kind.TALE),
    Noun("fairy tale", "Märchen", _N, "Märchen", _WRITING | Kind.TALE),
    Noun("report", "Bericht", _M, "Berichte", _WRITING | Kind.FLAT),
    Noun("novel", "Roman", _M, "Romane", _WRITING | Kind.FLAT),
    Noun("article", "Artikel", _M, "Artikel", _WRITING),
    Noun("ball", "Ball", _M, "Bälle", _TOY),
    Noun("doll", "Puppe", _F, "Puppen", _TOY),
    Noun("key", "Schlüssel", _M, "Schlüssel", _FLAT),
    Noun("knife", "Messer", _N, "Messer", _FLAT, "knives"),
    Noun("map", "Landkarte", _F, "Landkarten", _FLAT),
    Noun("spoon", "Löffel", _M, "Löffel", _FLAT),
    Noun("pen", "Stift", _M, "Stifte", _FLAT),
    Noun("coin", "Münze", _F, "Münzen", _FLAT),
    Noun("ring", "Ring", _M, "Ringe", _FLAT),
    Noun("cup", "Tasse", _F, "Tassen", _UPRIGHT),
    Noun("lamp", "Lampe", _F, "Lampen", _UPRIGHT | Kind.MACHINE),
    Noun("vase", "Vase", _F, "Vasen", _UPRIGHT),
    Noun("bottle", "Flasche", _F, "Flaschen", _UPRIGHT | Kind.OPENABLE),
    Noun("glass", "Glas", _N, "Gläser", _UPRIGHT),
    Noun("basket", "Korb", _M, "Körbe", _UPRIGHT),
    Noun("suitcase", "Koffer", _M, "Koffer", _UPRIGHT | Kind.OPENABLE),
    Noun("bag", "Tasche", _F, "Taschen", _UPRIGHT | Kind.OPENABLE),
    Noun("box", "Kiste", _F, "Kisten", _UPRIGHT | Kind.OPENABLE),
    Noun("camera", "Kamera", _F, "Kameras", _THING | Kind.MACHINE),
    Noun("clock", "Uhr", _F, "Uhren", _THING | Kind.MACHINE),
    Noun("umbrella", "Regenschirm", _M, "Regenschirme", _THING),
    Noun("gift", "Geschenk", _N, "Geschenke", _THING),
    Noun("flower", "Blume", _F, "Blumen", _THING),
    Noun("picture", "Bild", _N, "Bilder", _THING),
    Noun("coat", "Mantel", _M, "Mäntel", _CLOTHES),
    Noun("hat", "Hut", _M, "Hüte", _CLOTHES),
    Noun("shirt", "Hemd", _N, "Hemden", _CLOTHES),
    Noun("dress", "Kleid", _N, "Kleider", _CLOTHES),
    Noun("jacket", "Jacke", _F, "Jacken", _CLOTHES),
    Noun("scarf", "Schal", _M, "Schals", _CLOTHES, "scarves"),
    Noun("car", "Auto", _N, "Autos", _VEHICLE),
    Noun("bicycle", "Fahrrad", _N, "Fahrräder", _VEHICLE),
    Noun("boat", "Boot", _N, "Boote", _VEHICLE),
    Noun("bus", "Bus", _M, "Busse", _TRANSPORT),
    Noun("train", "Zug", _M, "Züge", _TRANSPORT),
    Noun("tram", "Straßenbahn", _F, "Straßenbahnen", _TRANSPORT),
    Noun("ship", "Schiff", _N, "Schiffe", _TRANSPORT),
    Noun("door", "Tür", _F, "Türen", Kind.OPENABLE),
    Noun("window", "Fenster", _N, "Fenster", Kind.OPENABLE),
)

FURNITURE = (
    Noun("table", "Tisch", _M, "Tische", _FURNITURE),
    Noun("bed", "Bett", _N, "Betten", _FURNITURE),
    Noun("bench", "Bank", _F, "Bänke", _FURNITURE),
    Noun("chair", "Stuhl", _M, "Stühle", _FURNITURE),
    Noun("sofa", "Sofa", _N, "Sofas", _FURNITURE),
    Noun("desk", "Schreibtisch", _M, "Schreibtische", _FURNITURE),
)

FOODS = (
    Noun("apple", "Apfel", _M, "Äpfel", _FOOD),
    Noun("cake", "Kuchen", _M, "Kuchen", _FOOD),
    Noun("egg", "Ei", _N, "Eier", _DISH),
    Noun("pear", "Birne", _F, "Birnen", _FOOD),
    Noun("potato", "Kartoffel", _F, "Kartoffeln", _DISH),
    Noun("tomato", "Tomate", _F, "Tomaten", _FOOD),
    Noun("cherry", "Kirsche", _F, "Kirschen", _FOOD),
    Noun("banana", "Banane", _F, "Bananen", _FOOD),
    Noun("carrot", "Karotte", _F, "Karotten", _DISH),
    Noun("bread", "Brot", _N, "", _FOOD),
    Noun("cheese", "Käse", _M, "", _FOOD),
    Noun("soup", "Suppe", _F, "", _DISH),
    Noun("honey", "Honig", _M, "", _FOOD),
    Noun("rice", "Reis", _M, "", _DISH),
    Noun("fruit", "Obst", _N, "", _FOOD),
    Noun("milk", "Milch", _F, "", _DRINK),
    Noun("water", "Wasser", _N, "", _DRINK),
    Noun("coffee", "Kaffee", _M, "", _DRINK),
    Noun("tea", "Tee", _M, "", _DRINK),
    Noun("juice", "Saft", _M, "", _DRINK),
    Noun("wine", "Wein", _M, "", _DRINK),
    Noun("lemonade", "Limonade", _F, "", _DRINK),
)

EVENTS = (
    Noun("concert", "Konzert", _N, "Konzerte", _EVENT),
    Noun("course", "Kurs", _M, "Kurse", _EVENT),
    Noun("game", "Spiel", _N, "Spiele", _EVENT),
    Noun("festival", "Fest", _N, "Feste", _EVENT),
    Noun("meeting", "Besprechung", _F, "Besprechungen", _EVENT),
    Noun("competition", "Wettbewerb", _M, "Wettbewerbe", _EVENT),
    Noun("trip", "Ausflug", _M, "Ausflüge", _EVENT),
)

PLACES = (
    Noun("garden", "Garten", _M, "Gärten", _PLACE | Kind.OWN, at=_IN, to=_INTO),
    Noun("forest", "Wald", _M, "Wälder", _PLACE, at=_IN, to=_INTO),
    Noun("park", "Park", _M, "Parks", _PLACE, at=_IN, to=_INTO),
    Noun("house", "Haus", _N, "Häuser", _BUILDING | Kind.HOME | Kind.OWN, at=_IN, to=_INTO),
    Noun("kitchen", "Küche", _F, "Küchen", _ROOM, at=_IN, to=_INTO),
    Noun("bedroom", "Schlafzimmer", _N, "Schlafzimmer", _ROOM, at=_IN, to=_INTO),
    Noun("cellar", "Keller", _M, "Keller", _ROOM, at=_IN, to=_INTO),
    Noun("office", "Büro", _N, "Büros", _ROOM, at=_IN, to=_INTO),
    Noun("library", "Bibliothek", _F, "Bibliotheken", _BUILDING | Kind.OWN, at=_IN, to=_TO),
    Noun("church", "Kirche", _F, "Kirchen", _BUILDING, at=_IN, to=_INTO),
    Noun("museum", "Museum", _N, "Museen", _BUILDING, at=_IN, to=_TO),
    Noun("restaurant", "Restaurant", _N, "Restaurants", _BUILDING | Kind.OWN, at=_IN, to=_TO),
    Noun("hotel", "Hotel", _N, "Hotels", _BUILDING | Kind.HOME | Kind.OWN, at=_IN, to=_TO),
    Noun("castle", "Schloss", _N, "Schlösser", _BUILDING | Kind.HOME | Kind.OWN, at=_IN, to=_INTO),
    Noun("station", "Bahnhof", _M, "Bahnhöfe", _TOWN, at=_AT_SIDE, to=_TOWARDS),
    Noun("market", "Markt", _M, "Märkte", _PLACE, at=_AT_OPEN, to=_TO_OPEN),
    Noun("beach", "Strand", _M, "Strände", _TOWN, at=_AT_SIDE, to=_TO_SIDE),
    Noun("lake", "See", _M, "Seen", _TOWN | Kind.HOME, at=_AT_SIDE, to=_TO_SIDE),
    Noun("river", "Fluss", _M, "Flüsse", _PLACE, at=_AT_SIDE, to=_TO_SIDE),
    Noun("bridge", "Brücke", _F, "Brücken", _PLACE, at=_ON, to=_ONTO),
    Noun("city", "Stadt", _F, "Städte", _TOWN | Kind.HOME, "cities", at=_IN, to=_TO),
    Noun("village", "Dorf", _N, "Dörfer", _TOWN | Kind.HOME, at=_IN, to=_TO),
)

NOUNS = PEOPLE + ANIMALS + THINGS + FURNITURE + FOODS + EVENTS + PLACES
