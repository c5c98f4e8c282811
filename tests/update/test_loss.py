"""The loss (section 5.4): textbook values, sums, and the sliced form against the plain one."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from transformer_jax.config import TrainConfig
from transformer_jax.errors import BadInput
from transformer_jax.update.loss import (
    LogitLimits,
    Objective,
    check_loss,
    label_smoothed_cross_entropy,
    sliced_loss,
    smoothed_targets,
)

TARGETS = np.array([[2, 0, 1], [4, 4, 3]])
WEIGHTS = np.array([[1, 1, 0], [1, 0, 1]])
# Compiled: one by one the operations take longer.
token_sums = jax.jit(lambda *operands: operands[3].of_logits(*operands[:3]), static_argnums=3)


def logits_of(seed=0, classes=5):
    return jnp.asarray(np.random.default_rng(seed).normal(0, 3, (*TARGETS.shape, classes)), jnp.float32)


def test_the_textbooks_distribution():
    """K = 5 classes and epsilon = 0.2: 0.84 for the right one and 0.04 for the others."""
    np.testing.assert_allclose(smoothed_targets(jnp.array([3]), 5, 0.2)[0], [0.04, 0.04, 0.04, 0.84, 0.04], rtol=1e-6)
    others = smoothed_targets(jnp.array([3]), 5, 0.2, spread="others")[0]
    np.testing.assert_allclose(others, [0.05, 0.05, 0.05, 0.8, 0.05], rtol=1e-6)


@pytest.mark.parametrize(("epsilon", "spread"), [(0.0, "all"), (0.1, "all"), (0.2, "others")])
def test_is_the_cross_entropy_against_that_distribution_summed(spread, epsilon):
    logits = logits_of()
    distribution = np.asarray(smoothed_targets(TARGETS, 5, epsilon, spread))
    written_out = -np.sum(distribution * scipy.special.log_softmax(logits, axis=-1), axis=-1)
    loss_sum, weight_sum = label_smoothed_cross_entropy(logits, TARGETS, WEIGHTS, epsilon, spread)
    np.testing.assert_allclose(loss_sum, np.sum(written_out * WEIGHTS), rtol=1e-6)
    assert weight_sum == WEIGHTS.sum()


def test_the_z_loss_is_the_mean_square_of_the_log_normalizer():
    """Chowdhery et al. (2022), section 5: z log^2 Z beside the cross-entropy, which is still reported without it."""
    with_z, without = (token_sums(logits_of(), TARGETS, WEIGHTS, Objective(0.1, z_loss=z)) for z in (1e-4, 0.0))
    log_z = scipy.special.logsumexp(np.asarray(logits_of(), np.float64), axis=-1)
    np.testing.assert_allclose(with_z.loss - without.loss, 1e-4 * np.sum(log_z**2 * WEIGHTS), rtol=1e-3)
    assert with_z._replace(loss=without.loss) == without


def test_padding_has_no_part_in_it():
    noisy = logits_of() + 100.0 * (1 - WEIGHTS)[..., None] * logits_of(seed=1)
    ours, theirs = (token_sums(logits, TARGETS, WEIGHTS, Objective()) for logits in (logits_of(), noisy))
    assert ours == theirs
    gradient = jax.jit(jax.grad(lambda logits: token_sums(logits, TARGETS, WEIGHTS, Objective()).loss))(logits_of())
    assert not np.any(gradient[WEIGHTS == 0])


def test_an_excluded_token_may_have_any_target_and_logits():
    excluded = WEIGHTS == 0
    logits = jnp.where(excluded[..., None], jnp.array([jnp.nan, -jnp.inf, 0, jnp.inf, 0]), logits_of())

    def loss_of(logits, targets):
        return label_smoothed_cross_entropy(logits, targets, WEIGHTS)[0]

    ours, theirs = (
        jax.jit(jax.value_and_grad(functools.partial(loss_of, targets=targets)))(given)
        for given, targets in ((logits, np.where(excluded, -100, TARGETS)), (logits_of(), TARGETS))
    )
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_a_class_that_is_ruled_out_has_no_part_in_the_plain_loss():
    """A logit of -inf is the loss of the other classes alone, as in scipy's log_softmax."""
    logits = logits_of(classes=6).at[..., 5].set(-jnp.inf)
    ours, theirs = (label_smoothed_cross_entropy(x, TARGETS, WEIGHTS, 0.0)[0] for x in (logits, logits[..., :5]))
    assert ours == pytest.approx(float(theirs), rel=1e-6)


