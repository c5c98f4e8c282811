"""What a train step computes again in its backward pass: the same update, no matrix product twice, less memory."""

import re
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from tests.support.hlo import compiled
from tests.support.small_runs import batch_of, batches, params_of, sentences, trainer
from transformer_jax.update.rematerialization import recomputes_activations
from transformer_jax.update.step import train_step

ACTIVATIONS = {"train__rematerialize": "activations"}
SGD = {"optimizer__name": "sgd", "optimizer__learning_rate": 0.3, "model__dropout": 0.1}
MODELS = {
    "the paper's": {},
    "pre-norm, SwiGLU, rotary": {
        "model__norm": "pre", "model__activation": "swiglu", "model__positions": "rotary", "model__qk_norm": True
    },
    "bias and dropout in attention": {"model__positions": "relative", "model__attention_dropout": 0.1},
}  # fmt: skip


@pytest.mark.parametrize("mesh", [{}, {"mesh__fsdp": 2, "mesh__tensor": 2}], ids=["one device", "eight devices"])
@pytest.mark.parametrize("name", MODELS)
def test_the_update_is_the_same(name, mesh):
    changes, devices = {**SGD, **MODELS[name], **mesh}, 8 if mesh else 1
    kept, again = (trainer(devices, **changes, **remat).train(batches(3)) for remat in ({}, ACTIVATIONS))
    for path, expected in params_of(kept).items():
        np.testing.assert_allclose(params_of(again)[path], expected, atol=1e-6, err_msg=path)


@pytest.mark.parametrize("name", MODELS)
def test_no_matrix_product_is_computed_twice_and_random_bits_are(name):
    def count(what, **changes):
        run = trainer(**SGD, **MODELS[name], **changes)
        text = run.step.func.lower(*run.step.args, run.plan, batch_of(sentences(8), 8)).as_text()
        return len(re.findall(what, text))

    assert count("stablehlo.dot_general", **ACTIVATIONS) == count("stablehlo.dot_general")
    assert count("optimization_barrier", **ACTIVATIONS) > count("optimization_barrier")


def test_it_needs_less_memory():
    size = {"model__d_model": 64, "model__d_ff": 256, "model__num_encoder_layers": 4, "model__dropout": 0.1}
    kept, again = (compiled(1, 64, 32, **size, **remat).temporary for remat in ({}, ACTIVATIONS))
    assert again < 0.9 * kept


@pytest.mark.parametrize(
    ("platform", "wanted", "is_computed_again"),
    [
        ("tpu", "auto", True), ("gpu", "auto", False), ("cpu", "auto", False),
        ("tpu", "nothing", False), ("gpu", "activations", True), ("cpu", "activations", True),
    ],
)  # fmt: skip
def test_the_devices_decide_unless_the_config_does(platform, wanted, is_computed_again):
    assert recomputes_activations(wanted, platform) == is_computed_again


@pytest.mark.parametrize(
    ("platform", "fsdp", "together"), [("tpu", 1, True), ("tpu", 2, False), ("gpu", 1, False), ("cpu", 1, False)]
)
def test_both_gradients_of_each_product_are_computed_together_on_tpus_without_fsdp(platform, fsdp, together):
    """Decided by the mesh's devices: the machine that compiles has CPUs in each case."""
    run, device = trainer(), SimpleNamespace(platform=platform, device_kind=platform)
    mesh = SimpleNamespace(devices=np.array([device]), size=1, shape={"fsdp": fsdp})
    batch = batch_of(sentences(8), 8)

    def step(state):
        return train_step(run.config, run.optimizer, None, state, batch, mesh)

    barriers = str(jax.make_jaxpr(step)(run.new())).count("optimization_barrier")
    kernels = [path for path in params_of(run.new()) if path.endswith("kernel")]
    assert barriers == (len(kernels) if together else 0)
