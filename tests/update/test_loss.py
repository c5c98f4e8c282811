"""The loss (section 5.4): textbook values, sums, and the sliced form against the plain one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.update import loss
from transformer_jax.update.loss import label_smoothed_cross_entropy, output_loss, smoothed_targets, token_sums

TARGETS = np.array([[2, 0, 1], [4, 4, 3]])
WEIGHTS = np.array([[1, 1, 0], [1, 0, 1]])
both_spreads = pytest.mark.parametrize("spread", ["all", "others"])


def logits_of(seed=0, classes=5):
    return jax.random.normal(jax.random.key(seed), (*TARGETS.shape, classes)) * 3


def test_the_textbooks_distribution():
    """K = 5 classes and epsilon = 0.2: 0.84 for the right one and 0.04 for the others."""
    np.testing.assert_allclose(smoothed_targets(jnp.array([3]), 5, 0.2)[0], [0.04, 0.04, 0.04, 0.84, 0.04], rtol=1e-6)
    others = smoothed_targets(jnp.array([3]), 5, 0.2, spread="others")[0]
    np.testing.assert_allclose(others, [0.05, 0.05, 0.05, 0.8, 0.05], rtol=1e-6)


@both_spreads
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.2])
def test_is_the_cross_entropy_against_that_distribution_summed(spread, epsilon):
    logits = logits_of()
    written_out = -jnp.sum(smoothed_targets(TARGETS, 5, epsilon, spread) * jax.nn.log_softmax(logits), axis=-1)
    loss_sum, weight_sum = label_smoothed_cross_entropy(logits, TARGETS, WEIGHTS, epsilon, spread)
    np.testing.assert_allclose(loss_sum, np.sum(written_out * WEIGHTS), rtol=1e-6)
    assert weight_sum == WEIGHTS.sum()


def test_padding_has_no_part_in_it():
    noisy = logits_of() + 100.0 * (1 - WEIGHTS)[..., None] * logits_of(seed=1)
    for ours, theirs in zip(
        *(token_sums(logits, TARGETS, WEIGHTS, 0.1) for logits in (logits_of(), noisy)), strict=True
    ):
        assert ours == theirs
    gradient = jax.grad(lambda logits: token_sums(logits, TARGETS, WEIGHTS, 0.1).loss)(logits_of())
    assert not np.any(gradient[WEIGHTS == 0])


def test_perplexity_is_told_without_smoothing():
    smoothed, plain = (token_sums(logits_of(), TARGETS, WEIGHTS, epsilon) for epsilon in (0.3, 0.0))
    assert smoothed.nll == plain.nll == pytest.approx(float(plain.loss))
    assert smoothed.loss != plain.loss


def test_counts_the_tokens_that_were_the_likeliest():
    logits = 9.0 * jax.nn.one_hot(jnp.array([[2, 3, 1], [4, 4, 3]]), 5)  # one wrong, two right ones are padding
    assert token_sums(logits, TARGETS, WEIGHTS, 0.1).right == 3


def operands(dtype, length=12, classes=50):
    keys = jax.random.split(jax.random.key(0), 4)
    return (
        jax.random.normal(keys[0], (3, length, 8)).astype(dtype),
        jax.random.normal(keys[1], (classes, 8)),
        jax.random.randint(keys[2], (3, length), 0, classes),
        jax.random.bernoulli(keys[3], 0.8, (3, length)),
    )


def plainly(features_BTD, table_ND, targets, weights, epsilon, spread):
    """As anybody would write it: all logits at once, and automatic differentiation, all in float32."""
    logits = features_BTD.astype(jnp.float32) @ table_ND.astype(features_BTD.dtype).astype(jnp.float32).T
    return token_sums(logits, targets, weights, epsilon, spread)


@both_spreads
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
# 12 tokens of 3 rows and 50 classes in one slice, in five (12 is no multiple of 5), and in twelve.
@pytest.mark.parametrize("held", [10**9, 12 * 3 * 50 // 5, 1], ids=["whole", "uneven slices", "one token a slice"])
def test_sliced_equals_plain_in_value_and_gradient(dtype, spread, held, monkeypatch):
    monkeypatch.setattr(loss, "HELD_LOGITS", held)
    features, table, targets, weights = operands(dtype)

    def value_and_gradients(function):
        def scaled(features, table):
            sums = function(features, table, targets, weights, 0.1, spread)
            return 0.5 * sums.loss, sums

        return jax.value_and_grad(scaled, argnums=(0, 1), has_aux=True)(features, table)

    (_, ours), our_gradients = value_and_gradients(output_loss)
    (_, theirs), their_gradients = value_and_gradients(plainly)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    within = 1e-5 if dtype == "float32" else 1e-2  # bfloat16 has 8 bits: 2^-8 is 4e-3
    for a, b in zip(our_gradients, their_gradients, strict=True):
        assert a.dtype == b.dtype
        a, b = (np.asarray(x, np.float32) for x in (a, b))
        np.testing.assert_allclose(a, b, atol=within * np.abs(b).max())


def test_the_sums_are_the_same_without_a_gradient():
    features, table, targets, weights = operands("float32")
    alone = output_loss(features, table, targets, weights, 0.1)
    _, _, beside = jax.vjp(lambda f: (output_loss(f, table, targets, weights, 0.1),) * 2, features, has_aux=True)
    assert [float(x) for x in alone] == [float(x) for x in beside]


@pytest.mark.parametrize("differentiated", [True, False])
def test_holds_a_slice_of_the_logits_and_not_all(differentiated, monkeypatch):
    monkeypatch.setattr(loss, "HELD_LOGITS", 2**20)
    length, classes = 1024, 16_384
    shapes = (
        jax.ShapeDtypeStruct((2, length, 16), jnp.float32),
        jax.ShapeDtypeStruct((classes, 16), jnp.float32),
        jax.ShapeDtypeStruct((2, length), jnp.int32),
        jax.ShapeDtypeStruct((2, length), jnp.int32),
    )

    def needed(function):
        of = functools.partial(function, epsilon=0.1, spread="all")
        run = jax.grad(lambda *args: of(*args).loss, argnums=(0, 1)) if differentiated else of
        return jax.jit(run).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    logits = 4 * 2 * length * classes
    assert needed(plainly) >= logits
    assert needed(output_loss) < logits / 8
