"""The figures of a compiled program: on CPUs, and with the compiler for TPUs where it is installed."""

import importlib.util
import json

import jax
import pytest

from tests.support.small_runs import experiment
from transformer_jax import cli
from transformer_jax.planning import compiled
from transformer_jax.planning.accelerators import GPUS, Target
from transformer_jax.planning.device_report import examine

HERE = Target("8 CPUs", "cpu", GPUS["H100"], tuple(jax.devices()), {})
SMALL = {
    "model.dtype": "bfloat16", "model.vocab_size": 100, "model.d_model": 16, "model.d_ff": 32, "model.num_heads": 2,
    "model.num_encoder_layers": 1, "model.num_decoder_layers": 1, "data.tokens_per_batch": 512,
}  # fmt: skip


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
    assert "all-gather along fsdp" in text and "synchronous" in text
    again = json.loads(json.dumps(found.to_json()))
    assert again["memory"] == found.memory._asdict() and len(again["messages"]) == len(found.messages)


@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs jax[tpu]")
@pytest.mark.parametrize("program", ["train", "decode"])
def test_a_step_and_a_search_for_tpus(program, capsys):
    options = [f"--config.{name}={value}" for name, value in SMALL.items()]
    command = [
        "inspect",
        "--config=preset:base",
        *options,
        "--compile-for=v5e:2x4",
        f"--program-of={program}",
        "--json",
    ]
    assert cli.main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["device"] == "TPU v5 lite" and found["devices"] == 8 and found["accessed"] > 0
