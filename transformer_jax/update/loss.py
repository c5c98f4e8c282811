"""Label-smoothed cross-entropy (section 5.4), as sums: the caller divides once, when all of them are added up."""

import functools
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from transformer_jax.config import TrainConfig
from transformer_jax.extension import CustomFunction, load_function
from transformer_jax.model.meshes import entries_of, precision_of

# The smoothing spreads over all K classes (the textbook) or over the K - 1 wrong ones.
Spread = Literal["all", "others"]
# A number of the config; traced where runs that differ in it train together.
Number = float | jax.Array


class TokenSums(NamedTuple):
    """The sums of a batch. Loss is smoothed, nll (negative log-likelihood) is not: exp(nll / tokens) is perplexity.

    `correct` counts the target tokens that were the most probable. `weight` is what the loss is divided by: the tokens,
    unless a custom loss returns something else.
    """

    loss: jax.Array
    nll: jax.Array
    correct: jax.Array
    tokens: jax.Array
    weight: jax.Array


class LogitLimits(NamedTuple):
    """How many logits a device has at once.

    The times of a batch are cut into slices; the gradients of one slice's logits are `held` at once (256 MiB in
    float32). On some TPUs a slice is cut into pieces, whose logits are `computed` one after another (model/tpu.py).
    """

    held: int = 64 * 2**20
    computed: int | None = None


LIMITS = LogitLimits()


def zero_sums() -> TokenSums:
    return TokenSums(*(jnp.zeros((), jnp.float32) for _ in TokenSums._fields))


class Terms(NamedTuple):
    """target_weight * -log p(target) + uniform_weight * sum_k -log p_k + z_weight * (log Z)^2, for each token.

    `z_weight` is None without a z-loss (Chowdhery et al. 2022, section 5), so that such programs do not compute it.
    A new term needs its derivative in `_forward` too, which computes the gradient of the logits by hand.
    """

    target_weight: Number
    uniform_weight: Number
    z_weight: Number | None

    def distribution(self, targets: jax.Array, classes: int) -> jax.Array:
        """The weight of -log p_k for each class k."""
        return self.uniform_weight + self.target_weight * jax.nn.one_hot(targets, classes, dtype=jnp.float32)


class Objective(NamedTuple):
    """The loss of a config: train.label_smoothing, smoothing_over and z_loss, or the custom function train.loss."""

    epsilon: Number = 0.1
    spread: Spread = "all"
    z_loss: Number = 0.0
    function: CustomFunction | None = None

    @classmethod
    def of(cls, train: TrainConfig, function: CustomFunction | None, is_training: bool = True) -> "Objective":
        """The loss of training; for validation without the z-loss."""
        return cls(train.label_smoothing, train.smoothing_over, train.z_loss if is_training else 0.0, function)

    def terms(self, classes: int) -> Terms:
        uniform = self.epsilon / (classes if self.spread == "all" else max(classes - 1, 1))
        has_z = isinstance(self.z_loss, jax.Array) or self.z_loss > 0
        return Terms(1.0 - uniform * classes, uniform, self.z_loss if has_z else None)

    def of_logits(self, logits: jax.Array, targets: jax.Array, weights: jax.Array) -> TokenSums:
        """The sums of a batch. Perplexity and accuracy do not depend on the loss."""
        logits, targets = logits.astype(jnp.float32), targets.astype(jnp.int32)
        weights = weights.astype(jnp.float32)
        if self.function is None:
            return _cross_entropy(logits, targets, weights, self.terms(logits.shape[-1]))
        loss, weight = self.function(logits, targets, weights, epsilon=self.epsilon, spread=self.spread)
        loss, weight = jnp.asarray(loss, jnp.float32), jnp.asarray(weight, jnp.float32)
        return Objective(0.0).of_logits(logits, targets, weights)._replace(loss=loss, weight=weight)


def load_loss(train: TrainConfig) -> CustomFunction | None:
    """The custom function that train.loss names, if it does."""
    arguments = ("logits", "targets", "weights"), ("epsilon", "spread")
    return None if train.loss is None else load_function("train.loss", train.loss, *arguments)


