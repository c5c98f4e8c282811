"""attention_implementation = 'jax' and 'cudnn': equal to the plain formula, or a fall back to it, said once."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.small_models import SOURCE, TARGET, assert_close, built, small
from transformer_jax import Transformer
from transformer_jax.model import fused

EQUAL_WIDTHS = {"d_k": 4, "d_v": 4}


@pytest.fixture(autouse=True)
def nothing_said_yet():
    fused.warn_once.cache_clear()


def test_the_fused_path_is_taken_by_all_three_attentions(monkeypatch):
    """Else the comparison below would compare the plain path with itself."""
    calls = []
    monkeypatch.setattr(fused, "fused_attention", lambda *arguments: calls.append(arguments[0]) or arguments[3])
    model = Transformer(small(attention_implementation="jax", **EQUAL_WIDTHS))
    same_length = SOURCE[:, :4]  # the stand-in returns the values themselves
    jax.eval_shape(model.init, jax.random.key(0), same_length, TARGET)
    assert calls == ["jax"] * 3


@pytest.mark.parametrize("positions", [pytest.param("rotary", marks=pytest.mark.slow), "t5"])
def test_values_and_gradients_equal_the_plain_ones_padding_rows_too(positions):
    """Within 1e-5 of the largest entry; the second pair is empty, so that whole rows attend to nothing."""
    plain, variables = built(positions=positions, **EQUAL_WIDTHS)
    model = Transformer(small(positions=positions, attention_implementation="jax", **EQUAL_WIDTHS))
    source, target = SOURCE * [[1], [0]], TARGET * [[1], [0]]

    def run(model):
        logits, pull_back = jax.vjp(lambda variables: model.apply(variables, source, target), variables)
        return logits, pull_back(jnp.asarray(np.cos(logits)))[0]

    (logits, gradients), (wanted, wanted_gradients) = run(model), run(plain)
    assert_close(logits, wanted)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(jax.device_get(wanted_gradients)))
    for ours, theirs in zip(jax.tree.leaves(gradients), jax.tree.leaves(wanted_gradients), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_that_may_attend_to_nothing_is_zero(dtype):
    q, k, v = (jnp.asarray(np.random.default_rng(i).normal(size=(2, 3, 2, 4)), dtype) for i in range(3))
    mask = np.ones((2, 1, 3, 3), bool)
    mask[1, 0, 2] = False
    output = np.asarray(fused.fused_attention("jax", q, k, v, jnp.asarray(mask), None))
    assert (output[1, 2] == 0).all() and (output[1, 1] != 0).all()


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        ({"d_k": 6}, {}, "it needs d_k = d_v, here 6 and 4"),
        ({"attention_implementation": "cudnn", "dtype": "bfloat16"}, {}, "cuDNN runs on a GPU, here is a cpu"),
        ({"positions": "relative"}, {}, "the attention weights themselves are needed"),
        ({}, {"mutable": ["intermediates"]}, "the attention weights themselves are needed"),
        (
            {"attention_dropout": 0.1},
            {"deterministic": False, "rngs": {"dropout": jax.random.key(0)}},
            "the attention weights themselves are needed",
        ),
    ],
    ids=["d_k != d_v", "no GPU", "relative", "weights shown", "dropout"],
)
def test_where_it_cannot_run_it_falls_back_and_says_why_once(caplog, changes, options, reason):
    if jax.default_backend() != "cpu" and "cpu" in reason:
        pytest.skip("there is a GPU")
    config = small(**{**EQUAL_WIDTHS, "attention_implementation": "jax", **changes})
    _, variables = built(**{**EQUAL_WIDTHS, **changes, "attention_implementation": "plain"})
    with caplog.at_level(logging.WARNING, "transformer_jax"):
        for _ in range(2):
            jax.eval_shape(lambda: Transformer(config).apply(variables, SOURCE, TARGET, **options))
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"attention falls back from {config.attention_implementation!r} to 'plain': {reason}")


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ((2, 4, 2, 8), "float32", "cuDNN computes in bfloat16 or float16, here is float32"),
        ((2, 3, 2, 8), "bfloat16", "cuDNN needs even lengths, here are 3 and 3"),
        ((2, 4, 2, 8), "bfloat16", None),
    ],
)
def test_what_cudnn_cannot_do_is_known_without_a_gpu(monkeypatch, shape, dtype, reason):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    array = jnp.zeros(shape, dtype)
    assert fused.unsupported("cudnn", array, array, array, weights_needed=False) == reason
