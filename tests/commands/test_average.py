"""average: which checkpoints are chosen."""

import types

import pytest

from transformer_jax import cli
from transformer_jax.runs import export


@pytest.mark.parametrize(
    ("flag", "steps"), [("--last=2", [8, 9]), ("--best=1", [8]), ("--steps=9000,8000", [8000, 9000])]
)
def test_the_chosen_checkpoints(flag, steps, monkeypatch, tmp_path):
    averaged = []

    def average(steps):
        averaged.append(steps)
        return types.SimpleNamespace(steps=steps)

    weights = types.SimpleNamespace(
        last_steps=lambda count: [7, 8, 9][-count:],
        best_steps=lambda count: [8, 7, 9][:count],
        average=average,
        chosen=lambda choose: average(choose()),
    )
    monkeypatch.setattr(export, "SavedWeights", lambda folder: weights)
    monkeypatch.setattr(export, "write_export", lambda *_, **__: None)
    assert cli.main(["average", f"--workdir={tmp_path}", flag]) == 0
    assert averaged == [steps]