def check_loss(train: TrainConfig, classes: int) -> None:
    """Raises BadInput if a custom loss, tried on two rows, is no pair of sums over the tokens."""
    objective = Objective.of(train, load_loss(train))
    if objective.function is None:
        return
    loss = functools.partial(objective.function, epsilon=objective.epsilon, spread=objective.spread)
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, max(classes, 5))), jnp.float32)
    targets, weights = jnp.array([[1, 2, 0], [4, 3, 2]]), jnp.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    sums = loss(logits, targets, weights)
    is_pair = isinstance(sums, tuple) and [np.shape(each) for each in sums] == [(), ()]
    rows = [loss(logits[row : row + 1], targets[row : row + 1], weights[row : row + 1]) for row in range(2)]
    with_other_padding = loss(logits * weights[..., None], targets, weights)
    if not is_pair or not np.allclose([np.sum(rows, axis=0), with_other_padding], np.array(sums), rtol=1e-4):
        raise objective.function.refusal("must return (loss_sum, weight_sum), sums over tokens whose weight is not 0")


def label_smoothed_cross_entropy(
    logits: ArrayLike, targets: ArrayLike, weights: ArrayLike, epsilon: Number = 0.1, spread: Spread = "all"
) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy against (1 - epsilon) on the target and epsilon spread over the classes: (loss_sum, weight_sum).

    `logits` has one axis more than `targets` and `weights`. A weight of zero excludes a token (padding), whatever its
    target and its logits are. Any other target that is not a class makes the loss NaN. Logits of -inf (classes that
    are ruled out) need the Python number 0 as epsilon: smoothing makes them infinitely wrong.
    """
    arrays: Any = [None if array is None else jnp.asarray(array) for array in (logits, targets, weights)]
    kinds = ["None" if array is None else f"{array.dtype}{list(array.shape)}" for array in arrays]
    logits_XN, targets_X, weights_X = arrays
    fit = "None" not in kinds and logits_XN.shape[:-1] == targets_X.shape == weights_X.shape
    if not fit or not jnp.issubdtype(targets_X.dtype, jnp.integer):
        raise ValueError(
            f"logits is {kinds[0]}, targets {kinds[1]}, weights {kinds[2]}: must be float32[..., classes], int32[...] "
            "and float32[...] with the same axes"
        )
    is_traced = isinstance(epsilon, jax.core.Tracer)
    if spread not in get_args(Spread) or not (is_traced or 0 <= epsilon < 1):
        raise ValueError(f"epsilon is {epsilon}, spread {spread!r}: must be >= 0 and < 1, one of {get_args(Spread)}")
    # Not multiplied by zero: with a target of -100 or an infinite logit that would be NaN.
    logits_XN = jnp.where(weights_X[..., None] == 0, 0, logits_XN)
    targets_X = jnp.where(weights_X == 0, 0, targets_X)
    sums = Objective(epsilon, spread).of_logits(logits_XN, targets_X, weights_X)
    return sums.loss, sums.tokens


def smoothed_targets(targets: jax.Array, classes: int, epsilon: Number, spread: Spread = "all") -> jax.Array:
    """The target distribution of the loss."""
    return Objective(epsilon, spread).terms(classes).distribution(targets, classes)


def _cross_entropy(
    logits: jax.Array, targets: jax.Array, weights: jax.Array, terms: Terms, logit_sums: jax.Array | None = None
) -> TokenSums:
    """The sums, with -log p_k = log Z - logit_k. `logit_sums` are those over the classes, if they are known."""
    target_weight, uniform_weight, z_weight = terms
    greatest, normalizer = _normalizer(logits, targets)
    target_logit = entries_of(logits, targets)
    nll = normalizer - target_logit
    losses = target_weight * nll
    # Without smoothing not added, as 0: where a class is ruled out (a logit of -inf) that would be NaN.
    if isinstance(uniform_weight, jax.Array) or uniform_weight:
        logit_sums = jnp.sum(logits, axis=-1) if logit_sums is None else logit_sums
        losses = losses + uniform_weight * (logits.shape[-1] * normalizer - logit_sums)
    if z_weight is not None:
        losses = losses + z_weight * normalizer**2
    tokens = jnp.sum(weights)
    return TokenSums(
        loss=jnp.sum(losses * weights),
        nll=jnp.sum(nll * weights),
        correct=jnp.sum((target_logit >= greatest) * weights),
        tokens=tokens,
        weight=tokens,
    )


def _normalizer(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The greatest logit and log Z = log sum exp, in two passes. Where the target is not a class log Z is NaN."""
    greatest = jax.lax.stop_gradient(jnp.max(logits, axis=-1))
    normalizer = greatest + jnp.log(jnp.sum(jnp.exp(logits - greatest[..., None]), axis=-1))
    is_class = (targets >= 0) & (targets < logits.shape[-1])
    # The square root of -1 is NaN; `--debug-nans` would stop at a constant.
    return greatest, normalizer * jnp.sqrt(jnp.where(is_class, 1.0, -1.0))


