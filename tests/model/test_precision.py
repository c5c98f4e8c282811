"""model.matmul_precision: float32 products are float32 on accelerators too, in every program of a run.

Programs are lowered for a TPU, which needs none: what each product asks of the compiler is in the text.
"""

import collections
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.small_models import SOURCE, TARGET, built, small
from tests.support.small_runs import Trainer, batch_of, experiment, sentences
from transformer_jax import Transformer
from transformer_jax.config import DecodeConfig, from_json, to_json
from transformer_jax.model.transformer import matmul_precision
from transformer_jax.training.steps import CompiledSteps
from transformer_jax.translation.score import token_log_probabilities
from transformer_jax.translation.translate import Rows, search
from transformer_jax.update.sharding import make_mesh
from transformer_jax.update.step import make_eval_step

TOKENS = jax.ShapeDtypeStruct((2, 5), np.int32)
BATCH = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), batch_of(sentences(8)))


def products(traced) -> collections.Counter:
    """How often the program multiplies arrays of which types at which precision."""
    found = collections.Counter()
    for line in traced.lower(lowering_platforms=("tpu",)).as_text().splitlines():
        if "stablehlo.dot_general" in line or "stablehlo.convolution" in line:
            asked = re.search(r"precision = \[(\w+), (\w+)\]", line)
            types = re.search(r": \(tensor<([^>]*)>, tensor<([^>]*)>\)", line)
            found[tuple(kind.split("x")[-1] for kind in types.groups()), set_of(asked)] += 1
    assert found
    return found


def set_of(asked) -> str:
    return "/".join(sorted(set(asked.groups()))) if asked else "nothing"


def train(config):
    trainer = Trainer(config)
    return trainer.step.func.trace(*trainer.step.args, trainer.plan, BATCH)


def evaluate(config):
    return make_eval_step(config, make_mesh(config.mesh, jax.devices()[:1])).trace(Trainer(config).plan.params, BATCH)


def together(config):
    steps = CompiledSteps([config, config], [lambda count: 1e-3] * 2, make_mesh(config.mesh, jax.devices()[:1]))
    program, (numbers,) = steps.step.func, steps.step.args
    return program.trace(numbers, steps.new_state.func.eval_shape(numbers), BATCH)


def evaluate_together(config):
    steps = CompiledSteps([config, config], [lambda count: 1e-3] * 2, make_mesh(config.mesh, jax.devices()[:1]))
    program, (numbers,) = steps.evaluate.func, steps.evaluate.args
    return program.trace(numbers, steps.new_state.func.eval_shape(numbers).params, BATCH)


def params_of(config):
    return jax.eval_shape(Transformer(config.model).init, jax.random.key(0), TOKENS, TOKENS)["params"]


def score(config):
    return jax.jit(functools.partial(token_log_probabilities, config.model)).trace(params_of(config), BATCH)


def decode(config, **options):
    searched = functools.partial(search, model=config.model, decode=DecodeConfig(**options), max_length=12)
    numbers = jax.ShapeDtypeStruct((2,), np.int32)
    return jax.jit(searched).trace(params_of(config), Rows(TOKENS, numbers, numbers))


def sample(config):
    return decode(config, sample=True)


PROGRAMS = [train, together, evaluate, evaluate_together, score, decode, sample]
RELATIVE = {
    "positions": "relative",
    "num_key_value_heads": 2,
    "qk_norm": True,
    "tie_embeddings": "none",
    "output_bias": True,
}
TRANSFORMER_XL = {"positions": "transformer_xl", "attention_softcap": 5.0, "num_key_value_heads": 1}
FUSED = {"attention_implementation": "jax", "activation": "swiglu", "norm": "pre", "positions": "t5"}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_every_float32_product_asks_for_float32(program):
    assert set(products(program(experiment()))) == {(("f32", "f32"), "HIGHEST")}


@pytest.mark.parametrize("model", [RELATIVE, TRANSFORMER_XL, FUSED], ids=str)
@pytest.mark.parametrize("program", [train, decode], ids=lambda program: program.__name__)
def test_whatever_the_architecture(program, model):
    config = experiment(**{f"model__{name}": value for name, value in model.items()})
    assert set(products(program(config))) == {(("f32", "f32"), "HIGHEST")}


def test_an_optimizers_products_are_float32_too_whatever_the_model_computes_in():
    found = products(train(experiment(optimizer__name="muon", model__dtype="bfloat16")))
    assert found[("f32", "f32"), "HIGHEST"] > 0
    assert {precision for kinds, precision in found if kinds == ("f32", "f32")} == {"HIGHEST"}


@pytest.mark.parametrize(
    ("program", "model"),
    [
        *((program, model) for program in (train, decode) for model in (RELATIVE, TRANSFORMER_XL, FUSED)),
        (evaluate, FUSED),
        (score, RELATIVE),
    ],
)
def test_what_is_bfloat16_is_multiplied_in_one_pass_backward_as_well(program, model):
    config = experiment(model__dtype="bfloat16", **{f"model__{name}": value for name, value in model.items()})
    found = products(program(config))
    assert {precision for _, precision in found} == {"DEFAULT"}
    assert all("bf16" in kinds for kinds, _ in found)


@pytest.mark.parametrize(("program", "option", "asked"), [(train, "high", "HIGH"), (decode, "default", "DEFAULT")])
def test_the_option_decides_and_not_what_jax_is_set_to(program, option, asked):
    with jax.default_matmul_precision("highest"):
        found = products(program(experiment(model__matmul_precision=option)))
    assert set(found) == {(("f32", "f32"), asked)}


def test_in_other_code_the_model_follows_that_codes_setting():
    config = experiment()
    model = jax.jit(Transformer(config.model).apply)
    for setting, asked in ((None, "DEFAULT"), ("high", "HIGH")):
        with jax.default_matmul_precision(setting):
            found = products(model.trace({"params": params_of(config)}, TOKENS, TOKENS))
        assert set(found) == {(("f32", "f32"), asked)}


def test_the_option_is_kept_and_a_config_from_before_it_loads():
    config = experiment(model__matmul_precision="default")
    assert from_json(to_json(config)).model.matmul_precision == "default"
    before = to_json(experiment()).replace('    "matmul_precision": "highest",\n', "")
    assert "matmul_precision" not in before
    assert from_json(before) == experiment()


@pytest.mark.slow
def test_on_a_cpu_it_changes_nothing():
    model, variables = built()
    results = []
    for option in ("highest", "default"):
        with matmul_precision(small(matmul_precision=option)):
            logits, pull_back = jax.vjp(lambda variables: model.apply(variables, SOURCE, TARGET), variables)
            results.append(jax.device_get((logits, pull_back(jnp.ones_like(logits)))))
    jax.tree.map(np.testing.assert_array_equal, *results)
