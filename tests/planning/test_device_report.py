"""The figures of a compiled program, on CPUs; tests/accelerators compiles for others."""

import json

import jax
import pytest

from tests.support.small_runs import experiment
from transformer_jax.planning import compiled
from transformer_jax.planning.accelerators import GPUS, Target
from transformer_jax.planning.device_report import examine, hidden
from transformer_jax.planning.hlo import Array
from transformer_jax.planning.program import Collective

HERE = Target("8 CPUs", "cpu", GPUS["H100"], tuple(jax.devices()), {})


@pytest.fixture(scope="module")
def found():
    config = experiment(mesh__fsdp=2, model__dtype="bfloat16")
    mesh = compiled.mesh_of(config, HERE)
    return examine(compiled.compiled_step(config, mesh, (16, 8, 8), HERE), HERE, mesh, config.model)


def test_the_figures_of_a_step(found):
    assert (found.devices, found.mesh) == (8, {"data": 4, "fsdp": 2, "tensor": 1})
    assert found.memory.peak < found.capacity and found.flops > 0 < found.accessed
    assert {message.axes for message in found.messages} == {("data",), ("fsdp",), ("data", "fsdp")}
    assert len(found.top) == 10 and found.top[0].bytes >= found.top[-1].bytes
    assert any("transformer_jax/" in access.source for access in found.top)
    assert found.binds == ("arithmetic" if found.flops_ms > found.accessed_ms else "memory traffic")


def test_the_figures_as_text_and_as_json(found):
    text = str(found)
    assert "Compiled, not run, for 8 CPUs: 8 x NVIDIA H100 80GB HBM3, data 4 x fsdp 2 x tensor 1" in text
    assert "of the gradients' bytes 0% are sent behind at least 0.5 ms of work, 0% behind as much arithmetic" in text
    assert "all-gather along fsdp" in text and "synchronous" in text
    again = json.loads(json.dumps(found.to_json()))
    assert again["memory"] == found.memory._asdict() and len(again["messages"]) == len(found.messages)


def test_the_share_of_the_gradients_that_hides_behind_work():
    peak, mesh = 1e12, {"data": 2, "fsdp": 1, "tensor": 2}

    def message(elements, kind="all-reduce", group=(0, 2), asynchronous=True, milliseconds=1.0, flops=0.0):
        arrays = (Array("f32", (elements,), "{0}"),)
        return Collective(kind, arrays, group, 1, asynchronous, milliseconds / 1000, flops)

    gradients = [
        message(100, flops=1e9),  # 1 ms of arithmetic
        message(200),
        message(300, milliseconds=0.4, flops=4e8),
        message(400, asynchronous=False),
    ]
    others = [message(5000, "all-gather"), message(5000, group=(0, 1))]
    assert hidden([*gradients, *others], mesh, peak) == (0.3, 0.1)
    assert hidden(others, mesh, peak) is None
