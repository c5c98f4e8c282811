"""model.matmul_precision: float32 products are float32 on accelerators too, in every program of a run.

Programs are lowered for a TPU, which needs none: what each product asks of the compiler is in the text.
"""

import collections
import functools
import re

import jax
import numpy as np
import pytest

from tests.support.small_models import SOURCE, TARGET, small
from tests.support.small_runs import Trainer, batch_of, experiment, sentences
from transformer_jax import Transformer, padding_mask
from transformer_jax.config import DecodeConfig
from transformer_jax.model.positions import ENCODINGS
from transformer_jax.translation.log_probabilities import token_log_probabilities
from transformer_jax.translation.translate import Rows, search

TOKENS = jax.ShapeDtypeStruct((2, 5), np.int32)
BATCH = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), batch_of(sentences(8)))


def products(traced) -> collections.Counter:
    """How often the program multiplies arrays of which types at which precision."""
    found = collections.Counter()
    for line in traced.lower(lowering_platforms=("tpu",)).as_text().splitlines():
        if "stablehlo.dot_general" in line or "stablehlo.convolution" in line:
            asked = re.search(r"precision = \[(\w+), (\w+)\]", line)
            types = re.search(r": \(tensor<([^>]*)>, tensor<([^>]*)>\)", line)
            asked = "/".join(sorted(set(asked.groups()))) if asked else "nothing"
            found[tuple(kind.split("x")[-1] for kind in types.groups()), asked] += 1
    assert found
    return found


@pytest.mark.drill
@pytest.mark.parametrize("positions", ENCODINGS)
def test_parameters_and_logits_are_float32_also_where_jax_has_64_bits(positions):
    """And a model decodes step by step."""
    model = Transformer(small(positions=positions, attention_bias=True, output_bias=True, qk_norm=True))

    def everything(key):
        variables = model.init(key, SOURCE, TARGET)
        memory_BSD = model.apply(variables, SOURCE, method="encode")
        cache = model.apply(variables, memory_BSD, 4, method="new_cache")
        step = functools.partial(model.apply, variables, memory_mask=padding_mask(SOURCE), method="step")
        logits_BTN, cache = step(TARGET[:, :2], cache)
        return variables, logits_BTN, step(TARGET[:, 2:], cache)

    with jax.enable_x64(True):
        kinds = {str(leaf.dtype) for leaf in jax.tree.leaves(jax.eval_shape(everything, jax.random.key(0)))}
    assert kinds == {"float32", "int32"}


def train(config):
    trainer = Trainer(config)
    return trainer.step.func.trace(*trainer.step.args, trainer.plan, BATCH)


def params_of(config):
    return jax.eval_shape(Transformer(config.model).init, jax.random.key(0), TOKENS, TOKENS)["params"]


def score(config):
    return jax.jit(functools.partial(token_log_probabilities, config.model)).trace(params_of(config), BATCH)


def decode(config):
    searched = functools.partial(search, model=config.model, decode=DecodeConfig(), max_length=12)
    numbers = jax.ShapeDtypeStruct((2,), np.int32)
    return jax.jit(searched).trace(params_of(config), Rows(TOKENS, numbers, numbers))


RELATIVE = {"positions": "relative", "num_key_value_heads": 2, "qk_norm": True, "tie_embeddings": "none"}
TRANSFORMER_XL = {"positions": "transformer_xl", "attention_softcap": 5.0, "num_key_value_heads": 1}
GATED = {"activation": "swiglu", "norm": "pre", "positions": "t5"}


@pytest.mark.parametrize(
    ("program", "model", "dtype"),
    [
        (train, RELATIVE, "float32"),
        (train, GATED, "float32"),
        (score, {}, "float32"),
        (decode, TRANSFORMER_XL, "float32"),
        (train, RELATIVE, "bfloat16"),
        (decode, TRANSFORMER_XL, "bfloat16"),
    ],
)
def test_every_product_of_float32_is_exact_and_of_bfloat16_in_one_pass_backward_as_well(program, model, dtype):
    config = experiment(model__dtype=dtype, **{f"model__{name}": value for name, value in model.items()})
    found = products(program(config))
    if dtype == "float32":
        assert set(found) == {(("f32", "f32"), "HIGHEST")}
    else:
        assert {precision for _, precision in found} == {"DEFAULT"}
        assert all("bf16" in kinds for kinds, _ in found)


def test_an_optimizers_products_are_float32_too_whatever_the_model_computes_in():
    found = products(train(experiment(optimizer__name="muon", model__dtype="bfloat16")))
    assert found[("f32", "f32"), "HIGHEST"] > 0
    assert {precision for kinds, precision in found if kinds == ("f32", "f32")} == {"HIGHEST"}


def test_the_option_decides_and_not_what_jax_is_set_to():
    with jax.default_matmul_precision("highest"):
        found = products(decode(experiment(model__matmul_precision="high")))
    assert set(found) == {(("f32", "f32"), "HIGH")}


def test_in_other_code_the_model_follows_that_codes_setting():
    config = experiment()
    model = jax.jit(Transformer(config.model).apply)
    for setting, asked in ((None, "DEFAULT"), ("high", "HIGH")):
        with jax.default_matmul_precision(setting):
            found = products(model.trace({"params": params_of(config)}, TOKENS, TOKENS))
        assert set(found) == {(("f32", "f32"), asked)}
