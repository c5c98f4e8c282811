"""Variants as a grid, and what differs between seeds: the initial parameters, the order of the data, the split."""

import pytest

from tests.support.sweep_runs import FOUR, defined
from transformer_jax.sweeps import grid
from transformer_jax.sweeps.definition import SOURCES
from transformer_jax.sweeps.folder import SweepFolder


def test_grid_has_every_combination():
    variants = grid({"model.num_heads": [1, 2], "model.d_k": [8, None]}, group="heads")
    names = [variant.name for variant in variants]
    assert names == [f"num_heads={heads} d_k={d_k}" for heads in (1, 2) for d_k in (8, None)]
    assert variants[1].changes == {"model.num_heads": 1, "model.d_k": None} and variants[1].group == "heads"
    assert grid({"model.max_length": [9], "data.max_length": [8]})[0].name == "model.max_length=9 data.max_length=8"


@pytest.mark.parametrize("vary", [None, *[[source] for source in SOURCES], [*SOURCES]])
def test_the_seeds_set_what_varies_and_nothing_else(vary, tmp_path):
    definition = defined(vary=vary, seeds=[0, 4], overrides=[("seed", "7"), ("data.task.seed", "3")])
    folder = SweepFolder(tmp_path)
    folder.save(definition)
    named = vary or ["initialization", "order"]
    wanted = {source: [0, 4] for source in named}
    for resolved in (definition, folder.load()):
        runs = [resolved.experiment("base", seed) for seed in (0, 4)]
        assert [run.seed for run in runs] == wanted.get("initialization", [7, 7])
        assert [run.data.order_seed for run in runs] == wanted.get("order", [None, None])
        assert [run.data.split_seed for run in runs] == wanted.get("split", [None, None])
        assert {run.data.task.seed for run in runs} == {3}
    places = {folder.data(run.experiment) for run in folder.runs(definition)}
    assert len(places) == (2 if "split" in named else 1)


def test_a_base_with_an_order_keeps_it_for_all_seeds(tmp_path):
    definition = defined(FOUR, seeds=2, overrides=[("data.order_seed", "9")])
    assert definition.vary == ("initialization",)
    assert {run.experiment.data.order_seed for run in SweepFolder(tmp_path).runs(definition)} == {9}
