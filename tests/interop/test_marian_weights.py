"""Weights that are damaged, or do not fit the config of their folder, are refused; no pickle is opened."""

import pickle

import numpy as np
import pytest

from tests.support.marian_folders import ONE, WEIGHTS, Ran, arrays_with, bytes_with, give, refused

OTHER = "model.encoder.layers.9.fc1.weight"


NOT_VALID = "is not a valid safetensors file"
DAMAGES = {
    "a missing weight": (arrays_with(lambda a: a.pop(ONE)), f"{ONE} is missing"),
    "a missing table": (arrays_with(lambda a: a.pop("model.shared.weight")), "model.shared.weight is missing"),
    "a wrong shape": (
        arrays_with(lambda a: give(a, ONE, a[ONE][:, :8].copy())),
        f"{ONE} is float32[24, 8]; must be [24, 16]",
    ),
    "an extra weight": (arrays_with(lambda a: give(a, OTHER, a[ONE])), OTHER),
    "two tables that should be one": (
        arrays_with(lambda a: give(a, "lm_head.weight", a["model.shared.weight"] + 1)),
        "model.shared.weight and lm_head.weight differ",
    ),
    "numbers that are none": (arrays_with(lambda a: a[ONE].fill(np.nan)), f"{ONE} has non-finite numbers"),
    "another type": (arrays_with(lambda a: give(a, ONE, a[ONE].astype(np.int8))), f"{ONE} is int8[24, 16]"),
    "a pickle": (bytes_with(WEIGHTS, lambda content: pickle.dumps(Ran())), NOT_VALID),
    "a truncated file": (bytes_with(WEIGHTS, lambda content: content[:-100]), NOT_VALID),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_weights_that_cannot_be_right_are_refused(damage, tmp_path):
    spoil, message = DAMAGES[damage]
    refused(spoil, message, tmp_path)


def test_a_pickle_of_the_test_would_have_been_noticed():
    """The trap works: whoever opens it sets the mark."""
    pickle.loads(pickle.dumps(Ran()))
    try:
        assert Ran.ever
    finally:
        Ran.ever = False
