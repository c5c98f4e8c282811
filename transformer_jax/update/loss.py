"""Label-smoothed cross-entropy (section 5.4), as sums: the caller divides once, when all of them are added up."""

import functools
import math
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import TrainConfig
from transformer_jax.extension import CustomFunction, load_function
from transformer_jax.model.linear import precision_of

# The smoothing spreads over all K classes (the textbook) or over the K - 1 wrong ones.
Spread = Literal["all", "others"]
# The most logits of a batch whose gradients exist at once: 256 MiB in float32.
HELD_LOGITS = 64 * 2**20
# The most logits that exist at once on TPU v5e and v6e: 38 MB. Such a slice, and a table of the paper's size in
# bfloat16, stay in the 128 MB beside the arithmetic units (VMEM), and the device's memory is not accessed for them.
# Other TPUs have less of it, and would read the table again for each slice.
HELD_LOGITS_IN_VMEM = 256 * 37_000
# A number of the config; traced where runs that differ in it train together.
Number = float | jax.Array
# The function that train.loss names, or None: label-smoothed cross-entropy.
Loss = CustomFunction | None


class Objective(NamedTuple):
    """What is minimised: train.label_smoothing, train.smoothing_over and train.z_loss."""

    epsilon: Number = 0.1
    spread: Spread = "all"
    z_loss: Number = 0.0

    def terms(self, classes: int) -> "Terms":
        if self.spread not in get_args(Spread):
            raise ValueError(f"spread is {self.spread!r}: must be one of {', '.join(get_args(Spread))}")
        if not isinstance(self.epsilon, jax.core.Tracer) and not 0 <= self.epsilon < 1:
            raise ValueError(f"epsilon is {self.epsilon}: must be >= 0 and < 1")
        if classes < (least := 1 if self.spread == "all" else 2):
            raise ValueError(f"logits have {classes} classes: must be at least {least}, with spread {self.spread!r}")
        wrong = self.epsilon / classes if self.spread == "all" else self.epsilon / (classes - 1)
        has_z = isinstance(self.z_loss, jax.Array) or self.z_loss > 0
        return Terms(1.0 - wrong * classes, wrong, self.z_loss if has_z else None)


class Terms(NamedTuple):
    """The same for a number of classes: right * -log p(target) + wrong * sum_k -log p_k + z * (log Z)^2.

    `z` is None without z-loss (Chowdhery et al. 2022, section 5), so that such programs do not compute it.
    """

    right: Number
    wrong: Number
    z: Number | None


class TokenSums(NamedTuple):
    """The sums of a batch. Loss is smoothed, nll (negative log-likelihood) is not: exp(nll / tokens) is perplexity.

    `right` counts the target tokens that were the most probable. `weight` is what the loss is divided by: the tokens,
    unless a custom loss returns something else.
    """

    loss: jax.Array
    nll: jax.Array
    right: jax.Array
    tokens: jax.Array
    weight: jax.Array


def held_logits_on(device_kind: str) -> int:
    """The most logits that exist at once in training on devices of this kind, as JAX calls it."""
    return HELD_LOGITS_IN_VMEM if device_kind in ("TPU v5 lite", "TPU v6 lite") else HELD_LOGITS


