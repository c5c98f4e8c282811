"""Chunks and custom corpora: the place of each pair, unreadable ones, and wrong functions."""

import pytest

from transformer_jax.config import DataConfig
from transformer_jax.data.corpora import open_corpus
from transformer_jax.errors import BadInput


def corpus(tmp_path, code: str):
    path = tmp_path / "mine.py"
    path.write_text(code)
    return open_corpus(DataConfig(corpus=f"{path}:pairs"))


def test_pairs_come_in_chunks_with_their_places(tmp_path):
    found = corpus(
        tmp_path, "def pairs(split):\n    return None if split == 'test' else [('a', str(i)) for i in range(5)]\n"
    )
    assert found.splits == ("train", "valid")
    chunks = list(found.chunks("train", 3))
    assert [[target for _, target in chunk.pairs] for chunk in chunks] == [["0", "1", "2"], ["3", "4"]]
    assert chunks[1].place(1) == f"{tmp_path / 'mine.py'}:pairs/train:5"
    assert set(found.identity()) == {"function", "checksum of mine.py"}


def test_a_custom_corpus_names_more_test_sets(tmp_path):
    code = "def pairs(split): return [(split, 'b')] if split != 'valid' else None\n"
    usual, found = corpus(tmp_path, code), corpus(tmp_path, f"TESTS = ['long', 'long']\n{code}")
    assert found.splits == ("train", "test", "long") and usual.splits == ("train", "test")
    (chunk,) = found.chunks("long", 9)
    assert chunk.pairs == [("long", "b")]
    assert found.identity() != usual.identity()


@pytest.mark.parametrize(
    ("tests", "message"),
    [("['test']", "names 'test'"), ("['a/b']", "names 'a/b'"), ("['long']", "'long', for which it yields no pairs")],
)
def test_wrong_names_of_test_sets(tmp_path, tests, message):
    with pytest.raises(BadInput, match=message):
        corpus(tmp_path, f"TESTS = {tests}\ndef pairs(split): return [('a', 'b')] if split == 'train' else []\n")


def test_text_that_cannot_be_stored_is_a_fault(tmp_path):
    found = corpus(tmp_path, r"def pairs(split): return [('é▁\u2028', 'b'), ('a\0', 'b'), ('a', '\ud800')]")
    (chunk,) = found.chunks("train", 10)
    assert chunk.pairs == [("é▁\u2028", "b"), ("", ""), ("", "")]
    assert [chunk.faults[index].partition("train:")[2] for index in (1, 2)] == [
        "2: has a NUL character at 2",
        "3: is not Unicode text: lone surrogate at 1",
    ]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("3", "TypeError"),
        ("['ab']", "pair 1 of train is 'ab'"),
        ("[('a', 'b', {'kind': 3})]", "pair 1 of train"),
        ("[('a', 'b', {'kind': 'c'})]", "pair 1 of train"),  # only validation and test pairs have labels
    ],
)
def test_wrong_results_are_refused(tmp_path, returned, message):
    with pytest.raises(BadInput, match=message):
        list(corpus(tmp_path, f"def pairs(split): return {returned} * (split == 'train') or None").chunks("train", 9))


def test_an_exception_while_reading_names_the_file(tmp_path):
    found = corpus(tmp_path, "def pairs(split):\n    yield 'a', 'b'\n    1 / 0")
    with pytest.raises(BadInput, match=r"mine.py raised ZeroDivisionError"):
        list(found.chunks("train", 10))
