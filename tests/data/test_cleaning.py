"""Cleaning: each filter, and the order in which they count."""

import pytest

from transformer_jax.config import CleaningConfig
from transformer_jax.data.cleaning import Rejections, clean, require_readable
from transformer_jax.data.corpora.corpus import Chunk
from transformer_jax.errors import BadInput


def cleaned(pairs, **options) -> tuple[list[int], dict]:
    chunk = Chunk(pairs, "text", 1)
    rejections = Rejections()
    return clean(chunk, CleaningConfig(**options), rejections), rejections.to_json()


def test_the_default_filters_are_mild():
    pairs = [("a", "b"), ("", "b"), ("a", " \t"), ("a", "x" * 10_001), ("same", "same"), ("a", "b"), ("a", "b" * 99)]
    kept, rejected = cleaned(pairs)
    assert kept == [0, 4, 5, 6]
    assert rejected == {
        "empty": {"pairs": 2, "first": ["text:2", "text:3"]},
        "too long": {"pairs": 1, "first": ["text:4"]},
    }


@pytest.mark.parametrize(
    ("options", "pair", "reason"),
    [
        ({"max_characters": 3}, ("abcd", "a"), "too long"),
        ({"max_ratio": 2.0}, ("abcde", "ab"), "length ratio"),
        ({"drop_copies": True}, ("same", "same"), "copy of the source"),
    ],
)
def test_each_filter(options, pair, reason):
    assert cleaned([pair], **options) == ([], {reason: {"pairs": 1, "first": ["text:1"]}})
    assert cleaned([pair], max_characters=None) == ([0], {})


def test_every_filter_can_be_off():
    assert cleaned([("", "x" * 20_000)], drop_empty=False, max_characters=None) == ([0], {})


def test_only_the_first_few_examples_are_kept():
    _, rejected = cleaned([("", "")] * 1000)
    assert rejected["empty"] == {"pairs": 1000, "first": [f"text:{i}" for i in range(1, 6)]}


def test_unreadable_pairs_are_named_in_order():
    faults = {number: f"train.en:{number + 1}: bad" for number in range(9, 1, -1)}
    with pytest.raises(BadInput) as refused:
        require_readable(Chunk([("", "")] * 10, "train.en", 1, faults))
    assert str(refused.value).split("\n  ")[1:] == [faults[number] for number in range(2, 7)]
    with pytest.raises(BadInput, match=r"^train\.en:3: bad$"):
        require_readable(Chunk([("", "")] * 3, "train.en", 1, {2: "train.en:3: bad"}))
    require_readable(Chunk([("a", "b")], "train.en", 1))
