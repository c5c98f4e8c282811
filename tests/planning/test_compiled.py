"""Programs compiled from shapes alone, and the figures of one; tests/accelerators compiles for accelerators."""

import json

import jax
import pytest

from tests.support.small_runs import experiment
from transformer_jax.planning.compiled import compile_for, examine, in_words, memory
from transformer_jax.planning.target import CHIPS, Target

HERE = Target("8 CPUs", None, CHIPS["H100"], tuple(jax.devices()), {})


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


def needed(config, program="train", shape=(8, 8)):
    compiled, _ = compile_for(config, HERE, program, shape)
    return memory(compiled)


@pytest.mark.slow
def test_the_search_is_compiled_with_the_parameters_divided_as_in_training():
    divided, whole = (
        needed(config, "decode").state
        for config in (experiment(mesh__fsdp=2, mesh__tensor=2), experiment(mesh__data=8))
    )
    assert 0 < divided < whole / 2


def test_packed_rows_come_with_segments_and_positions():
    rows, packed = (needed(config).state for config in (experiment(), experiment(data__batching="packing")))
    assert packed == rows + 4 * 8 * 8 * 4 // jax.device_count()  # four arrays of int32


def test_a_search_is_no_longer_than_the_positions():
    config = experiment(model__positions="learned", model__max_length=10)
    assert needed(config, "decode", (8, 32)).peak > 0
