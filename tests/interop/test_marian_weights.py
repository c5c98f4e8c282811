"""Arrays that do not fit the config of their folder are refused by name."""

import numpy as np
import pytest

from tests.support.marian_folders import ONE, arrays_with, give, refused

DAMAGES = {
    "a missing weight": (arrays_with(lambda a: a.pop(ONE)), f"has no {ONE}, which config.json needs ([24, 16])"),
    "a missing table": (arrays_with(lambda a: a.pop("model.shared.weight")), "has no model.shared.weight"),
    "a wrong shape": (
        arrays_with(lambda a: give(a, ONE, a[ONE][:, :8].copy())),
        f"{ONE} is [24, 8], but [24, 16] in config.json",
    ),
    "an extra weight": (
        arrays_with(lambda a: give(a, "model.encoder.layers.9.fc1.weight", a[ONE])),
        "model.encoder.layers.9.fc1.weight is an unknown array for this config.json",
    ),
    "two tables that should be one": (
        arrays_with(lambda a: give(a, "lm_head.weight", a["model.shared.weight"] + 1)),
        "model.shared.weight and lm_head.weight differ",
    ),
    "numbers that are none": (arrays_with(lambda a: a[ONE].fill(np.nan)), f"{ONE} has non-finite numbers"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_arrays_that_do_not_fit_the_config_are_refused(damage, tmp_path):
    spoil, message = DAMAGES[damage]
    refused(spoil, message, tmp_path)
