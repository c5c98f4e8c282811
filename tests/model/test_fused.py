"""attention_implementation: equal to the plain formula, or a fall back to it, said once; chosen by the mesh's devices.

cuDNN's kernels run on GPUs alone. Here JAX's own formula is called in their place, with the same arguments.
"""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.small_models import SOURCE, TARGET, assert_close, built, small
from tests.support.small_runs import Trainer, batches, experiment, trainer, worst_difference
from transformer_jax import AttentionInputs, Context, MultiHeadAttention, Transformer, causal_mask, padding_mask
from transformer_jax.model import fused
from transformer_jax.model.attention import attention_weights
from transformer_jax.model.masks import near_mask
from transformer_jax.model.products import weighted_values
from transformer_jax.training import compiled
from transformer_jax.update import sharding

EQUAL_WIDTHS = {"d_k": 8, "d_v": 8}
CUDNN = {**EQUAL_WIDTHS, "attention_implementation": "cudnn", "dtype": "bfloat16"}
SEGMENTS = np.array([[1, 1, 2, 2, 2], [1, 1, 1, 0, 0]])
dot_product_attention = jax.nn.dot_product_attention
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
        calls.append(options | {"heads": arrays[0].shape[2]})
        return dot_product_attention(*arrays, **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", attention)
    monkeypatch.setattr(fused, "CUDNN", "xla")
    return calls


@pytest.fixture
def kernels_on_cpus(kernels, monkeypatch):
    """Programs for CPUs have them too, in float32."""
    monkeypatch.setattr(fused, "resolved", lambda config, *_, **__: config)
    return kernels


# Values and gradients.


@pytest.mark.parametrize(
    ("queries", "lengths", "causal", "groups", "window"),
    [
        (5, (5, 3, 0), True, 1, None),
        (5, (5, 3, 0), True, 1, 2),
        (6, (4, 6, 2), False, 2, None),
        (3, (7, 1, 0), False, 2, None),
    ],
    ids=["decoder, an empty row, multi-query", "decoder, a window", "encoder", "cross-attention"],
)
def test_lengths_and_a_flag_equal_the_mask_in_value_and_gradient(kernels, queries, lengths, causal, groups, window):
    """In queries at padding as well; an empty row is finite, and without a gradient it has none to give."""
    rows, keys = len(lengths), queries if causal else max(lengths)
    random = np.random.default_rng(0)
    shapes = (rows, queries, 2, 8), (rows, keys, groups, 8), (rows, keys, groups, 8), (rows, queries, 2, 8)
    q, k, v, cotangent = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes)
    counts_B111 = np.array(lengths)[:, None, None, None] > 0
    mask = jnp.arange(keys)[None, None, None] < np.array(lengths)[:, None, None, None]
    mask = mask & causal_mask(keys) if causal else mask
    if window is not None:
        mask = mask & near_mask(jnp.arange(keys)[None] - jnp.arange(keys)[:, None], window, causal)[None, None]

    @functools.partial(jax.jit, static_argnums=0)
    def run(attention):
        value, pull_back = jax.vjp(attention, q, k, v)
        return value, *pull_back(cotangent * counts_B111)

    options = {"lengths_B": jnp.array(lengths), "is_causal": causal, "window": window}
    ours = run(lambda q, k, v: fused.fused_attention(q, k, v, **options))
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


def test_padding_that_is_not_at_the_end_gives_nan_instead_of_other_numbers(kernels):
    """An explicit mask is computed by the formula."""
    model, (plain, variables) = Transformer(small(**CUDNN)), built(**EQUAL_WIDTHS, dtype="bfloat16")
    source = np.array([[0, 0, 3, 4, 5], [8, 9, 10, 0, 0]])
    apply = jax.jit(model.apply)
    left, right = apply(variables, source, TARGET)
    assert jnp.isnan(left).all() and jnp.isfinite(right).all()
    target = np.array([[11, 0, 13, 14], [15, 16, 17, 0]])
    assert [bool(jnp.isnan(row).any()) for row in apply(variables, SOURCE, target)] == [True, False]
    inputs = AttentionInputs(source_mask=padding_mask(source), cross_mask=padding_mask(source))
    assert_close(apply(variables, source, TARGET, inputs), jax.jit(plain.apply)(variables, source, TARGET), within=0.02)


# Meshes.


