"""No program is compiled with a fusion that is known to be wrong."""

import dataclasses
import importlib.metadata
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.small_runs import Trainer, batches, experiment
from transformer_jax import MultiHeadAttention
from transformer_jax.config import MeshConfig, OptimizerConfig, TrainConfig
from transformer_jax.model_config import ModelConfig, PartsConfig
from transformer_jax.processes import compilation
from transformer_jax.processes.compilation import FUSION, unfused, unfused_if_custom
from transformer_jax.training.compiled import CompiledRuns, make_eval_step
from transformer_jax.translation.log_probabilities import Scorer
from transformer_jax.translation.translate import Translator
from transformer_jax.update import sharding

FUSED = "__ynn_fusion"
INSTALLED = importlib.metadata.version("jaxlib")
shows_the_fault = pytest.mark.skipif(
    INSTALLED not in compilation.MISCOMPILING or FUSION in os.environ["XLA_FLAGS"], reason="a jaxlib without the fault"
)


@pytest.fixture
def faulty(monkeypatch):
    """The installed jaxlib, as if it were known to be faulty."""
    monkeypatch.setattr(compilation, "MISCOMPILING", (INSTALLED,))
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")


def mesh():
    return sharding.make_mesh(MeshConfig(), jax.devices()[:1])


def row_sums(options):
    """Those of issue 39103 up to beyond the row from which they are wrong, and what is right."""
    rows, matrix = np.random.default_rng(0).normal(size=(32_800, 3)).astype(np.float32), np.eye(3, dtype=np.float32)
    program = jax.jit(jax.vmap(lambda row: jnp.sum((matrix @ row) ** 2)), compiler_options=options)
    return np.asarray(program(rows)), (rows.astype(np.float64) ** 2).sum(axis=1)


def test_the_known_miscompilation_is_right_under_our_options():
    """If this fails, the installed jaxlib belongs into MISCOMPILING."""
    np.testing.assert_allclose(*row_sums(unfused(mesh())), rtol=1e-5)


@shows_the_fault
def test_a_listed_jaxlib_is_wrong_without_them():
    wrong = np.flatnonzero(~np.isclose(*row_sums(None), rtol=1e-5))
    assert len(wrong) > 16
    assert wrong.min() == 32_768


def test_options_are_for_faulty_releases_alone_and_leave_a_users_choice(monkeypatch, faulty):
    assert unfused(mesh()) == {FUSION: ""}
    monkeypatch.setenv("XLA_FLAGS", f"--{FUSION}=-reduce")
    assert unfused(mesh()) is None
    monkeypatch.delenv("XLA_FLAGS")
    assert unfused(mesh()) == {FUSION: ""}
    monkeypatch.setattr(compilation, "MISCOMPILING", ("0.1.75",))
    assert unfused(mesh()) is None


@pytest.mark.parametrize(
    ("section", "options"),
    [
        (ModelConfig(), None),
        (ModelConfig(parts=PartsConfig(attention=MultiHeadAttention)), {FUSION: ""}),
        (TrainConfig(loss="mine.py:loss"), {FUSION: ""}),
        (OptimizerConfig(name="lion"), None),
        (OptimizerConfig(name="mine.py:lion"), {FUSION: ""}),
    ],
)
def test_custom_code_is_compiled_without_the_fusion(section, options, faulty):
    assert unfused_if_custom(mesh(), section) == options


@pytest.fixture
def options(faulty, monkeypatch):
    """The compiler options of all programs that are made in a test, in their order."""
    jit, seen = jax.jit, []

    def recording(function, *arguments, compiler_options=None, **options):
        seen.append(compiler_options)
        return jit(function, *arguments, compiler_options=compiler_options, **options)

    monkeypatch.setattr(jax, "jit", recording)
    return seen


@pytest.mark.parametrize(("parts", "expected"), [({}, None), ({"attention": MultiHeadAttention}, {FUSION: ""})])
def test_which_programs_of_one_run_are_compiled_without_the_fusion(parts, expected, options):
    model = dataclasses.replace(experiment().model, parts=PartsConfig(**parts))
    config = dataclasses.replace(experiment(), model=model)
    trainer = Trainer(config)
    make_eval_step(config, trainer.mesh)
    Scorer(model, trainer.mesh, {})
    Translator(config, None, None, trainer.mesh)
    assert options == [expected] * 4


def together():
    return CompiledRuns([experiment()] * 2, [lambda count: 1e-3] * 2, mesh())


def test_several_runs_in_one_program_are_compiled_without_the_fusion(options):
    CompiledRuns([experiment()] * 2, [lambda count: 1e-3] * 2, mesh())
    assert options.count({FUSION: ""}) == 3  # a new state, the step, the evaluation; others move numbers only


@pytest.mark.parametrize(("versions", "fused"), [((INSTALLED,), False), ((), True)])
def test_the_options_take_the_fusion_out_of_what_is_compiled(versions, fused, faulty, monkeypatch):
    monkeypatch.setattr(compilation, "MISCOMPILING", versions)
    steps: Any = together()
    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), steps.abstract_state.params)
    evaluate = steps.evaluation_program.jitted
    program = evaluate.lower(*steps.evaluation_arguments, params, batches(1)[0]).compile()
    assert (FUSED in program.as_text()) == fused
