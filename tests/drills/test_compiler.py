"""Drill: what is compiled for every config is the same with and without the fusion that jaxlib 0.10.2 gets wrong.

Loss, gradients, scores and searches, of one run and of two in one program, with more rows than the 32,768 after which
the fault begins. Models have one layer each, at most 500 tokens and a d_model of at most 256, and a smooth activation:
a rounding that moves a number across ReLU's kink changes a gradient by far more than itself. `-s` shows the table.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from tests.processes.test_compilation import shows_the_fault
from transformer_jax import shipped
from transformer_jax.commands import configuration
from transformer_jax.config import DecodeConfig, ExperimentConfig, MeshConfig
from transformer_jax.data.batching import Batch
from transformer_jax.model.positions import ENCODINGS
from transformer_jax.model_config import ModelConfig
from transformer_jax.processes import compilation
from transformer_jax.training.compiled import CompiledRuns
from transformer_jax.translation.translate import Rows, Translator, rows_sharding, tail_of
from transformer_jax.update import sharding
from transformer_jax.update.optimizer import make_schedule

ROWS, LENGTH = 1152, 32  # 36,864 tokens of each side
SENTENCES, BEAM, LONGEST = 8_448, 4, 4  # 33,792 beams
# Of the largest number in the same array. The fault would change it by percents.
WITHIN = 2e-5
# LayerNorm of three numbers is ill-conditioned: one rounding of the parameters changes this gradient by up to 3e-4.
ILL_CONDITIONED = {"d_model 3": 1e-3}
SIZES = ("num_encoder_layers", "num_decoder_layers")
# The fault needs products of 3 by 2 or 3. (A d_model of 2 proves nothing: LayerNorm of two numbers has no gradient.)
NARROW = {
    "d_model 3": {"d_model": 3, "num_heads": 1, "d_ff": 3, "positions": "learned"},
    "heads of 3": {"d_model": 6, "num_heads": 2, "d_ff": 2},
    **{f"heads of 2 {kind}": {"d_model": 6, "num_heads": 3, "d_ff": 3, "positions": kind} for kind in ENCODINGS},
}


def small(model: ModelConfig) -> ModelConfig:
    """As much of a model as two cores can work on."""
    shrink = max(model.d_model // 256, 1)
    changes: dict[str, Any] = dict.fromkeys(SIZES, 1)
    changes |= {"d_model": model.d_model // shrink, "d_ff": model.d_ff // shrink, "activation": "gelu"}
    return dataclasses.replace(model, **changes, vocab_size=min(model.vocab_size, 500), dropout=0.1)


def configs() -> dict[str, ExperimentConfig]:
    """Every config, once for each model that is left of them."""
    found: dict[Any, tuple[str, ExperimentConfig]] = {}
    for name, file in shipped.configs().items():
        config = configuration.load(str(file), [])
        config = dataclasses.replace(config, model=small(config.model))
        same = found.get(config.model)
        found[config.model] = (f"{same[0]}, {name}" if same else name, config)
    return dict(found.values())


def narrow() -> dict[str, ExperimentConfig]:
    common: dict[str, Any] = {"vocab_size": 5, "max_length": LENGTH, "activation": "gelu", **dict.fromkeys(SIZES, 1)}
    return {name: ExperimentConfig(model=ModelConfig(**common, **widths)) for name, widths in NARROW.items()}


CONFIGS = configs()
EXPERIMENTS = {**CONFIGS, **narrow()}


@pytest.fixture(autouse=True)
def _compiled_as_users_do(monkeypatch):
    """With the compiler's own choice for all programs, and every optimization."""
    monkeypatch.setattr(compilation, "MISCOMPILING", ())
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
    jax.clear_caches()


def mesh():
    return sharding.make_mesh(MeshConfig(), jax.devices()[:1])


def tokens(model, rows, length, seed):
    return np.random.default_rng(seed).integers(3, model.vocab_size, (rows, length), np.int32)


def batch_of(model):
    source, target = (tokens(model, ROWS, LENGTH, seed) for seed in range(2))
    inputs = np.concatenate([np.ones((ROWS, 1), np.int32), target[:, :-1]], axis=1)
    return sharding.place_batch(Batch(source, inputs, target), mesh())