def test_a_step_with_kernels_equals_the_plain_one_where_devices_divide_rows_and_heads(kernels_on_cpus):
    sgd = {"optimizer__name": "sgd", "optimizer__learning_rate": 0.3}
    wanted = trainer(**sgd, model__attention_implementation="plain").train(batches(2))
    assert not kernels_on_cpus
    mesh = {"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2}
    run = Trainer(experiment(**sgd, **mesh, model__attention_implementation="cudnn"), 8)
    assert worst_difference(run.train(batches(2)), wanted) < (1e-5,)
    assert {call["heads"] for call in kernels_on_cpus} == {2}, "a kernel for the heads of all devices"


def test_kernels_are_used_where_a_device_has_whole_heads_of_its_own_rows(monkeypatch):
    found = []
    monkeypatch.setattr(
        fused, "resolved", lambda config, device, has_whole_heads: found.append(has_whole_heads) or config
    )
    for data, tensor, heads in ((8, 1, 1), (4, 2, 2), (4, 2, 1), (1, 8, 8)):
        config = experiment(mesh__data=data, mesh__tensor=tensor, model__num_key_value_heads=heads, model__num_heads=8)
        compiled.decided_for(config, sharding.make_mesh(config.mesh), is_training=True)
    assert found == [True, True, False, False]


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
    lengths_B, heads_RBTHK = jnp.array([4, 3, 2]), jnp.ones((2, 3, 4, 2, 8))
    output = jax.vmap(lambda q: fused.fused_attention(q, q, q, lengths_B=lengths_B))(heads_RBTHK)
    assert output.shape == heads_RBTHK.shape


# Fall backs.


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"positions": "relative"}, {}),  # these need the weights
        ({}, {"mutable": ["intermediates"]}),
        ({"attention_dropout": 0.1}, {"deterministic": False, "rngs": {"dropout": jax.random.key(0)}}),
        ({"positions": "alibi"}, {}),  # a bias
        ({}, {"inputs": AttentionInputs(source_segments=SEGMENTS, target_segments=SEGMENTS[:, :4])}),
        ({}, {"inputs": AttentionInputs(*[np.ones((1, 1, 1, 1), bool)] * 3)}),
    ],
)
def test_what_kernels_do_not_compute_is_plain(kernels, changes, options):
    model, (_, variables) = Transformer(small(**CUDNN, **changes)), built(**EQUAL_WIDTHS, dtype="bfloat16", **changes)
    jax.eval_shape(lambda: model.apply(variables, SOURCE, TARGET, **options))
    # Cross-attention has neither positions nor, of these, a mask.
    assert len(kernels) == (1 if "positions" in changes else 0)


@pytest.mark.parametrize(
    ("shape", "is_causal"),
    [((1, 1, 3, 3), False), ((1, 2, 1, 3), False), ((1, 2, 1, 3), True), ((1, 1, 1, 3), False), ((1, 1, 1, 3), True)],
)
def test_a_mask_with_own_keys_for_a_query_or_a_head_is_not_described_by_lengths(kernels, shape, is_causal):
    x_BTD = jax.random.normal(jax.random.key(0), (2, 3, 8))
    plain, fused_one = MultiHeadAttention(2), MultiHeadAttention(2, implementation="cudnn")
    variables, lengths_B = plain.init(jax.random.key(1), x_BTD, x_BTD), jnp.array([2, 3])
    own = np.tril(np.ones((3, 3), bool)) if shape[2] == 3 else np.ones((2, 1, 3), bool)[: shape[1]]
    own = own & ~((np.arange(shape[1]) == 1)[:, None, None] & (np.arange(3) == 0))  # the second head lacks a key
    mask = (np.arange(3)[None] < np.array([[2], [3]]))[:, None, None] & np.broadcast_to(own, shape)
    context = Context(mask, lengths_B=lengths_B, is_causal=is_causal)
    ours, wanted = (each.apply(variables, x_BTD, x_BTD, context) for each in (fused_one, plain))
    assert_close(ours, wanted)
    assert len(kernels) == (shape == (1, 1, 1, 3))


# Who decides.


@pytest.mark.parametrize(
    ("changes", "device", "is_divided", "chosen", "reason"),
    [
        ({"attention_implementation": "auto"}, H100, True, "cudnn", None),
        ({"attention_implementation": "auto"}, H100, False, "plain", None),
        ({"attention_implementation": "auto"}, T4, True, "plain", None),
        ({"attention_implementation": "auto"}, MI300, True, "plain", None),
        ({"attention_implementation": "plain"}, H100, True, "plain", None),
        ({}, H100, True, "cudnn", None),
        ({}, H100, False, "plain", "rows"),
        ({}, TPU, True, "plain", "GPU"),
        ({"d_k": 16}, H100, True, "plain", "d_k = d_v"),
        ({"attention_softcap": 50.0}, H100, True, "plain", "softcap"),
    ],
)
def test_the_config_and_the_devices_of_the_mesh_decide_and_a_wish_refused_is_told_once(
    caplog, changes, device, is_divided, chosen, reason
):
    for _ in range(2):
        assert fused.resolved(small(**{**CUDNN, **changes}), device, is_divided).attention_implementation == chosen
    assert [reason in record.getMessage() for record in caplog.records] == [True] * (reason is not None)
