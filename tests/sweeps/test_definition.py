"""Variants as a grid, and what differs between seeds: the initial parameters and the order of the data."""

import pytest

from tests.support.sweep_runs import BASE, FOUR, defined
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.sweeps import Variant, grid
from transformer_jax.sweeps.definition import SOURCES
from transformer_jax.sweeps.folder import SweepFolder


def test_grid_has_every_combination():
    variants = grid({"model.num_heads": [1, 2], "model.d_k": [8, None]}, group="heads")
    names = [variant.name for variant in variants]
    assert names == [f"num_heads={heads} d_k={d_k}" for heads in (1, 2) for d_k in (8, None)]
    assert variants[1].changes == {"model.num_heads": 1, "model.d_k": None} and variants[1].group == "heads"
    assert variants[1].levels == {"num_heads": "1", "d_k": "None"}
    assert [variant.levels for variant in grid({"model.num_heads": [1, 2]})] == [{}, {}]
    with pytest.raises(ConfigError, match="'num_heads=2' and 'num_heads=2' would have the same folder"):
        defined(*grid({"model.num_heads": [2, 2]}))
    assert grid({"model.max_length": [9], "data.max_length": [8]})[0].name == "model.max_length=9 data.max_length=8"


def test_a_grid_of_named_factors_is_a_design_that_begins_with_its_baseline():
    heads = {"two": {}, "four": {"model.num_heads": 4}}
    designed = grid({"heads": heads, "width": {"narrow": {}, "wide": {"model.d_ff": 64, "model.d_model": 32}}})
    assert [variant.name for variant in designed][1:] == [
        "heads=two width=wide",
        "heads=four width=narrow",
        "heads=four width=wide",
    ]
    assert designed[3].levels == {"heads": "four", "width": "wide"}
    assert designed[3].changes == {"model.num_heads": 4, "model.d_ff": 64, "model.d_model": 32}
    definition = defined(variants=designed)
    assert definition.sweep.baseline == "heads=two width=narrow"
    assert definition.chosen(["*=four *"]) == ["heads=four width=narrow", "heads=four width=wide"]
    with pytest.raises(BadInput, match="d_ff"):
        grid({"width": {"wide": {"model.d_ff": 64}}, "model.d_ff": [32, 64]})
    with pytest.raises(BadInput, match="'wide' must"):
        grid({"width": {"wide": 64}})
    assert grid({"heads": heads, "model.d_ff": [32]})[1].levels == {"heads": "four", "d_ff": "32"}


def test_a_control_repeats_a_variant_with_seeds_of_its_own(tmp_path):
    definition = defined(FOUR, Variant("again", same_as="h = 4"), seeds=2, tune=(1, 2))
    folder = SweepFolder(tmp_path)
    folder.save(definition)
    for resolved in (definition, folder.load()):
        assert resolved.experiments["again"] == resolved.experiments["h = 4"]
        assert resolved.variant("again").baseline == "h = 4"
        runs = folder.runs(resolved)
        seeds = {(run.experiment.seed, run.experiment.data.order_seed, run.variant == "again") for run in runs}
        assert len({seed for seed, *_ in seeds}) == 2 * len({run.seed for run in runs})
    assert [run.run_id for run in folder.runs(definition, ["again"])] == ["again/seed-0", "again/seed-1"]


@pytest.mark.parametrize("vary", [None, *[[source] for source in SOURCES], [*SOURCES]])
def test_the_seeds_set_what_varies_and_nothing_else(vary, tmp_path):
    base = {**BASE, "seed": 7}
    definition = defined(vary=vary, seeds=[0, 4], base=base, overrides=[("data.task.seed", "3")])
    folder = SweepFolder(tmp_path)
    folder.save(definition)
    wanted = {source: [0, 4] for source in vary or SOURCES}
    for resolved in (definition, folder.load()):
        runs = [resolved.experiment("base", seed) for seed in (0, 4)]
        assert [run.seed for run in runs] == wanted.get("initialization", [7, 7])
        assert [run.data.order_seed for run in runs] == wanted.get("order", [None, None])
        assert {run.data.task.seed for run in runs} == {3}
    assert len({folder.data(run.experiment) for run in folder.runs(definition)}) == 1


def test_a_base_with_an_order_keeps_it_for_all_seeds(tmp_path):
    definition = defined(FOUR, seeds=2, overrides=[("data.order_seed", "9")])
    assert definition.vary == ("initialization",)
    assert {run.experiment.data.order_seed for run in SweepFolder(tmp_path).runs(definition)} == {9}
