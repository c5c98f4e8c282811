"""attention_implementation: equal to the plain formula, or a fall back to it, said once; chosen by the mesh's devices.

cuDNN's kernels run on GPUs alone. Here JAX's own formula is called in their place, with the same arguments.
"""

import dataclasses
import functools
import logging
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.model.test_precision import PROGRAMS
from tests.structure import mentions
from tests.support.small_models import SOURCE, TARGET, assert_close, built, small
from tests.support.small_runs import Trainer, batches, experiment, trainer, worst_difference
from transformer_jax import AttentionInputs, ModelConfig, MultiHeadAttention, Transformer, causal_mask
from transformer_jax.model import fused
from transformer_jax.model.attention import attention_weights, weighted_values
from transformer_jax.model_config import PartsConfig

EQUAL_WIDTHS = {"d_k": 8, "d_v": 8}
CUDNN = {**EQUAL_WIDTHS, "attention_implementation": "cudnn", "dtype": "bfloat16"}
SEGMENTS = np.array([[1, 1, 2, 2, 2], [1, 1, 1, 0, 0]])
dot_product_attention = jax.nn.dot_product_attention
CPU = SimpleNamespace(platform="cpu", device_kind="cpu")
TPU = SimpleNamespace(platform="tpu", device_kind="TPU v5 lite")
H100 = SimpleNamespace(platform="gpu", device_kind="NVIDIA H100", compute_capability="9.0")
T4 = SimpleNamespace(platform="gpu", device_kind="Tesla T4", compute_capability="7.5")
MI300 = SimpleNamespace(platform="gpu", device_kind="AMD Instinct MI300X", compute_capability="gfx942")


@pytest.fixture(autouse=True)
def nothing_said_yet():
    fused.warn_once.cache_clear()


@pytest.fixture
def kernels(monkeypatch):
    """JAX's formula in the place of cuDNN's kernels. The arguments of each call are appended to the list."""
    calls = []

    def attention(*arrays, **options):
        calls.append(options)
        return dot_product_attention(*arrays, **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", attention)
    monkeypatch.setattr(fused, "CUDNN", "xla")
    monkeypatch.setattr(fused, "is_installed", lambda: True)
    return calls


@pytest.fixture
def kernels_on_cpus(kernels, monkeypatch):
    """Programs for CPUs have them too, in float32."""
    changed = {"attention_implementation": "cudnn"}
    monkeypatch.setattr(fused, "resolved", lambda config, *_, **__: dataclasses.replace(config, **changed))
    monkeypatch.setattr(fused, "unsupported", lambda *_: None)
    return kernels


def said_by(caplog, run, times=2):
    with caplog.at_level(logging.WARNING, "transformer_jax"):
        for _ in range(times):
            jax.eval_shape(run)
    return [record.getMessage() for record in caplog.records]


# Values and gradients.


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"positions": "rotary"}, marks=pytest.mark.slow),
        {"positions": "t5", "num_key_value_heads": 1, "qk_norm": True, "mup_base_d_model": 4},
    ],
    ids=str,
)
def test_values_and_gradients_equal_the_plain_ones_padding_rows_too(changes, kernels):
    """Within 1e-5 of the largest entry; the second pair is empty, so that whole rows attend to nothing."""
    plain, variables = built(**changes, **EQUAL_WIDTHS)
    model = Transformer(small(attention_implementation="jax", **changes, **EQUAL_WIDTHS))
    source, target = SOURCE * [[1], [0]], TARGET * [[1], [0]]

    def run(model):
        logits, pull_back = jax.vjp(lambda variables: model.apply(variables, source, target), variables)
        return logits, pull_back(jnp.asarray(np.cos(logits)))[0]

    (logits, gradients), (wanted, wanted_gradients) = run(model), run(plain)
    assert len(kernels) == 3, "else the plain formula is compared with itself"
    assert_close(logits, wanted)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(jax.device_get(wanted_gradients)))
    for ours, theirs in zip(jax.tree.leaves(gradients), jax.tree.leaves(wanted_gradients), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize(
    ("queries", "lengths", "causal", "groups"),
    [
        (6, (6, 4, 1), True, 2),
        (5, (5, 3, 0), True, 1),
        (6, (4, 6, 2), False, 2),
        (3, (7, 1, 0), False, 2),
        (1, (7,), False, 2),
    ],
    ids=["causal", "odd length, an empty row, multi-query", "encoder", "cross-attention", "one row"],
)
def test_lengths_and_a_flag_equal_the_mask_in_value_and_gradient(kernels, queries, lengths, causal, groups):
    """In queries at padding as well; an empty row is finite, and without a gradient it has none to give."""
    rows, keys = len(lengths), queries if causal else max(lengths)
    random = np.random.default_rng(0)
    shapes = (rows, queries, 2, 8), (rows, keys, groups, 8), (rows, keys, groups, 8), (rows, queries, 2, 8)
    q, k, v, cotangent = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes)
    counts_B111 = np.array(lengths)[:, None, None, None] > 0
    mask = jnp.arange(keys)[None, None, None] < np.array(lengths)[:, None, None, None]
    mask = mask & causal_mask(keys) if causal else mask

    @functools.partial(jax.jit, static_argnums=0)
    def run(attention):
        value, pull_back = jax.vjp(attention, q, k, v)
        return value, *pull_back(cotangent * counts_B111)

    described = (jnp.array(lengths), causal)
    ours = run(lambda q, k, v: fused.fused_attention("cudnn", q, k, v, None, None, None, *described))
    wanted = run(lambda q, k, v: weighted_values(attention_weights(q, k, mask), v))
    assert len(kernels) == 1 and kernels[0]["is_causal"] == causal and np.isfinite(ours[0]).all()
    for array, right in zip(ours, wanted, strict=True):
        assert_close(array * counts_B111, right)


