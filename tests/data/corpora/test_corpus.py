"""Chunks: the place of each pair, and unreadable ones."""

import pytest

from transformer_jax.data.corpora.corpus import Chunk, text_fault


def test_a_chunk_knows_where_its_pairs_come_from():
    assert Chunk([("a", "c"), ("b", "d")], "train.en", 20).place(1) == "train.en:21"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("é ▁ \u2028", None),
        ("a\0", "has a NUL character at 2"),
        ("\ud800", "is not Unicode text: lone surrogate at 1"),
    ],
)
def test_what_is_no_text(text, fault):
    assert text_fault(text) == fault
