"""The figures of a compiled program, on CPUs; tests/accelerators compiles for others."""

import json

import jax
import pytest

from tests.support.small_runs import experiment
from transformer_jax.planning import compiled
from transformer_jax.planning.accelerators import GPUS, Target
from transformer_jax.planning.device_report import examine

HERE = Target("8 CPUs", "cpu", GPUS["H100"], tuple(jax.devices()), {})


@pytest.fixture(scope="module")
def found():
    config = experiment(mesh__fsdp=2, model__dtype="bfloat16")
    mesh = compiled.mesh_of(config, HERE)
    return examine(compiled.compiled_step(config, mesh, (16, 8, 8), HERE), HERE, mesh, config.model)


def test_the_figures_of_a_step(found):
    assert (found.devices, found.mesh) == (8, {"data": 4, "fsdp": 2, "tensor": 1})
    assert found.memory.peak < found.capacity and found.flops > 0 < found.flops_ms
    axes = {collective.axes for collective in found.collectives}
    assert ("fsdp",) in axes and any("data" in names for names in axes)


def test_the_figures_as_text_and_as_json(found):
    text = str(found)
    assert "Compiled, not run, for 8 CPUs: 8 x NVIDIA H100 80GB HBM3, data 4 x fsdp 2 x tensor 1" in text
    assert " over fsdp: " in text and "synchronous" in text
    again = json.loads(json.dumps(found.to_json()))
    assert again["memory"] == found.memory._asdict() and len(again["collectives"]) == len(found.collectives)