def test_all_three_attentions_are_kernels_without_a_dense_mask(kernels):
    model, (plain, variables) = Transformer(small(**CUDNN)), built(**EQUAL_WIDTHS, dtype="bfloat16")
    ours, wanted = (jax.jit(each.apply)(variables, SOURCE, TARGET) for each in (model, plain))
    assert_close(ours, wanted, within=0.02)
    assert [call["is_causal"] for call in kernels] == [False, True, False]
    assert all("key_value_seq_lengths" in call and call.get("mask") is None for call in kernels)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_that_may_attend_to_nothing_is_zero(dtype):
    q, k, v = (jnp.asarray(np.random.default_rng(i).normal(size=(2, 3, 2, 4)), dtype) for i in range(3))
    mask = np.ones((2, 1, 3, 3), bool)
    mask[1, 0, 2] = False
    output = np.asarray(fused.fused_attention("jax", q, k, v, jnp.asarray(mask), None, None, None, False))
    assert (output[1, 2] == 0).all() and (output[1, 1] != 0).all()


# The check at the start of a run.


@pytest.mark.parametrize("groups", [None, 1])
def test_a_kernel_that_is_right_is_kept(kernels_on_cpus, caplog, groups):
    config = small(**CUDNN, num_key_value_heads=groups)
    assert fused.checked(config, jax.devices()[0]) is config
    assert len(kernels_on_cpus) == 1 and not caplog.records


@pytest.mark.parametrize("fault", ["value", "gradient", "error"])
def test_a_kernel_that_is_wrong_or_fails_is_not_used(kernels_on_cpus, monkeypatch, caplog, fault):
    """And one warning says so."""

    @jax.custom_vjp
    def wrong(x):
        return 1.2 * x if fault == "value" else x

    wrong.defvjp(lambda x: (wrong(x), None), lambda _, change: (1.2 * change if fault == "gradient" else change,))

    def attention(*arrays, **options):
        if fault == "error":
            raise RuntimeError("No execution plans support the graph.")
        return wrong(dot_product_attention(*arrays, **options))

    monkeypatch.setattr(jax.nn, "dot_product_attention", attention)
    for _ in range(2):
        assert fused.checked(small(**CUDNN), jax.devices()[0]).attention_implementation == "plain"
    assert len(caplog.records) == 1