def sliced_loss(
    features_BTD: jax.Array,
    table_ND: jax.Array,
    bias_N: jax.Array | None,
    targets_BT: jax.Array,
    weights_BT: jax.Array,
    objective: Objective,
    limits: LogitLimits = LIMITS,
) -> TokenSums:
    """The sums of the logits features @ table.T + bias, of which only the limits are computed at once.

    Slices are of time, since the batch may be sharded. When a gradient is asked for, the forward pass already computes
    each slice's, so that the backward pass needs no logits. Only `loss` has a gradient, with respect to features,
    table and bias.
    """
    (rows, length, _), classes = features_BTD.shape, len(table_ND)
    slices = pieces = 1
    if not any(jax.export.is_symbolic_dim(size) for size in (rows, length)):  # jax.export, for any size
        slices = _cuts(length, limits.held // (rows * classes))
        if limits.computed is not None:
            pieces = _cuts(-(-length // slices), limits.computed // (rows * classes))
    targets_BT, weights_BT = targets_BT.astype(jnp.int32), weights_BT.astype(jnp.float32)  # uint8 may have 256 classes
    terms = objective.terms(classes)
    return _loss_in_slices(features_BTD, table_ND, bias_N, targets_BT, weights_BT, terms, slices, pieces)


def _cuts(length: int, longest: int) -> int:
    """Into how many equal cuts a length goes of which none is longer than `longest`, or than 1."""
    return -(-length // max(longest, 1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def _loss_in_slices(features_BTD, table_ND, bias_N, targets_BT, weights_BT, terms, slices, pieces):  # type: ignore[no-untyped-def]
    table = table_ND.astype(features_BTD.dtype)

    def add(total: TokenSums, time_slice: Any) -> tuple[TokenSums, None]:
        x_MD, targets_M, weights_M = (jax.lax.collapse(array, 0, 2) for array in time_slice)
        sums = _cross_entropy(_logits(x_MD, table, bias_N), targets_M, weights_M, terms)
        return jax.tree.map(jnp.add, total, sums), None

    return jax.lax.scan(add, zero_sums(), _sliced((features_BTD, targets_BT, weights_BT), slices))[0]


def _forward(features_BTD, table_ND, bias_N, targets_BT, weights_BT, terms, slices, pieces):  # type: ignore[no-untyped-def]
    """The sums, and the gradients of the loss, which the backward pass only scales.

    Logits are stored in the type of the features, which in bfloat16 halves their memory traffic. With a trained model
    of width 64 the whole gradient differed by 3.9 % from float32's either way: the layers' rounding dominates. Rounded
    logits may tie, and `correct` counts ties.

    The gradient of the table is read and written once per slice. Slices and pieces are scans, because only a scan is
    certain to finish one before it begins the next.
    """
    dtype, (classes, width) = features_BTD.dtype, table_ND.shape
    table = table_ND.astype(dtype)
    table_sum_D = jnp.sum(table, axis=0, dtype=jnp.float32)
    bias_sum = 0.0 if bias_N is None else jnp.sum(bias_N)

    def errors(piece: Any) -> tuple[TokenSums, jax.Array | None, jax.Array, jax.Array]:
        """The sums of a piece, and the gradients of the bias, of its logits and of its features."""
        x_MD, targets_M, weights_M = (jax.lax.collapse(array, 0, 2) for array in piece)
        logits_MN = _logits(x_MD, table, bias_N, dtype).astype(jnp.float32)
        logit_sums_M = jnp.sum(x_MD * table_sum_D[None], axis=-1) + bias_sum
        sums = _cross_entropy(logits_MN, targets_M, weights_M, terms, logit_sums_M)
        # d loss / d logits = softmax - target distribution; of z (log Z)^2, 2 z log Z softmax.
        normalizer_M1 = _normalizer(logits_MN, targets_M)[1][:, None]
        probability_MN = jnp.exp(logits_MN - normalizer_M1)
        if terms.z_weight is not None:
            probability_MN *= 1 + 2 * terms.z_weight * normalizer_M1
        error_MN = (probability_MN - terms.distribution(targets_M, classes)) * weights_M[:, None]
        gradient_N = None if bias_N is None else jnp.sum(error_MN, axis=0)
        error_MN = error_MN.astype(dtype)
        return sums, gradient_N, error_MN, _product(error_MN, table, dtype).reshape(piece[0].shape)

    def add(carried: Any, time_slice: Any) -> tuple[Any, jax.Array]:
        in_pieces = _sliced(time_slice, pieces)
        sums, gradient_N, error_PMN, gradient_PBTD = jax.lax.map(errors, in_pieces)
        x_PMD = in_pieces[0].reshape(pieces, -1, width)
        if pieces == 1:
            gradient_ND = _product(error_PMN[0].T, x_PMD[0])
        else:  # both axes are summed over as they are: merged, the errors would be copied on TPUs
            options: Any = {"preferred_element_type": jnp.float32, "precision": precision_of(x_PMD)}
            gradient_ND = jnp.einsum("pmn,pmd->nd", error_PMN, x_PMD, **options)
        sums, gradient_N = jax.tree.map(lambda each: each.sum(0), (sums, gradient_N))
        carried = jax.tree.map(jnp.add, carried, (sums, gradient_ND, gradient_N))
        return carried, _joined(gradient_PBTD, time_slice[0].shape[1])

    zero = (zero_sums(), jnp.zeros((classes, width), jnp.float32), None if bias_N is None else jnp.zeros_like(bias_N))
    time_slices = _sliced((features_BTD, targets_BT, weights_BT), slices)
    (total, gradient_ND, gradient_N), gradient_SBTD = jax.lax.scan(add, zero, time_slices)
    gradient_BTD = _joined(gradient_SBTD, features_BTD.shape[1])
    return total, (gradient_BTD, gradient_ND.astype(table_ND.dtype), gradient_N)


def _backward(slices, pieces, gradients, incoming):  # type: ignore[no-untyped-def]
    features_BTD, *others = gradients
    scaled = jax.tree.map(lambda gradient: incoming.loss * gradient, others)
    return (incoming.loss * features_BTD).astype(features_BTD.dtype), *scaled, None, None, None


_loss_in_slices.defvjp(_forward, _backward)


def _logits(x_MD: jax.Array, table_ND: jax.Array, bias_N: jax.Array | None, dtype: Any = jnp.float32) -> jax.Array:
    logits_MN = _product(x_MD, table_ND.T, dtype)
    return logits_MN if bias_N is None else logits_MN + bias_N[None]


def _product(a: jax.Array, b: jax.Array, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.matmul(a, b, preferred_element_type=dtype, precision=precision_of(a))


def _sliced(arrays: Any, count: int) -> Any:
    """Arrays cut up along time, with the cuts in a new first axis; the last cut is padded with zeros."""

    def cut(array: jax.Array) -> jax.Array:
        rows, length, *rest = array.shape
        missing = -length % count
        padded = jnp.pad(array, [(0, 0), (0, missing), *[(0, 0) for _ in rest]])
        return jnp.moveaxis(padded.reshape(rows, count, -1, *rest), 1, 0)

    return jax.tree.map(cut, arrays)


def _joined(array_SBTD: jax.Array, length: int) -> jax.Array:
    """The inverse of `_sliced`, of one array."""
    _, rows, _, width = array_SBTD.shape
    return jnp.moveaxis(array_SBTD, 0, 1).reshape(rows, -1, width)[:, :length]
