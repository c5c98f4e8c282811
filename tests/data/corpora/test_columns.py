"""Corpora in files of three columns: what is read, and what is refused, with the place."""

import pytest

from transformer_jax.config import DataConfig, TaskConfig
from transformer_jax.data.corpora import named_files, open_corpus
from transformer_jax.errors import BadInput
from transformer_jax.files.lines import CONVERT

FILES = ("train.tsv", "dev.tsv", "test.tsv", "gen.tsv")


@pytest.fixture
def cogs(tmp_path):
    for name in FILES:
        (tmp_path / name).write_text(f"A {name}\tlf ( x _ 1 )\tkind\n" * 3)
    return tmp_path


def opened(folder, corpus="cogs", **task):
    return open_corpus(DataConfig(corpus=corpus, corpus_folder=folder and str(folder), task=TaskConfig(**task)))


def test_files_are_identified_by_their_text_and_counted(cogs):
    corpus = opened(cogs)
    before = corpus.identity()
    assert [chunk.place(0) for chunk in corpus.chunks("train", 2)] == [f"{cogs / 'train.tsv'}:{n}" for n in (1, 3)]
    assert {source["file"] for source in corpus.sources()} == {str(cogs / name) for name in FILES}
    assert corpus.sources()[0]["lines"] == 3
    (cogs / "gen.tsv").write_text("A\tb\tc\n")
    assert [key for key, value in opened(cogs).identity().items() if before[key] != value] == ["checksum of test_gen"]
    assert named_files(DataConfig(corpus="cogs", corpus_folder=str(cogs))) == {str(cogs / name) for name in FILES}


def test_a_line_of_other_columns_is_a_fault_with_its_place(cogs):
    (cogs / "gen.tsv").write_bytes(b"A\tb\tc\nA\tb\n\xff\tb\tc\n")
    (chunk,) = opened(cogs).chunks("test_gen", 9)
    assert chunk.faults == {
        1: f"{cogs / 'gen.tsv'}:2: has 2 columns; expected three, separated by tabs: sentence, logical form, category",
        2: f"{cogs / 'gen.tsv'}:3: is not UTF-8: byte 0xff at 1 ({CONVERT})",
    }
    assert len(chunk.labels) == len(chunk.pairs) == 3


@pytest.mark.parametrize(
    ("corpus", "task", "message"),
    [
        ("cogs", None, "data.corpus_folder: names no folder; cogs is read from the files of one"),
        ("cogs", {}, r"test\.tsv: there is no such file"),
        ("inflection", None, "data.corpus_folder: names no folder; inflection is read"),
        ("inflection", {}, r"data.task.language = '': .* has no _large.train; it has: kor, tur"),
        ("inflection", {"language": "deu"}, "has no deu_large.train; it has: kor, tur"),
        ("inflection", {"language": "kor", "size": "small"}, r"has no kor_small.train; it has: no file \*_small.train"),
        ("inflection", {"language": "kor"}, r"kor\.dev: there is no such file"),
    ],
)
def test_missing_files_are_named(cogs, corpus, task, message):
    (cogs / "test.tsv").unlink()
    for language in ("kor", "tur"):
        (cogs / f"{language}_large.train").touch()
    with pytest.raises(BadInput, match=message):
        opened(None if task is None else cogs, corpus, **(task or {}))