def test_without_kernels_nothing_is_checked(kernels):
    for changes, device in (({"dtype": "float32", "attention_implementation": "auto"}, H100), ({}, CPU)):
        config = small(**{**CUDNN, **changes})
        assert fused.checked(config, device) is config
    assert not kernels


# Meshes.


def test_a_step_with_kernels_equals_the_plain_one_where_devices_divide_the_rows(kernels_on_cpus):
    sgd = {"optimizer__name": "sgd", "optimizer__learning_rate": 0.3}
    wanted = trainer(**sgd).train(batches(2))
    run = Trainer(experiment(**sgd, mesh__data=8, model__attention_implementation="cudnn"), 8)
    assert worst_difference(run.train(batches(2)), wanted) < (1e-5,)
    assert kernels_on_cpus


def test_runs_that_train_together_have_lengths_for_the_rows_of_each(kernels, monkeypatch):
    """`vmap` merges runs and rows in the kernel, also where the runs share their batch."""

    @jax.custom_batching.custom_vmap
    def kernel(q_BTHK, queries_B, keys_B):
        return q_BTHK

    @kernel.def_vmap
    def merged(size, is_batched, q_RBTHK, *others):
        assert all(is_batched)
        return q_RBTHK, True

    def attention(q_BTHK, *_, query_seq_lengths, key_value_seq_lengths, **__):
        return kernel(q_BTHK, query_seq_lengths, key_value_seq_lengths)

    monkeypatch.setattr(jax.nn, "dot_product_attention", attention)
    described, heads_RBTHK = (jnp.array([4, 3, 2]), True), jnp.ones((2, 3, 4, 2, 8))
    output = jax.vmap(lambda q: fused.fused_attention("cudnn", q, q, q, None, None, None, *described))(heads_RBTHK)
    assert output.shape == heads_RBTHK.shape


# Fall backs.


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        ({"d_k": 16}, {}, "it needs d_k = d_v, here 16 and 8"),
        ({"positions": "relative"}, {}, "the attention weights themselves are needed"),
        ({"attention_softcap": 50.0}, {}, "jax.nn.dot_product_attention has no soft-capping of the scores"),
        ({}, {"mutable": ["intermediates"]}, "the attention weights themselves are needed"),
        (
            {"attention_dropout": 0.1},
            {"deterministic": False, "rngs": {"dropout": jax.random.key(0)}},
            "the attention weights themselves are needed",
        ),
        ({**CUDNN, "dtype": "float32"}, {}, "cuDNN computes in bfloat16 or float16, here is float32"),
        ({**CUDNN, "d_k": 4, "d_v": 4}, {}, "cuDNN needs a d_k that is a multiple of 8 and at most 128, here is 4"),
        ({**CUDNN, "positions": "alibi"}, {}, "the position encoding adds to the scores"),
        (
            CUDNN,
            {"inputs": AttentionInputs(source_segments=SEGMENTS, target_segments=SEGMENTS[:, :4])},
            "the mask is not only of padding and later tokens",
        ),
        (
            CUDNN,
            {"inputs": AttentionInputs(*[np.ones((1, 1, 1, 1), bool)] * 3)},
            "the mask is not only of padding and later tokens",
        ),
    ],
    ids=[
        "d_k != d_v",
        "relative",
        "capped",
        "weights shown",
        "dropout",
        "float32",
        "width",
        "bias",
        "packed",
        "given mask",
    ],
)
def test_where_it_cannot_run_it_falls_back_and_says_why_once(caplog, kernels, changes, options, reason):
    config = small(**{**EQUAL_WIDTHS, "attention_implementation": "jax", **changes})
    _, variables = built(**{**EQUAL_WIDTHS, **changes, "attention_implementation": "plain"})
    (said,) = said_by(caplog, lambda: Transformer(config).apply(variables, SOURCE, TARGET, **options))
    assert said.startswith(f"attention falls back from {config.attention_implementation!r} to 'plain': {reason}")


class Doubled(MultiHeadAttention):
    """Custom attention that uses its mask as an array."""

    def attend(self, q_BTHK, k_BSHK, v_BSHV, context):
        return super().attend(q_BTHK, k_BSHK, v_BSHV, context.replace(mask=context.mask & True)) * 2


