"""WMT 2014 in small: TFDS's `wmt14_translate`, built from files laid out as its archives unpack.

TFDS's code for the data set reads them (its parsers, its keys, its splits); only its downloading is replaced. The text
is the embedded grammar's, with the kinds of defect that crawled text has. The grammar's German stands in for French.
"""

import gzip
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from transformer_jax.grammar import CorpusSection, sentence_pairs

VALID_PAIRS, TEST_PAIRS = 3000, 3003
Pairs = list[tuple[str, str]]  # (English, the other language)


class Miniature(NamedTuple):
    data_dir: Path  # what TFDS_DATA_DIR is to be
    train: Pairs  # with the defects, but without the pairs that TFDS itself leaves out
    test: Pairs  # in the order of the test set's files, which is not TFDS's


# Each occurs this many times in the crawled part. TFDS leaves out the pairs with an empty side.
DEFECTS: dict[str, tuple[int, tuple[str, str]]] = {
    "nothing on one side": (40, ("", "ein Satz ohne Quelle .")),
    "blank on one side": (30, (" \t ", "noch ein Satz ohne Quelle .")),
    "more characters than are taken": (5, ("the cat sees the dog . " * 600, "die Katze sieht den Hund . " * 600)),
    "more tokens than are taken": (10, ("the old man sees the dog . " * 60, "der alte Mann sieht den Hund . " * 60)),
    "copied": (100, ("Copyright 2014 All rights reserved", "Copyright 2014 All rights reserved")),
    "unbalanced": (50, ("no .", "die Frau , die den Hund sieht , liest das Buch . " * 6)),
    "odd characters": (
        50,
        ("caf\u00e9\u00a0\u2028 &amp; \u201cna\u00efve\u201d\u00ad \U0001f600 .\r", "\uff21\u200b\ufb01 .\r"),
    ),
}


def make(directory: Path, language: str, train_pairs: int) -> Miniature:
    """Both the unpacked archives and the data set in array_record, below `directory`."""
    usual, long = (
        sentence_pairs(section, f"miniature {section.name}") for section in (CorpusSection.COMMON, CorpusSection.LONG)
    )
    fresh = itertools.chain.from_iterable((*itertools.islice(usual, 39), next(long)) for _ in itertools.count())
    test = [_odd(pair, index) for index, pair in enumerate(itertools.islice(fresh, TEST_PAIRS))]
    valid = list(itertools.islice(fresh, VALID_PAIRS))
    known = set(test) | set(valid)
    train = list(itertools.islice((pair for pair in fresh if pair not in known), train_pairs))
    parts = [train[part::3] for part in range(3)]
    for count, defect in DEFECTS.values():
        step = len(parts[1]) // count
        for place in range(count):
            parts[1].insert(place * step, defect)
    archives = directory / "archives"
    _write_training(archives, language, parts)
    _write_lines(archives / "dev/newstest2013", language, valid)
    _write_test(archives / "dev", language, test)
    _build(directory / "tfds", archives, language)
    return Miniature(directory / "tfds", [pair for part in parts for pair in part if all(pair)], test)


def _odd(pair: tuple[str, str], index: int) -> tuple[str, str]:
    """Test sentences have their defects too: one far longer than the model takes, one the same on both sides."""
    if index == 1500:
        return " ".join([pair[0]] * 40), " ".join([pair[1]] * 40)
    return ("Reuters", "Reuters") if index == 2000 else pair


def _write_training(archives: Path, language: str, parts: list[Pairs]) -> None:
    _write_lines(archives / f"training/europarl-v7.{language}-en", language, parts[0])
    _write_lines(archives / f"commoncrawl.{language}-en", language, parts[1])
    _write_lines(archives / f"training/news-commentary-v9.{language}-en", language, parts[2])
    if language == "fr":
        _write_lines(archives / "un/undoc.2000.fr-en", language, parts[0][:100])
        for side, name in enumerate(("en", "fr")):
            content = "\n".join(pair[side] for pair in parts[2][:100])
            (archives / f"giga-fren.release2.fixed.{name}.gz").write_bytes(gzip.compress(content.encode()))


def _write_lines(stem: Path, language: str, pairs: Pairs) -> None:
    stem.parent.mkdir(parents=True, exist_ok=True)
    for side, name in enumerate(("en", language)):
        Path(f"{stem}.{name}").write_bytes("\n".join(pair[side] for pair in pairs).encode())


def _write_test(directory: Path, language: str, pairs: Pairs) -> None:
    for side, name, role in ((1, language, "src"), (0, "en", "ref")):
        lines = (f'<seg id="{number}">{pair[side]}</seg>\n' for number, pair in enumerate(pairs, 1))
        path = directory / f"newstest2014-{language}en-{role}.{name}.sgm"
        path.write_text(f'<{role}set setid="newstest2014">\n<doc>\n{"".join(lines)}</doc>\n</{role}set>\n')


def _build(data_dir: Path, archives: Path, language: str) -> None:
    """tfds build wmt14_translate/LANGUAGE-en --file_format=array_record, of archives that are already unpacked."""
    import tensorflow_datasets as tfds
    import tensorflow_datasets.translate  # registers it

    builder = tfds.builder(f"wmt14_translate/{language}-en", data_dir=data_dir, file_format="array_record")
    builder._make_download_manager = lambda **_: _Unpacked(archives)
    builder.download_and_prepare()


class _Unpacked(SimpleNamespace):
    """TFDS's download manager, for which every archive is already there, all in one place."""

    def __init__(self, archives: Path):
        super().__init__(manual_dir=archives, download_dir=archives, downloaded_size=0, register_checksums=False)
        self._archives = archives

    def download_and_extract(self, wanted):
        if isinstance(wanted, dict):
            return {name: self.download_and_extract(one) for name, one in wanted.items()}
        return [str(self._archives) for _ in wanted] if isinstance(wanted, (list, tuple)) else str(self._archives)

    def extract(self, wanted):
        return self.download_and_extract(wanted)

    def _record_sizes_checksums(self):
        pass
