"""Programs compiled from shapes alone, and the figures of one; tests/accelerators compiles for accelerators."""

import json

import jax
import pytest

from tests.support.small_runs import experiment
from transformer_jax.data.batching import BatchStatistics
from transformer_jax.data.buckets import Shape
from transformer_jax.planning import compiled
from transformer_jax.planning.compiled import (
    _search,
    _step,
    compile_for,
    examine,
    in_words,
    memory,
    microseconds_per_token,
)
from transformer_jax.planning.target import CHIPS, Target
from transformer_jax.update.sharding import make_mesh

HERE = Target("8 CPUs", None, CHIPS["H100"], tuple(jax.devices()), {})


def test_the_figures_of_a_step():
    config = experiment(mesh__fsdp=2, model__dtype="bfloat16", train__accumulate=3, data__tokens_per_batch=64)
    found = examine(compile_for(config, HERE, "train"), HERE, config.model)
    assert (found["devices"], found["mesh"]) == (8, {"data": 4, "fsdp": 2, "tensor": 1})
    assert found["memory"]["state"] > 0 < found["memory"]["temporary"]
    assert found["flops"] > 0 < found["flops_ms"]
    axes = {collective["axes"] for collective in found["collectives"]}
    assert ("fsdp",) in axes and any("data" in names for names in axes)
    assert json.loads(json.dumps(found))["memory"] == found["memory"]
    text = in_words(found)
    assert "8 x NVIDIA H100 80GB HBM3, data 4 x fsdp 2 x tensor 1" in text and " over fsdp: " in text


def test_a_step_computes_the_products_of_the_formula_and_little_more():
    made = compile_for(experiment(model__d_model=32, model__d_ff=64), HERE, "train", Shape(128, 8, 8))
    assert 1.0 <= made.program.cost_analysis()["flops"] / made.flops < 1.2  # without norms, softmax and optimizer


@pytest.mark.drill
def test_the_search_is_compiled_with_the_parameters_divided_as_in_training():
    divided, whole = (
        memory(compile_for(config, HERE, "decode", Shape(8, 8, 8)).program).state
        for config in (experiment(mesh__fsdp=2, mesh__tensor=2), experiment(mesh__data=8))
    )
    assert 0 < divided < whole / 2


def test_packed_rows_come_with_segments_and_positions():
    mesh = make_mesh(experiment().mesh, HERE.devices)
    rows, packed = (
        len(jax.tree.leaves(_step(config, mesh, Shape(8, 8, 8)).args_info))
        for config in (experiment(), experiment(data__batching="packing"))
    )
    assert packed == rows + 4


def test_a_search_is_no_longer_than_the_positions():
    config = experiment(model__positions="learned", model__max_length=10)
    _search(config, make_mesh(config.mesh, HERE.devices), Shape(8, 32, 32))


def test_the_time_of_a_useful_token_is_that_of_the_commonest_shape_for_all_cells(monkeypatch):
    config, wanted, common, rare = experiment(), [], Shape(16, 8, 10), Shape(8, 16, 20)
    made = compile_for(config, HERE, shape=Shape(128, 8, 16))
    monkeypatch.setattr(compiled, "compile_for", lambda *_, shape: wanted.append(shape) or made)
    one, padded = (BatchStatistics(9, 0, 4, ((common, count), (rare, 1)), 300, 300, 8, 0.5) for count in (1, 3))
    times = [microseconds_per_token(config, HERE, batches) for batches in (one, padded)]
    assert wanted == [Shape(128, 8, 16)] * 2
    assert times[1] == pytest.approx(2 * times[0]) and times[0] > 0
