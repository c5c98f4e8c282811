"""Groups of sentences, and their shapes."""

import numpy as np
import pytest

from transformer_jax.translation.shapes import groups, rounded_up


@pytest.mark.parametrize("targets", [None, np.random.default_rng(1).integers(1, 400, 997).tolist()], ids=["", "known"])
def test_groups_hold_every_sentence_once_in_few_shapes(targets):
    lengths = np.random.default_rng(0).integers(1, 100, 997).tolist()
    options = {
        "extra_length": 50,
        "min_length": 0,
        "longest_source": None,
        "longest_target": None,
        "tokens": 4096,
        "devices": 8,
    }
    found = list(groups(lengths, **options, targets=targets))
    assert sorted(np.concatenate([group.members for group in found])) == list(range(997))
    for group in found:
        assert group.rows % 8 == 0
        assert max(lengths[member] for member in group.members) <= group.source
        assert group.rows * group.target <= 4096
        assert targets is None or max(targets[member] for member in group.members) <= group.target
    assert len({group[1:] for group in found}) <= 12
    assert sum(group.rows for group in found) < 997 + found[-1].rows
    assert [rounded_up(length) for length in (1, 8, 9, 13, 17, 25, 33)] == [8, 8, 12, 16, 24, 32, 48]


@pytest.mark.parametrize("targets", [None, [3, 100, 40]], ids=["", "known"])
def test_no_group_is_longer_than_the_positions(targets):
    options = {"extra_length": 50, "min_length": 0, "longest_source": 100, "longest_target": 90}
    found = list(groups([3, 100, 97], **options, tokens=4096, devices=1, targets=targets))
    assert max(group.source for group in found) == 100
    assert max(group.target for group in found) == 90
