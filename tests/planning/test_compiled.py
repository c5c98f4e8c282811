"""Programs compiled from shapes alone."""

import pytest

from tests.support.small_runs import experiment
from transformer_jax.planning.compiled import compiled_search, compiled_step, divisible, memory, mesh_of


def test_the_step_is_compiled_and_its_memory_counted():
    config = experiment(train__accumulate=3)
    rows = divisible(config, 4, mesh_of(config))
    assert rows % 3 == 0 and rows >= 4
    needed = memory(compiled_step(experiment(), mesh_of(experiment()), (8, 8, 8)))
    assert needed.state > 0 < needed.temporary and needed.peak == needed.state + needed.temporary


@pytest.mark.slow
def test_the_search_is_compiled_with_the_parameters_divided_as_in_training():
    config = experiment(mesh__fsdp=2, mesh__tensor=2)
    needed, whole = (
        memory(compiled_search(one, mesh_of(one), (8, 8))).state for one in (config, experiment(mesh__data=8))
    )
    assert 0 < needed < whole / 2


def test_packed_rows_come_with_segments_and_positions():
    rows, packed = (
        memory(compiled_step(one, mesh_of(one), (8, 8, 8))).state
        for one in (experiment(), experiment(data__batching="packing"))
    )
    assert packed == rows + 4 * 8 * 8 * 4 // mesh_of(experiment()).size  # four arrays of int32


def test_a_search_is_no_longer_than_the_positions():
    config = experiment(model__positions="learned", model__max_length=10)
    assert memory(compiled_search(config, mesh_of(config), (8, 32))).peak > 0
