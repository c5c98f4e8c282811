"""Programs compiled from shapes alone, and the figures of one; tests/accelerators compiles for accelerators."""

import importlib.util
import json

import jax
import pytest

from tests.accelerators import hlo
from tests.support.small_runs import experiment
from transformer_jax import planning
from transformer_jax.data.buckets import Shape
from transformer_jax.errors import BadInput
from transformer_jax.planning import (
    CHIPS,
    Target,
    _search,
    _step,
    compile_for,
    examine,
    in_words,
    memory,
    parse_target,
)
from transformer_jax.update.sharding import make_mesh

SMALL = Shape(8, 8, 8)
HERE = Target("8 CPUs", None, CHIPS["H100"], tuple(jax.devices()), {})


def test_the_figures_of_a_step():
    config = experiment(mesh__fsdp=2, model__dtype="bfloat16", train__accumulate=3, data__tokens_per_batch=64)
    made = compile_for(config, HERE, "train")
    found = examine(made, HERE, config.model)
    assert (found["devices"], found["mesh"]) == (8, {"data": 4, "fsdp": 2, "tensor": 1})
    assert found["memory"]["state"] > 0 < found["memory"]["temporary"]
    assert found["flops"] > 0 < found["flops_ms"]
    assert found["bytes_accessed"] > found["memory"]["state"] / 2, "the parameters and moments at least"
    kinds = [collective.kind for collective in hlo.Program(made.program.as_text()).collectives()]
    assert found["collectives"] == {kind: kinds.count(kind) for kind in sorted(set(kinds))} != {}
    assert json.loads(json.dumps(found)) == found
    text = in_words(found)
    assert "8 x NVIDIA H100 80GB HBM3, data 4 x fsdp 2 x tensor 1" in text
    assert f"{found['collectives']['all-gather']} x all-gather" in text


@pytest.mark.parametrize("text", ["8xH10", "v5e", "v5e:2by4", "v5e:9999x9999", "12xH100", "H100:2x4", "8xv5e", ""])
def test_what_names_no_devices_is_an_error(text):
    with pytest.raises(BadInput, match="known"):
        parse_target(text)


@pytest.mark.parametrize(("text", "extra"), [("8xH100", "jax[cuda13]"), ("v5e:2x4", "jax[tpu]")])
def test_a_missing_compiler_is_named_with_what_to_install(text, extra, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput) as refused:
        parse_target(text)
    assert f"pip install '{extra}'" in str(refused.value)


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


def test_a_search_is_compiled_for_as_many_sentences_as_a_translation_has_at_once(monkeypatch):
    """decode.tokens_per_batch limits the room of their translations, which may be longer than they are."""
    shapes, config = [], experiment(mesh__data=8)
    monkeypatch.setattr(
        planning, "_search", lambda config, mesh, shape: shapes.append(shape) or _search(config, mesh, SMALL)
    )
    compile_for(config, HERE, "decode")
    (shape,) = shapes
    room = shape.source + config.decode.extra_length
    assert shape.rows % 8 == 0 and shape.rows * room <= config.decode.tokens_per_batch < 2 * shape.rows * (room + 16)


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
