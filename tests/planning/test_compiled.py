"""Programs compiled from shapes alone, and the figures of one; tests/accelerators compiles for accelerators."""

import json

import jax
import pytest

from tests.support.small_runs import experiment
from transformer_jax.planning.compiled import (
    compile_for,
    compiled_search,
    compiled_step,
    examine,
    in_words,
    memory,
    mesh_of,
)
from transformer_jax.planning.target import CHIPS, Target

HERE = Target("8 CPUs", "cpu", CHIPS["H100"], tuple(jax.devices()), {})


def test_the_figures_of_a_step():
    config = experiment(mesh__fsdp=2, model__dtype="bfloat16", train__accumulate=3, data__tokens_per_batch=64)
    found = examine(*compile_for(config, HERE, "train"), HERE, config.model)
    assert (found["devices"], found["mesh"]) == (8, {"data": 4, "fsdp": 2, "tensor": 1})
    assert found["memory"]["state"] > 0 < found["memory"]["temporary"]
    assert found["flops"] > 0 < found["flops_ms"]
    axes = {collective["axes"] for collective in found["collectives"]}
    assert ("fsdp",) in axes and any("data" in names for names in axes)
    assert json.loads(json.dumps(found))["memory"] == found["memory"]
    text = in_words(found)
    assert "8 x NVIDIA H100 80GB HBM3, data 4 x fsdp 2 x tensor 1" in text and " over fsdp: " in text


@pytest.mark.slow
def test_the_search_is_compiled_with_the_parameters_divided_as_in_training():
    config = experiment(mesh__fsdp=2, mesh__tensor=2)
    needed, whole = (
        memory(compiled_search(one, mesh_of(one), (8, 8))).state for one in (config, experiment(mesh__data=8))
    )
    assert 0 < needed < whole / 2


def test_packed_rows_come_with_segments_and_positions():
    rows, packed = (
        memory(compiled_step(one, mesh_of(one), (8, 8))).state
        for one in (experiment(), experiment(data__batching="packing"))
    )
    assert packed == rows + 4 * 8 * 8 * 4 // mesh_of(experiment()).size  # four arrays of int32


def test_a_search_is_no_longer_than_the_positions():
    config = experiment(model__positions="learned", model__max_length=10)
    assert memory(compiled_search(config, mesh_of(config), (8, 32))).peak > 0