def label_smoothed_cross_entropy(
    logits: jax.Array, targets: jax.Array, weights: jax.Array, epsilon: Number = 0.1, spread: Spread = "all"
) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy against (1 - epsilon) on the target and epsilon spread over the classes: (loss_sum, weight_sum).

    `logits` has one axis more than `targets` and `weights`. A weight of zero excludes a token (padding), whatever its
    target and its logits are. Logits of -inf (classes that are ruled out) need epsilon = 0: smoothing makes them
    infinitely wrong.
    """
    if not jnp.issubdtype(targets.dtype, jnp.integer):
        raise ValueError(f"targets are {targets.dtype}: must be token ids, int32")
    if not logits.shape[:-1] == targets.shape == weights.shape:
        raise ValueError(
            f"logits, targets and weights have the shapes {logits.shape}, {targets.shape} and {weights.shape}: must be "
            "[..., classes], [...] and [...], with the same axes before the classes"
        )
    _check_targets(targets, weights, logits.shape[-1])
    # Not multiplied by zero: with a target of -100 or an infinite logit that would be NaN.
    logits = jnp.where(weights[..., None] == 0, 0, logits)
    targets = jnp.where(weights == 0, 0, targets)
    sums = token_sums(logits, targets, weights, Objective(epsilon, spread))
    return sums.loss, sums.tokens


def _check_targets(targets: jax.Array, weights: jax.Array, classes: int) -> None:
    """Raises ValueError if a target that counts is not a class. Under `jax.jit` values are not known."""
    for array in (targets, weights):
        if isinstance(array, jax.core.Tracer) or not getattr(array, "is_fully_addressable", True):
            return
    counted = np.asarray(targets)[np.asarray(weights) != 0]
    wrong = counted[(counted < 0) | (counted >= classes)]
    if wrong.size:
        raise ValueError(
            f"targets has the id {wrong[0]}, whose weight is not 0: must be between 0 and {classes - 1} (classes - 1)"
        )


def token_sums(logits: jax.Array, targets: jax.Array, weights: jax.Array, objective: Objective) -> TokenSums:
    """The sums of a batch of logits."""
    return _token_sums(logits, targets, weights, objective.terms(logits.shape[-1]))


def _token_sums(
    logits: jax.Array, targets: jax.Array, weights: jax.Array, terms: Terms, logit_sums: jax.Array | None = None
) -> TokenSums:
    """-sum_k q_k log p_k with q = wrong everywhere, plus right on the target, and log p = logit - log Z.

    `logit_sums` are those over the classes, if they are known.
    """
    logits, weights = logits.astype(jnp.float32), weights.astype(jnp.float32)
    right, wrong, z = terms
    greatest, normalizer = _normalizer(logits)
    target_logit = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    nll = normalizer - target_logit
    logit_sums = jnp.sum(logits, axis=-1) if logit_sums is None else logit_sums
    everywhere = logits.shape[-1] * normalizer - logit_sums
    # Without smoothing not added, as 0: where a class is ruled out (a logit of -inf) that would be NaN.
    losses = right * nll + wrong * everywhere if isinstance(wrong, jax.Array) or wrong else right * nll
    tokens = jnp.sum(weights)
    return TokenSums(
        loss=jnp.sum((losses if z is None else losses + z * normalizer**2) * weights),
        nll=jnp.sum(nll * weights),
        right=jnp.sum((target_logit >= greatest) * weights),
        tokens=tokens,
        weight=tokens,
    )


def _normalizer(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The greatest logit and log sum exp, in two passes over the logits."""
    greatest = jax.lax.stop_gradient(jnp.max(logits, axis=-1))
    return greatest, greatest + jnp.log(jnp.sum(jnp.exp(logits - greatest[..., None]), axis=-1))


def load_loss(train: TrainConfig) -> Loss:
    """The function that train.loss names, loaded from its file; None if it names none."""
    if train.loss is None:
        return None
    return load_function("train.loss", train.loss, ("logits", "targets", "weights"), ("epsilon", "spread"))


def custom_sums(
    loss: CustomFunction, train: TrainConfig, logits: jax.Array, targets: jax.Array, weights: jax.Array
) -> TokenSums:
    """The sums of a batch of logits with a custom loss; perplexity and accuracy do not depend on it."""
    loss_sum, weight_sum = _call(loss, train, logits, targets, weights.astype(jnp.float32))
    return token_sums(logits, targets, weights, Objective(0.0))._replace(loss=loss_sum, weight=weight_sum)


