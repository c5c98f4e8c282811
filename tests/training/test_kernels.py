"""The check of fused attention at the start of a run. JAX's own formula is called in the place of cuDNN's kernels."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import pytest

from tests.support.small_models import small
from tests.support.small_runs import experiment
from transformer_jax.model import fused
from transformer_jax.training import kernels

CUDNN = {"d_k": 8, "d_v": 8, "attention_implementation": "cudnn", "dtype": "bfloat16", "num_key_value_heads": 1}
dot_product_attention = jax.nn.dot_product_attention


@pytest.mark.parametrize("fault", [None, "value", "gradient", pytest.param("nan", marks=pytest.mark.drill), "error"])
def test_a_kernel_that_is_wrong_or_fails_is_not_used(monkeypatch, caplog, fault):
    """And a warning says so."""

    @jax.custom_vjp
    def wrong(x):
        return 1.2 * x if fault == "value" else x

    factor = {"gradient": 1.2, "nan": jnp.nan}.get(fault, 1.0)
    wrong.defvjp(lambda x: (wrong(x), None), lambda _, change: (factor * change,))

    def attention(*arrays, **options):
        if fault == "error":
            raise RuntimeError("No execution plans support the graph.")
        output = dot_product_attention(*arrays, **options)
        return wrong(output) if "key_value_seq_lengths" in options else output

    fused.warn_once.cache_clear()
    monkeypatch.setattr(jax.nn, "dot_product_attention", attention)
    monkeypatch.setattr(fused, "CUDNN", "xla")
    monkeypatch.setattr(fused, "resolved", lambda config, *_, **__: config)
    config = small(**CUDNN)
    assert (kernels.checked(config, jax.devices()[0]) is config) == (fault is None)
    assert bool(caplog.records) == (fault is not None)


def test_fused_attention_that_fails_its_check_is_not_used(monkeypatch):
    config = experiment(model__attention_implementation="auto")
    monkeypatch.setattr(kernels, "checked", lambda model, device: model)
    assert kernels.with_checked_attention(config) == config
    plain = dataclasses.replace(config.model, attention_implementation="plain")
    monkeypatch.setattr(kernels, "checked", lambda model, device: plain)
    assert kernels.with_checked_attention(config).model == plain


def test_fused_attention_that_fails_in_another_process_is_not_used_here(monkeypatch):
    config = experiment(model__attention_implementation="auto")
    monkeypatch.setattr(kernels, "checked", lambda model, device: model)
    others = types.SimpleNamespace(gather=lambda own: [own, "plain"])
    monkeypatch.setattr(kernels, "processes", lambda: others)
    assert kernels.with_checked_attention(config).model.attention_implementation == "plain"