def test_custom_attention_is_given_masks_as_arrays_and_has_kernels(caplog, kernels):
    config, (_, variables) = (
        small(**CUDNN, parts=PartsConfig(attention=Doubled)),
        built(**EQUAL_WIDTHS, dtype="bfloat16"),
    )
    assert said_by(caplog, lambda: Transformer(config).apply(variables, SOURCE, TARGET)) == []
    assert kernels


def test_without_cudnn_a_model_falls_back(caplog, monkeypatch):
    monkeypatch.setattr(fused, "is_installed", lambda: False)
    _, variables = built(**EQUAL_WIDTHS, dtype="bfloat16")
    (said,) = said_by(caplog, lambda: Transformer(small(**CUDNN)).apply(variables, SOURCE, TARGET))
    assert said.startswith("attention falls back from 'cudnn' to 'plain': cuDNN is not installed")


# Who decides.


@pytest.mark.parametrize(
    ("wanted", "dtype", "device", "is_divided", "chosen"),
    [
        ("auto", "bfloat16", H100, True, "cudnn"),
        ("auto", "bfloat16", H100, False, "plain"),
        ("auto", "float32", H100, True, "plain"),
        ("auto", "bfloat16", T4, True, "plain"),
        ("auto", "bfloat16", MI300, True, "plain"),
        ("auto", "bfloat16", TPU, True, "plain"),
        ("auto", "bfloat16", CPU, True, "plain"),
        ("cudnn", "bfloat16", H100, True, "cudnn"),
        ("plain", "bfloat16", H100, True, "plain"),
        ("jax", "bfloat16", H100, True, "jax"),
    ],
)
def test_the_devices_of_the_mesh_decide(caplog, wanted, dtype, device, is_divided, chosen):
    config = ModelConfig(attention_implementation=wanted, dtype=dtype)
    assert fused.resolved(config, device, is_divided).attention_implementation == chosen
    assert not caplog.records


@pytest.mark.parametrize(
    ("device", "is_divided", "reason"),
    [(TPU, True, "need an NVIDIA GPU, Ampere or later, here is a TPU v5 lite"), (H100, False, "divided by XLA")],
)
def test_what_was_asked_for_and_cannot_run_there_is_said_once(caplog, device, is_divided, reason):
    config = ModelConfig(attention_implementation="cudnn", dtype="bfloat16")
    for _ in range(2):
        assert fused.resolved(config, device, is_divided).attention_implementation == "plain"
    (said,) = (record.getMessage() for record in caplog.records)
    assert reason in said


def test_a_model_used_alone_is_plain_by_default_and_says_nothing(caplog, kernels):
    _, variables = built(**EQUAL_WIDTHS, dtype="bfloat16")
    config = small(**EQUAL_WIDTHS, dtype="bfloat16")
    assert config.attention_implementation == "auto"
    assert said_by(caplog, lambda: Transformer(config).apply(variables, SOURCE, TARGET)) == [] == kernels


def test_parameters_are_initialized_without_kernels(kernels):
    """Their values do not matter there, and the program that initializes is not resolved for its devices."""
    jax.eval_shape(Transformer(small(**CUDNN)).init, jax.random.key(0), SOURCE, TARGET)
    assert kernels == []


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_no_program_asks_for_the_hosts_backend_while_it_is_traced(program, monkeypatch):
    for name in ("default_backend", "devices", "local_devices", "device_count", "local_device_count"):
        monkeypatch.setattr(jax, name, functools.partial(asked, name, getattr(jax, name)))
    program(experiment(model__dtype="bfloat16"))


def asked(name, ask, *arguments):
    assert not isinstance(jnp.zeros(()), jax.core.Tracer), f"jax.{name}() was called in traced code"
    return ask(*arguments)


def test_the_model_the_update_and_the_search_do_not_know_the_host():
    asking = mentions("default_backend", "local_devices", "device_count", "get_backend", "xla_bridge")
    assert [name for name in asking if name.partition(".")[0] in ("model", "update", "search", "translation")] == [
        "translation.load"  # where the mesh is made
    ]
