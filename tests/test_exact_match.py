"""Exact match: counts by hand, and bootstrap intervals where they are known."""

import pytest

from transformer_jax import exact_match

PRIME = 13


def test_white_space_separates_words_and_nothing_else_is_forgiven():
    references = ["a b", "a b", "", "A b", "a b c", "é"]
    hypotheses = [" a  b ", "ab", " ", "a b", "a b", "e"]
    assert exact_match.matches(hypotheses, references) == [1, 0, 1, 0, 0, 0]


def test_accents_as_characters_of_their_own_are_the_same_text():
    """A tokenizer of letters and tags writes NFC, whatever the references are in."""
    composed, decomposed = "\u00e9t\u00e9 \ud55c", "e\u0301te\u0301 \u1112\u1161\u11ab"
    assert exact_match.matches([composed, decomposed, composed], [decomposed, composed, "ete"]) == [1, 1, 0]


def test_counts_by_group_by_hand():
    """A prime number of examples, a group of one, and a label that only some examples have."""
    right = [1, 0, 1, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0]
    groups = [{"kind": "long" if i % 2 else "short"} | ({"category": "alone"} if i == 3 else {}) for i in range(PRIME)]
    found = exact_match.counts(right, groups)
    assert (found["right"], found["total"], found["resampled"]) == (5, PRIME, "examples")
    numbers = {
        name: {value: (c["right"], c["total"]) for value, c in by.items()} for name, by in found["groups"].items()
    }
    assert numbers == {"kind": {"long": (2, 6), "short": (3, 7)}, "category": {"alone": (1, 1)}}
    assert found["groups"]["category"]["alone"]["low"] is None  # one example has no spread
    assert found["low"] < 500 / PRIME < found["high"]
    assert "groups" not in exact_match.counts(right)


@pytest.mark.parametrize(
    ("clusters", "strata", "ends"),
    [
        (None, None, (40, 60)),  # the 2.5 % and 97.5 % quantiles of a binomial distribution of 100, p = 0.5
        ([str(i % 10) for i in range(100)], None, (20, 80)),  # of 10, p = 0.5
        (None, [str(i % 2) for i in range(100)], (50, 50)),  # all of one stratum are right, all of the other wrong
        ([str(i % 4 // 2) for i in range(100)], [str(i % 2) for i in range(100)], (50, 50)),  # strata divide clusters
        (["one"] * 100, None, None),
        (["one"] * 100, [str(i % 2) for i in range(100)], None),  # nothing is resampled in a stratum of one unit
        (None, [str(i) for i in range(100)], None),
    ],
)
def test_intervals_over_examples_clusters_and_strata(clusters, strata, ends):
    assert exact_match.interval([i % 2 for i in range(100)], clusters, strata) == ends


def test_clusters_of_different_sizes_are_drawn_whole():
    """Of a cluster of 3 right ones and one of 1 wrong one: 100, 75 or 0 %."""
    assert exact_match.interval([1, 1, 1, 0], ["a", "a", "a", "b"]) == (0, 100)
    assert exact_match.interval([]) is None
