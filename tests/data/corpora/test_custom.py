"""Custom corpora: read in chunks, with places and faults; wrong functions are refused."""

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


def test_text_that_cannot_be_stored_is_a_fault(tmp_path):
    found = corpus(tmp_path, r"def pairs(split): return [('a', 'b'), ('a\0', 'b'), ('a', '\ud800')]")
    (chunk,) = found.chunks("train", 10)
    assert chunk.pairs == [("a", "b"), ("", ""), ("", "")]
    assert [chunk.faults[index].partition("train:")[2] for index in (1, 2)] == [
        "2: the source has a NUL character at 2",
        "3: the target is not Unicode text: lone surrogate at 1",
    ]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("3", "returned int; an iterable of pairs is expected"),
        ("[]", "yields no pair for the split train"),
        ("['ab']", "pair 1 of train is 'ab'; .* two strings, is expected"),
        ("[('a', 3)]", r"pair 1 of train is \('a', 3\)"),
        ("[('a', 'b', {'kind': 3})]", r"pair 1 of train is \('a', 'b', {'kind': 3}\)"),
        ("[('a', 'b', {'kind': 'c'})]", "pair 1 of train has labels; only validation and test pairs have"),
    ],
)
def test_wrong_results_are_refused(tmp_path, returned, message):
    with pytest.raises(BadInput, match=message):
        corpus(tmp_path, f"def pairs(split): return {returned}")