@pytest.mark.parametrize("options", [{"spread": "al"}, {"epsilon": 1.0}, {"epsilon": float("nan")}])
def test_bad_arguments_are_errors(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        label_smoothed_cross_entropy(logits_of(), TARGETS, WEIGHTS, **options)
    for absent, name in enumerate(("logits is", "targets", "weights")):
        given = [None if at == absent else array for at, array in enumerate((logits_of(), TARGETS, WEIGHTS))]
        with pytest.raises(ValueError, match=f"{name} None[:,] .*must be"):
            label_smoothed_cross_entropy(*given)


@pytest.mark.parametrize("target", [-1, 5])
def test_a_target_that_is_no_class_is_nan_and_so_is_its_gradient(target):
    targets = np.array(TARGETS)
    targets[0, 0] = target
    operands = (jnp.ones((*TARGETS.shape, 3)), jnp.ones((5, 3)), None, targets, WEIGHTS, Objective())
    run = jax.jit(lambda x: label_smoothed_cross_entropy(x, jnp.asarray(targets), jnp.asarray(WEIGHTS))[0])
    for loss, gradient in (
        jax.value_and_grad(run)(logits_of()),
        jax.jit(jax.value_and_grad(lambda x: sliced_loss(x, *operands[1:]).loss))(operands[0]),
    ):
        assert jnp.isnan(loss) and jnp.isnan(gradient[0, 0]).all() and jnp.isfinite(gradient[1]).all()


def test_perplexity_is_told_without_smoothing():
    smoothed, plain = (token_sums(logits_of(), TARGETS, WEIGHTS, Objective(epsilon)) for epsilon in (0.3, 0.0))
    assert smoothed.nll == plain.nll == pytest.approx(float(plain.loss))
    assert smoothed.loss != plain.loss


def test_counts_the_tokens_that_were_the_likeliest():
    logits = 9 * np.eye(5, dtype=np.float32)[np.array([[2, 3, 1], [4, 4, 3]])]  # one wrong, two right ones are padding
    assert token_sums(logits, TARGETS, WEIGHTS, Objective()).correct == 3


def operands(dtype, length=13, classes=50):
    random = np.random.default_rng(0)
    return (
        jnp.asarray(random.normal(size=(3, length, 8)), dtype),
        jnp.asarray(random.normal(size=(classes, 8)), jnp.float32),
        jnp.asarray(10 * random.normal(size=classes), jnp.float32),
        random.integers(0, classes, (3, length)),
        random.random((3, length)) < 0.8,
    )


def plainly(features_BTD, table_ND, bias_N, targets, weights, objective):
    """As anybody would write it: all logits at once, and automatic differentiation, all in float32."""
    logits = features_BTD.astype(jnp.float32) @ table_ND.astype(features_BTD.dtype).astype(jnp.float32).T
    logits = logits if bias_N is None else logits + bias_N[None, None]
    return objective.of_logits(logits, targets, weights)


# 13 times of 3 rows and 50 classes in one slice, in three (13 is no multiple of 3), and in thirteen.
WHOLE, UNEVEN, ONE_TIME = 10**9, 5 * 3 * 50, 1


@pytest.mark.parametrize(
    ("limits", "dtype", "objective", "has_bias"),
    [
        (LogitLimits(WHOLE), "float32", Objective(0.1, "others"), False),
        (LogitLimits(UNEVEN, ONE_TIME), "float32", Objective(0.1, "all", z_loss=0.01), True),
        (LogitLimits(WHOLE, UNEVEN), "bfloat16", Objective(0.1, "others"), True),
        (LogitLimits(ONE_TIME), "bfloat16", Objective(0.1, "all", z_loss=0.01), False),
    ],
)
def test_sliced_equals_plain_in_value_and_gradient(limits, dtype, objective, has_bias):
    """And the sums are the same where no gradient is asked for."""
    features, table, bias, targets, weights = operands(dtype)
    run = functools.partial(sliced_loss, limits=limits)
    given = (features, table, bias if has_bias else None)

    def value_and_gradients(function):
        def scaled(*given):
            sums = function(*given, targets, weights, objective)
            return 0.5 * sums.loss, sums

        return jax.value_and_grad(scaled, argnums=(0, 1, 2) if has_bias else (0, 1), has_aux=True)(*given)

    @jax.jit
    def all_three():
        alone = run(*given, targets, weights, objective)
        return alone, value_and_gradients(run), value_and_gradients(plainly)

    alone, ((_, ours), our_gradients), ((_, theirs), their_gradients) = all_three()
    np.testing.assert_allclose(alone, theirs, rtol=1e-5)
    # With a gradient in bfloat16 logits are rounded. It has 8 bits: 2^-8 is 4e-3.
    np.testing.assert_allclose(ours, theirs, rtol=1e-5 if dtype == "float32" else 2e-3)
    within = 1e-5 if dtype == "float32" else 1e-2
    for a, b in zip(our_gradients, their_gradients, strict=True):
        assert a.dtype == b.dtype
        a, b = (np.asarray(x, np.float32) for x in (a, b))
        np.testing.assert_allclose(a, b, atol=within * np.abs(b).max())


def test_training_stores_logits_in_the_type_of_the_features():
    features, table, _, targets, weights = operands("bfloat16")

    def loss(features):
        return sliced_loss(features, table, None, targets, weights, Objective()).loss

    def logits(function):
        return set(re.findall(r":(\w+)\[39,50\] = dot_general", str(jax.make_jaxpr(function)(features))))

    assert (logits(jax.grad(loss)), logits(loss)) == ({"bf16"}, {"f32"})


@pytest.mark.parametrize("differentiated", [True, False])
def test_holds_a_slice_of_the_logits_and_not_all(differentiated):
    length, classes = 1024, 16_384
    shapes = (
        jax.ShapeDtypeStruct((2, length, 16), jnp.float32),
        jax.ShapeDtypeStruct((classes, 16), jnp.float32),
        jax.ShapeDtypeStruct((classes,), jnp.float32),
        jax.ShapeDtypeStruct((2, length), jnp.int32),
        jax.ShapeDtypeStruct((2, length), jnp.int32),
    )

    def needed(function):
        of = functools.partial(function, objective=Objective())
        run = jax.grad(lambda *args: of(*args).loss, argnums=(0, 1, 2)) if differentiated else of
        return jax.jit(run).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    logits = 4 * 2 * length * classes
    assert needed(plainly) >= logits
    assert needed(functools.partial(sliced_loss, limits=LogitLimits(2**20))) < logits / 8


CUSTOM = """
import jax, jax.numpy as jnp

def nll(logits, targets, weights):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)[..., 0] * weights

def right(logits, targets, weights):
    return nll(logits, targets, weights).sum(), weights.sum()

def mean(logits, targets, weights):
    return nll(logits, targets, weights).sum() / weights.sum(), jnp.float32(1)

def mean_of_tokens(logits, targets, weights):
    return nll(logits, targets, weights).mean(), weights.sum()

def with_padding(logits, targets, weights):
    return nll(logits, targets, jnp.ones_like(weights)).sum(), weights.sum()

def one_number(logits, targets, weights):
    return nll(logits, targets, weights).sum()
"""


def test_a_custom_loss_must_be_a_sum_over_tokens(tmp_path):
    (tmp_path / "custom.py").write_text(CUSTOM)
    check_loss(TrainConfig(loss=f"{tmp_path}/custom.py:right"), 8)
    for name in ("mean", "mean_of_tokens", "with_padding", "one_number"):
        with pytest.raises(BadInput, match="must return"):
            check_loss(TrainConfig(loss=f"{tmp_path}/custom.py:{name}"), 8)


@pytest.mark.parametrize(("dtype", "classes"), [(np.uint8, 256), (np.int8, 200)])
def test_targets_of_few_bits_have_more_classes_than_their_type_has_numbers(dtype, classes):
    features, table = jnp.ones((*TARGETS.shape, 4)), jax.random.normal(jax.random.key(0), (classes, 4))
    found = []
    for targets in (np.asarray(TARGETS, dtype), TARGETS):
        plain = label_smoothed_cross_entropy(features @ table.T, targets, WEIGHTS)[0]
        sliced = functools.partial(sliced_loss, features, bias_N=None, targets_BT=jnp.asarray(targets))
        loss_of = functools.partial(sliced, weights_BT=jnp.asarray(WEIGHTS), objective=Objective())
        found.append((plain, *jax.value_and_grad(lambda table, loss_of=loss_of: loss_of(table_ND=table).loss)(table)))
    jax.tree.map(np.testing.assert_array_equal, *found)
    assert all(np.isfinite(value).all() for value in found[0])