def check_loss(train: TrainConfig) -> None:
    """Raises BadInput if the custom loss, tried on a few numbers, cannot be trained on."""
    loss, rng = load_loss(train), np.random.default_rng(0)
    if loss is None:
        return
    logits, others = (jnp.asarray(rng.normal(size=(2, 3, 5)), jnp.float32) for _ in range(2))
    targets, weights = jnp.array([[1, 2, 0], [4, 3, 2]]), jnp.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])

    def call(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _call(loss, train, logits, targets, weights)

    (loss_sum, weight_sum), gradient = jax.jit(jax.value_and_grad(call, has_aux=True))(logits)
    is_finite = all(bool(jnp.isfinite(array).all()) for array in (loss_sum, weight_sum, gradient))
    if not is_finite or weight_sum <= 0:
        raise loss.refusal(f"gave loss_sum {loss_sum} and weight_sum {weight_sum}, or a gradient, that is not usable")
    elsewhere, _ = call(jnp.where(weights[..., None] > 0, logits, others))
    if not np.allclose(loss_sum, elsewhere, rtol=1e-4):
        raise loss.refusal("counts tokens whose weight is 0, which are padding; multiply by weights before summing")


def _call(
    loss: CustomFunction, train: TrainConfig, logits: jax.Array, targets: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(loss_sum, weight_sum) of a custom loss, checked."""
    logits = logits.astype(jnp.float32)
    given = loss(logits, targets, weights, epsilon=train.label_smoothing, spread=train.smoothing_over)
    if not isinstance(given, tuple) or len(given) != 2:
        raise loss.refusal(f"returned {type(given).__name__}; (loss_sum, weight_sum) would be right")
    for name, number in zip(("loss_sum", "weight_sum"), given, strict=True):
        if not isinstance(number, (jax.Array, np.ndarray, np.number, float, int)) or np.shape(number) != ():
            raise loss.refusal(f"{name} has shape {np.shape(number)}; one number, the sum over all tokens, is expected")
    loss_sum, weight_sum = given
    if not jnp.issubdtype(jnp.result_type(loss_sum), jnp.floating):
        raise loss.refusal(f"loss_sum is of type {jnp.result_type(loss_sum)}; float32 would be right")
    return jnp.asarray(loss_sum, jnp.float32), jnp.asarray(weight_sum, jnp.float32)


def smoothed_targets(targets: jax.Array, classes: int, epsilon: Number, spread: Spread = "all") -> jax.Array:
    """The target distribution of the loss, written out. Training never needs it in full."""
    right, wrong, _ = Objective(epsilon, spread).terms(classes)
    return jnp.where(jax.nn.one_hot(targets, classes, dtype=bool), right + wrong, wrong)


def output_loss(
    features_BTD: jax.Array,
    table_ND: jax.Array,
    targets_BT: jax.Array,
    weights_BT: jax.Array,
    objective: Objective,
    held_logits: int | None = None,
) -> TokenSums:
    """The loss of features times the output table, without computing all logits at once.

    Equal in value and gradient to `token_sums(features @ table.T, ...)`. It runs over slices of the
    tokens with at most `held_logits` logits, and the forward pass already computes each slice's gradient, so that the
    backward pass needs no logits: the memory is that of a few slices.
    """
    terms, held = objective.terms(table_ND.shape[0]), held_logits or HELD_LOGITS
    return _output_loss(features_BTD, table_ND, targets_BT, weights_BT.astype(jnp.float32), terms, held)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _output_loss(
    features_BTD: jax.Array,
    table_ND: jax.Array,
    targets_BT: jax.Array,
    weights_BT: jax.Array,
    terms: Terms,
    held: int,
) -> TokenSums:
    """Over slices of time, since the batch axis may be divided among devices."""
    (rows, length), classes = features_BTD.shape[:2], len(table_ND)
    count = 1 if is_symbolic(rows, length) else min(length, -(-rows * length * classes // held))

    def add(total: TokenSums, part: Any) -> tuple[TokenSums, None]:
        x_BTD, targets_BT, weights_BT = part
        sums = _token_sums(_logits(x_BTD, table_ND), targets_BT, weights_BT, terms)
        return jax.tree.map(jnp.add, total, sums), None

    return jax.lax.scan(add, zero_sums(), _slices((features_BTD, targets_BT, weights_BT), (count,), axis=1))[0]


def _output_loss_forward(features_BTD, table_ND, targets_BT, weights_BT, terms, held):  # type: ignore[no-untyped-def]
    """The loss, and the gradients of its sum, which the backward pass only scales.

    For one slice after another: logits, and their gradients ("errors"). For each group of slices: the gradient of the
    table, which is read and written as often as there are groups. Scans, because only a scan is certain to finish one
    slice before it begins the next.
    """
    (right, wrong, z), (classes, width), dtype = terms, table_ND.shape, features_BTD.dtype
    table = table_ND.astype(dtype)
    table_sum_D = jnp.sum(table, axis=0, dtype=jnp.float32)

    def errors(part: Any) -> tuple[TokenSums, jax.Array, jax.Array]:
        x_MD, targets_M, weights_M = part
        logits_MN = _product(x_MD, table.T)
        logit_sums_M = jnp.sum(x_MD * table_sum_D[None], axis=-1)
        sums = _token_sums(logits_MN, targets_M, weights_M, terms, logit_sums_M)
        # d loss / d logits = softmax - target distribution; of z (log Z)^2, 2 z log Z softmax.
        target_MN = wrong + right * jax.nn.one_hot(targets_M, classes, dtype=logits_MN.dtype)
        normalizer_M1 = _normalizer(logits_MN)[1][:, None]
        probability_MN = jnp.exp(logits_MN - normalizer_M1)
        if z is not None:
            probability_MN *= 1 + 2 * z * normalizer_M1
        error_MN = ((probability_MN - target_MN) * weights_M[:, None]).astype(dtype)
        return sums, error_MN, _product(error_MN, table, dtype)

    def of_slices(group: Any) -> tuple[TokenSums, jax.Array, jax.Array]:
        sums, errors_SMN, gradients = jax.lax.map(errors, group)
        # Both axes are summed over as they are: merged, the errors would be copied on TPUs.
        product = {"preferred_element_type": jnp.float32, "precision": precision_of(errors_SMN)}
        gradient_ND = jnp.einsum("smn,smd->nd", errors_SMN, group[0], **product)
        return jax.tree.map(lambda each: each.sum(0), sums), gradient_ND, gradients

    def of_one(group: Any) -> tuple[TokenSums, jax.Array, jax.Array]:
        sums, error_MN, gradient = errors(group)
        return sums, _product(error_MN.T, group[0]), gradient

    def add(carried: Any, group: Any) -> tuple[Any, jax.Array]:
        *more, gradients = of_one(group) if count == 1 else of_slices(group)
        return jax.tree.map(jnp.add, carried, tuple(more)), gradients

    tokens, groups, count = targets_BT.size, 1, 1
    if not is_symbolic(*targets_BT.shape):
        groups = -(-tokens * classes // HELD_LOGITS)
        count = max(1, -(-tokens // groups // max(1, held // classes)))
    rows = features_BTD.reshape(tokens, width), targets_BT.reshape(tokens), weights_BT.reshape(tokens)
    parts = _slices(rows, (groups,) if count == 1 else (groups, count), axis=0)
    zero = (zero_sums(), jnp.zeros(table_ND.shape, jnp.float32))
    (total, gradient_ND), gradients = jax.lax.scan(add, zero, parts)
    gradient_BTD = gradients.reshape(-1, width)[:tokens].reshape(features_BTD.shape)
    return total, (gradient_BTD, gradient_ND.astype(table_ND.dtype))


def _output_loss_backward(held, gradients, incoming):  # type: ignore[no-untyped-def]
    """Only the smoothed loss has a gradient; the other sums are for reports."""
    gradient_BTD, gradient_ND = gradients
    return (incoming.loss * gradient_BTD).astype(gradient_BTD.dtype), incoming.loss * gradient_ND, None, None, None


_output_loss.defvjp(_output_loss_forward, _output_loss_backward)


def _logits(x_BTD: jax.Array, table_ND: jax.Array) -> jax.Array:
    rows = x_BTD.reshape(-1, x_BTD.shape[-1])
    logits = _product(rows, table_ND.T.astype(rows.dtype))
    return logits.reshape(*x_BTD.shape[:-1], table_ND.shape[0])


def _product(a: jax.Array, b: jax.Array, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.matmul(a, b, preferred_element_type=dtype, precision=precision_of(a))


def _slices(arrays: Any, counts: tuple[int, ...], axis: int) -> Any:
    """Arrays divided along an axis, with the counts as new axes in front; tokens of weight zero fill the last slice."""

    def cut(array: jax.Array) -> jax.Array:
        before, after = array.shape[:axis], array.shape[axis + 1 :]
        missing = -array.shape[axis] % math.prod(counts)
        padded = jnp.pad(array, [(0, 0)] * axis + [(0, missing)] + [(0, 0)] * len(after))
        return jnp.moveaxis(
            padded.reshape(*before, *counts, -1, *after), range(axis, axis + len(counts)), range(len(counts))
        )

    return jax.tree.map(cut, arrays)


def is_symbolic(*sizes: Any) -> bool:
    """Whether jax.export is tracing for any size: how many slices there should be is then unknown."""
    return any(jax.export.is_symbolic_dim(size) for size in sizes)


def zero_sums() -> TokenSums:
    return TokenSums(*(jnp.zeros((), jnp.float32) for _ in TokenSums._fields))
