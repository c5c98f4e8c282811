"""Each filter leaves out what it should, counted, with the first places; pairs are held out by their content."""

import pytest

from transformer_jax.config import CleaningConfig
from transformer_jax.data.cleaning import HeldOut, clean
from transformer_jax.data.corpora.corpus import Chunk

PAIRS = [(f"source {i}", f"target {i}") for i in range(50)]


def cleaned(pairs, **options) -> tuple[list, dict]:
    rejected: dict = {}
    return clean(Chunk(pairs, "text", 1), CleaningConfig(**options), rejected, set()), rejected


@pytest.mark.parametrize(
    ("options", "pair", "reason"),
    [
        ({}, ("a", " \t"), "empty"),
        ({"max_characters": 3}, ("abcd", "a"), "too long"),
        ({"max_ratio": 2.0}, ("abcde", "ab"), "length ratio"),
        ({"drop_copies": True}, ("same", "same"), "copy of the source"),
    ],
)
def test_each_filter(options, pair, reason):
    first = [f"text:{i}" for i in range(1, 6)]
    assert cleaned([pair] * 9, **options) == ([], {reason: {"pairs": 9, "first": first}})
    assert cleaned([pair], drop_empty=False, max_characters=None) == ([pair], {})


def test_what_is_held_out_depends_on_the_pairs_alone():
    best, held_out = HeldOut(seed=3, capacity=1), {}
    best.offer(PAIRS)
    excluded = best.take(1)  # which would be the first
    for order, size in ((PAIRS, 7), (PAIRS[::-1], 50)):
        chosen = HeldOut(seed=3, capacity=6, excluded=excluded)
        for begin in range(0, len(order), size):
            chosen.offer(order[begin : begin + size])
        held_out[size] = chosen.take(4), chosen.take(9)
    first, second = held_out[7]
    assert held_out[50] == (first, second) and (len(first), len(second)) == (4, 2)
    assert excluded[0] not in {*first, *second}
