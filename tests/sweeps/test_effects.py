"""A whole experiment with real training: nothing is found where nothing differs, and a planted effect is found."""

import json

import pytest

from tests.support.devices import one_device
from tests.support.sweep_runs import experiment_file
from tests.sweeps.conftest import work
from transformer_jax import cli
from transformer_jax.sweeps import resolved
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.launch import grouped


@pytest.mark.drill
def test_an_a_a_sweep_finds_nothing_and_a_planted_effect_is_found(tmp_path, monkeypatch):
    """`again` has other random numbers, and nothing else; `slow` can hardly learn."""
    monkeypatch.chdir(tmp_path)
    path = experiment_file(
        tmp_path,
        "Variant('again', same_as='base')",
        "Variant('slow', {'optimizer.learning_rate': 1e-5})",
        seeds=5,
        vary=["initialization"],
    )
    steps = [("train.steps", "60"), ("train.eval_every", "60"), ("train.checkpoint_every", "60")]
    folder = SweepFolder("sweep")
    folder.save(resolved.load(path.name, overrides=[*steps, ("data.task.test_size", "50")]))
    definition = folder.load()
    with one_device():
        for group in grouped(folder.runs(definition), 0):
            assert work(folder, definition, *(run.run_id for run in group)) == 0
    assert cli.main(["report", "sweep"]) == 0
    (test,) = json.loads(next(folder.path.rglob("report.json")).read_text())["tests"]
    again, slow = test["perplexity_controls"]["again"], test["perplexity_differences"]["slow"]
    assert again["corrected_p"] > 0.05 and not again["resolved"], again
    assert slow["corrected_p"] < 0.05 and slow["resolved"] and slow["value"] > 0, slow
