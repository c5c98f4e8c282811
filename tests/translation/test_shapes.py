"""Groups of sentences, and their shapes."""

import numpy as np

from transformer_jax.translation.shapes import groups, rounded_up


def test_groups_hold_every_sentence_once_in_few_shapes():
    lengths = np.random.default_rng(0).integers(1, 100, 997).tolist()
    found = list(groups(lengths, extra_length=50, min_length=0, longest_target=None, tokens=4096, devices=8))
    assert sorted(np.concatenate([group.members for group in found])) == list(range(997))
    for group in found:
        assert group.rows % 8 == 0
        assert max(lengths[member] for member in group.members) <= group.source
        assert group.rows * group.target <= 4096
    assert len({group[1:] for group in found}) <= 12
    assert sum(group.rows for group in found) < 997 + found[-1].rows
    assert [rounded_up(length) for length in (1, 8, 9, 13, 17, 25, 33)] == [8, 8, 12, 16, 24, 32, 48]