def with_and_without(lowered, *arguments):
    """A program's results as it is compiled by default, and without the fusion; and how many kernels it fuses."""
    fused, plain = lowered.compile(), lowered.compile(compiler_options={compilation.FUSION: ""})
    kernels = fused.as_text().count('"kind":"__ynn_fusion"')
    assert '"kind":"__ynn_fusion"' not in plain.as_text()
    return jax.device_get(fused(*arguments)), jax.device_get(plain(*arguments)), kernels


def difference(ours, theirs):
    """The largest of all arrays, each relative to the largest number in it."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in pairs if a.dtype == np.float32)


def programs(config, runs):
    """Step and evaluation of one run, or of several in one program, with what they are called with."""
    schedule = make_schedule(config.optimizer, config.model.d_model, 100)
    batch = batch_of(config.model)
    if runs == 1:
        alone: Any = CompiledRuns([config], [schedule], mesh())
        state = alone.new_states()
        yield "step", alone.step_program.jitted, (*alone.step_arguments, state, batch)
        yield "validation", alone.evaluation_program.jitted, (state.params, batch)
    else:
        together: Any = CompiledRuns(
            [dataclasses.replace(config, seed=run) for run in range(runs)], [schedule] * runs, mesh()
        )
        states, step, evaluation = together.new_states(), together.step_program, together.evaluation_program
        yield f"step of {runs} runs", step.jitted, (*together.step_arguments, states, batch)
        yield f"validation of {runs}", evaluation.jitted, (*together.evaluation_arguments, states.params, batch)


@shows_the_fault
def test_the_comparison_sees_the_fault():
    rows, matrix = np.random.default_rng(0).normal(size=(ROWS * LENGTH, 3)).astype(np.float32), np.eye(3)
    program = jax.jit(jax.vmap(lambda row: ((matrix.astype(np.float32) @ row) ** 2).sum()))
    fused, plain, kernels = with_and_without(program.lower(rows), rows)
    assert kernels == 1
    assert difference(fused, plain) > 0.1


def report(name, program, kernels, different):
    print(f"| {name} | {program} | {kernels} | {different:.1e} |")


@pytest.mark.parametrize(("name", "runs"), [*((name, 1) for name in EXPERIMENTS), *((name, 2) for name in CONFIGS)])
def test_loss_and_gradients(name, runs):
    for program, jitted, arguments in programs(EXPERIMENTS[name], runs):
        # A step gives its state's memory away; both are to begin with the same.
        copies = jax.device_get(arguments)
        fused, plain, kernels = with_and_without(jitted.lower(*arguments), *copies)
        if "step" in program:  # After one step the optimizer's averages are the gradient and its square.
            fused, plain = ((state.optimizer, metrics.loss) for state, metrics in (fused, plain))
        report(name, program, kernels, different := difference(fused, plain))
        assert kernels > 0
        assert different < ILL_CONDITIONED.get(name, WITHIN)


@pytest.mark.parametrize(
    ("search", "decode"),
    [
        ("beam 4", DecodeConfig(beam=BEAM)),
        ("greedy", DecodeConfig(beam=1)),
    ],
)
@pytest.mark.parametrize("name", ["demo", "d_model 3", "heads of 3"])
def test_searches(name, search, decode):
    config = EXPERIMENTS[name]
    rows = SENTENCES * BEAM // decode.beam
    params = CompiledRuns([config], [lambda count: 1e-3], mesh()).new_states().params
    limits, ids = np.full(rows, LONGEST, np.int32), np.arange(rows, dtype=np.int32)
    given = jax.device_put(Rows(tokens(config.model, rows, LONGEST, 2), limits, ids), rows_sharding(mesh()))
    options = {"model": config.model, "decode": decode, "max_length": LONGEST, "tail": tail_of(rows, mesh())}
    searcher: Any = Translator(config, None, None, mesh())
    lowered = searcher._search.lower(params, given, **options, mesh=mesh())
    fused, plain, kernels = with_and_without(lowered, params, given)
    # Where two tokens are as probable but for rounding, either is right.
    same = (fused.tokens_BNT == plain.tokens_BNT).all(axis=(1, 2))
    different = difference(fused.log_probabilities_BN[same], plain.log_probabilities_BN[same])
    report(name, f"{search}, {(~same).sum()} of {rows} sentences otherwise", kernels, different)
    assert same.mean() > 0.999
    assert kernels > 0
    assert different < WITHIN
