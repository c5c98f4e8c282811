"""Packed rows hold every pair once and are well filled."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.data.packing import pack


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=200),
    st.integers(30, 100),
    st.integers(20, 100),
)
def test_every_pair_has_one_row_and_no_row_is_overfull_or_empty(lengths, source_width, target_width):
    source, target = np.array(lengths).T
    packs = pack(source, target, source_width, target_width)
    assert sorted(packs.members.tolist()) == list(range(len(lengths)))
    assert packs.starts[0] == 0 and packs.starts[-1] == len(lengths)
    for begin, end in itertools.pairwise(packs.starts):
        assert begin < end
        row = packs.members[begin:end]
        assert source[row].sum() <= source_width and target[row].sum() <= target_width


def test_rows_are_filled_to_97_percent_when_lengths_vary_like_a_news_corpus():
    random = np.random.default_rng(0)
    source = np.exp(random.normal(3.2, 0.55, 20_000))
    target = np.clip(np.rint(source * np.exp(random.normal(0, 0.2, 20_000))), 2, 250).astype(int)
    source = np.clip(np.rint(source), 2, 250).astype(int)
    rows = len(pack(source, target, 250, 250).starts) - 1
    assert max(source.sum(), target.sum()) / (rows * 250) >= 0.97


def test_sides_that_disagree_in_length_are_balanced():
    """Half the pairs are long on the source, half on the target: only rows with both kinds are full on both sides."""
    source, target = np.array([(20, 10), (10, 20)] * 500).T
    assert len(pack(source, target, 120, 120).starts) - 1 <= 1.05 * source.sum() / 120
