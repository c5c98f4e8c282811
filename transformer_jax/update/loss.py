"""Label-smoothed cross-entropy (section 5.4), as sums: the caller divides once, when all of them are added up."""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import TrainConfig
from transformer_jax.extension import CustomFunction, load_function
from transformer_jax.model.precision import precision_of

# The smoothing spreads over all K classes (the textbook) or over the K - 1 wrong ones.
Spread = Literal["all", "others"]
# The most logits that exist at once in training, as float32 numbers: 256 MiB.
HELD_LOGITS = 64 * 2**20
# A number of the config; traced where runs that differ in it train together.
Number = float | jax.Array
# Of the target distribution: the excess of the right class over a wrong one, and the probability of a wrong one.
Masses = tuple[Number, Number]
# The function that train.loss names, or None: label-smoothed cross-entropy.
Loss = CustomFunction | None


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


def label_smoothed_cross_entropy(
    logits: jax.Array, targets: jax.Array, weights: jax.Array, epsilon: Number = 0.1, spread: Spread = "all"
) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy against (1 - epsilon) on the target and epsilon spread over the classes: (loss_sum, weight_sum).

    `logits` has one axis more than `targets` and `weights`. A weight of zero excludes a token (padding).
    """
    sums = token_sums(logits, targets, weights, epsilon, spread)
    return sums.loss, sums.tokens


def token_sums(
    logits: jax.Array, targets: jax.Array, weights: jax.Array, epsilon: Number, spread: Spread = "all"
) -> TokenSums:
    """The sums of a batch of logits."""
    return _token_sums(logits, targets, weights, _masses(logits.shape[-1], epsilon, spread))


def _token_sums(logits: jax.Array, targets: jax.Array, weights: jax.Array, masses: Masses) -> TokenSums:
    """-sum_k q_k log p_k with q = wrong everywhere, plus right on the target, and log p = logit - log-normalizer."""
    logits, weights = logits.astype(jnp.float32), weights.astype(jnp.float32)
    right, wrong = masses
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    target_logit = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    nll = normalizer - target_logit
    everywhere = logits.shape[-1] * normalizer - jnp.sum(logits, axis=-1)
    likeliest = target_logit >= jnp.max(logits, axis=-1)
    tokens = jnp.sum(weights)
    return TokenSums(
        loss=jnp.sum((right * nll + wrong * everywhere) * weights),
        nll=jnp.sum(nll * weights),
        right=jnp.sum(likeliest * weights),
        tokens=tokens,
        weight=tokens,
    )


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
    return token_sums(logits, targets, weights, 0.0)._replace(loss=loss_sum, weight=weight_sum)


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
    right, wrong = _masses(classes, epsilon, spread)
    return jnp.where(jax.nn.one_hot(targets, classes, dtype=bool), right + wrong, wrong)


def output_loss(
    features_BTD: jax.Array,
    table_ND: jax.Array,
    targets_BT: jax.Array,
    weights_BT: jax.Array,
    epsilon: Number,
    spread: Spread = "all",
) -> TokenSums:
    """The loss of features times the output table, without computing all logits at once.

    Equal in value and gradient to `label_smoothed_cross_entropy(features @ table.T, ...)`. It runs over slices of time
    (the batch axis may be divided among devices), and the forward pass already computes each slice's gradient, so that
    the backward pass needs no logits: the memory is that of one slice.
    """
    slices, masses = _slice_count(features_BTD.shape, table_ND.shape[0]), _masses(table_ND.shape[0], epsilon, spread)
    return _output_loss(features_BTD, table_ND, targets_BT, weights_BT.astype(jnp.float32), masses, slices)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _output_loss(
    features_BTD: jax.Array,
    table_ND: jax.Array,
    targets_BT: jax.Array,
    weights_BT: jax.Array,
    masses: Masses,
    slices: int,
) -> TokenSums:
    def add(total: TokenSums, part: Any) -> tuple[TokenSums, None]:
        x_BTD, targets_BT, weights_BT = part
        sums = _token_sums(_logits(x_BTD, table_ND), targets_BT, weights_BT, masses)
        return jax.tree.map(jnp.add, total, sums), None

    return jax.lax.scan(add, zero_sums(), _time_slices((features_BTD, targets_BT, weights_BT), slices))[0]


def _output_loss_forward(features_BTD, table_ND, targets_BT, weights_BT, masses, slices):  # type: ignore[no-untyped-def]
    """The loss, and the gradients of its sum, which the backward pass only scales.

    A scan, because only a scan is certain to finish one slice before it begins the next.
    """
    right, wrong = masses

    def add(carried: Any, part: Any) -> tuple[Any, jax.Array]:
        (total, gradient_ND), (x_BTD, targets_BT, weights_BT) = carried, part
        logits_BTN = _logits(x_BTD, table_ND)
        sums = _token_sums(logits_BTN, targets_BT, weights_BT, masses)
        # d loss / d logits = softmax - target distribution.
        target_BTN = wrong + right * jax.nn.one_hot(targets_BT, table_ND.shape[0], dtype=logits_BTN.dtype)
        error_BTN = ((jax.nn.softmax(logits_BTN) - target_BTN) * weights_BT[..., None]).astype(x_BTD.dtype)
        rows = error_BTN.reshape(-1, error_BTN.shape[-1])
        gradient_BTD = _product(rows, table_ND.astype(rows.dtype), rows.dtype).reshape(x_BTD.shape)
        gradient_ND += _product(rows.T, x_BTD.reshape(-1, x_BTD.shape[-1]))
        return (jax.tree.map(jnp.add, total, sums), gradient_ND), gradient_BTD

    zero = (zero_sums(), jnp.zeros(table_ND.shape, jnp.float32))
    parts = _time_slices((features_BTD, targets_BT, weights_BT), slices)
    (total, gradient_ND), gradients = jax.lax.scan(add, zero, parts)
    gradient_BTD = jnp.moveaxis(gradients, 0, 1).reshape(len(features_BTD), -1, features_BTD.shape[-1])
    gradient_BTD = gradient_BTD[:, : features_BTD.shape[1]]
    return total, (gradient_BTD, gradient_ND.astype(table_ND.dtype))


def _output_loss_backward(slices, gradients, incoming):  # type: ignore[no-untyped-def]
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


def _masses(classes: int, epsilon: Number, spread: Spread) -> Masses:
    wrong = epsilon / classes if spread == "all" else epsilon / (classes - 1)
    return 1.0 - wrong * classes, wrong


def _slice_count(shape_BTD: tuple[int, ...], classes: int) -> int:
    """As few slices as keep the logits of a slice within HELD_LOGITS."""
    tokens, length = shape_BTD[0] * shape_BTD[1], shape_BTD[1]
    return min(length, max(1, -(-tokens * classes // HELD_LOGITS)))


def _time_slices(arrays: Any, count: int) -> Any:
    """Arrays of B T ... as count x B x T / count ...; tokens of weight zero fill up the last slice."""

    def cut(array: jax.Array) -> jax.Array:
        missing = -array.shape[1] % count
        padded = jnp.pad(array, [(0, 0), (0, missing)] + [(0, 0)] * (array.ndim - 2))
        return jnp.moveaxis(padded.reshape(array.shape[0], count, -1, *array.shape[2:]), 1, 0)

    return jax.tree.map(cut, arrays)


def zero_sums() -> TokenSums:
    return TokenSums(*(jnp.zeros((), jnp.float32) for _ in TokenSums._fields))
