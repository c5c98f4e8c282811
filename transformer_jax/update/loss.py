"""Label-smoothed cross-entropy (section 5.4): sums, to be divided once, by whoever has all of them."""

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
# The most logits that are held at once while training, in float32 numbers: 256 MiB.
HELD_LOGITS = 64 * 2**20
# A number of the config; traced where runs that differ in it train together.
Number = float | jax.Array
# What the distribution aimed at has more on the right class than on a wrong one, and what it has on a wrong one.
Masses = tuple[Number, Number]


class TokenSums(NamedTuple):
    """What a batch adds up to. Loss is smoothed, nll (negative log-likelihood) is not: exp(nll / tokens) is perplexity.

    `right` counts the tokens that were the likeliest. `weight` is what the loss is divided by: the tokens, unless a
    loss of one's own says otherwise.
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
    """All that a batch of logits adds up to."""
    return _token_sums(logits, targets, weights, _masses(logits.shape[-1], epsilon, spread))


def _token_sums(logits: jax.Array, targets: jax.Array, weights: jax.Array, masses: Masses) -> TokenSums:
    """-sum_k q_k log p_k with q = wrong everywhere and right more on the target, and log p = logit - log-normaliser."""
    logits, weights = logits.astype(jnp.float32), weights.astype(jnp.float32)
    right, wrong = masses
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    target_logit = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    nll = normaliser - target_logit
    everywhere = logits.shape[-1] * normaliser - jnp.sum(logits, axis=-1)
    likeliest = target_logit >= jnp.max(logits, axis=-1)
    tokens = jnp.sum(weights)
    return TokenSums(
        loss=jnp.sum((right * nll + wrong * everywhere) * weights),
        nll=jnp.sum(nll * weights),
        right=jnp.sum(likeliest * weights),
        tokens=tokens,
        weight=tokens,
    )


def own_sums(train: TrainConfig, logits: jax.Array, targets: jax.Array, weights: jax.Array) -> TokenSums:
    """All that a batch of logits adds up to, with the loss that the config names; perplexity stays what it is."""
    sums = token_sums(logits, targets, weights, 0.0)
    loss, weight = _of_own(_load(train), train, logits, targets, weights.astype(jnp.float32))
    return sums._replace(loss=loss, weight=weight)


def check_own(train: TrainConfig) -> None:
    """Tries the loss that the config names, if it names one, on a few numbers; refuses what cannot be trained on."""
    if train.loss is None:
        return
    own, dice = _load(train), np.random.default_rng(0)
    logits, others = (jnp.asarray(dice.normal(size=(2, 3, 5)), jnp.float32) for _ in range(2))
    targets, weights = jnp.array([[1, 2, 0], [4, 3, 2]]), jnp.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])

    def loss_and_weight(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _of_own(own, train, logits, targets, weights)

    (loss, weight), gradient = jax.jit(jax.value_and_grad(loss_and_weight, has_aux=True))(logits)
    if not (np.isfinite(loss) and np.isfinite(weight) and weight > 0 and np.all(np.isfinite(gradient))):
        raise own.refusal(f"gave loss_sum {loss} and weight_sum {weight}, or a gradient, that is no use for training")
    elsewhere, _ = loss_and_weight(jnp.where(weights[..., None] > 0, logits, others))
    if not np.allclose(loss, elsewhere, rtol=1e-4):
        raise own.refusal("counts tokens whose weight is 0, which are padding; multiply by weights before adding up")


def _load(train: TrainConfig) -> CustomFunction:
    assert train.loss is not None
    return load_function("train.loss", train.loss, ("logits", "targets", "weights"), ("epsilon", "spread"))


def _of_own(
    own: CustomFunction, train: TrainConfig, logits: jax.Array, targets: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(loss_sum, weight_sum), or a complaint that it is something else."""
    logits = logits.astype(jnp.float32)
    given = own(logits, targets, weights, epsilon=train.label_smoothing, spread=train.smoothing_over)
    if not isinstance(given, tuple) or len(given) != 2:
        raise own.refusal(f"returned {type(given).__name__}; (loss_sum, weight_sum) would be right")
    for name, number in zip(("loss_sum", "weight_sum"), given, strict=True):
        if not isinstance(number, (jax.Array, np.ndarray, np.number, float, int)) or np.shape(number) != ():
            raise own.refusal(
                f"{name} is of shape {np.shape(number)}; one number, the sum over all tokens, would be right"
            )
    loss, weight = given
    if not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
        raise own.refusal(f"loss_sum is of type {jnp.result_type(loss)}; float32 would be right")
    return jnp.asarray(loss, jnp.float32), jnp.asarray(weight, jnp.float32)


def smoothed_targets(targets: jax.Array, classes: int, epsilon: Number, spread: Spread = "all") -> jax.Array:
    """The distribution that the loss aims at, written out; nothing else needs it in full."""
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
    """The loss of features times the output table, without ever holding all logits.

    Equal in value and gradient to `label_smoothed_cross_entropy(features @ table.T, ...)`. The tokens are taken in
    slices of time (the batch axis may lie on many devices), and each slice leaves its share of the gradient behind, so
    that the backward pass needs no logits either: the memory is that of one slice.
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
        return _added(total, sums), None

    return jax.lax.scan(add, _nothing(), _time_slices((features_BTD, targets_BT, weights_BT), slices))[0]


def _output_loss_forward(features_BTD, table_ND, targets_BT, weights_BT, masses, slices):  # type: ignore[no-untyped-def]
    """The loss, and the gradients of its sum: they only wait to be scaled by what the backward pass brings.

    A scan, because only there is one slice certain to be done with before the next begins.
    """
    right, wrong = masses

    def add(carried: Any, part: Any) -> tuple[Any, jax.Array]:
        (total, gradient_ND), (x_BTD, targets_BT, weights_BT) = carried, part
        logits_BTN = _logits(x_BTD, table_ND)
        sums = _token_sums(logits_BTN, targets_BT, weights_BT, masses)
        # d loss / d logits = softmax - target distribution.
        aimed_BTN = wrong + right * jax.nn.one_hot(targets_BT, table_ND.shape[0], dtype=logits_BTN.dtype)
        error_BTN = ((jax.nn.softmax(logits_BTN) - aimed_BTN) * weights_BT[..., None]).astype(x_BTD.dtype)
        rows = error_BTN.reshape(-1, error_BTN.shape[-1])
        gradient_BTD = _product(rows, table_ND.astype(rows.dtype), rows.dtype).reshape(x_BTD.shape)
        gradient_ND += _product(rows.T, x_BTD.reshape(-1, x_BTD.shape[-1]))
        return (_added(total, sums), gradient_ND), gradient_BTD

    none = (_nothing(), jnp.zeros(table_ND.shape, jnp.float32))
    parts = _time_slices((features_BTD, targets_BT, weights_BT), slices)
    (total, gradient_ND), gradients = jax.lax.scan(add, none, parts)
    gradient_BTD = _joined(gradients)[:, : features_BTD.shape[1]]
    return total, (gradient_BTD, gradient_ND.astype(table_ND.dtype))


def _output_loss_backward(slices, gradients, brought):  # type: ignore[no-untyped-def]
    """Only the smoothed loss is a loss; the other sums are told for their own sake and have no gradient."""
    gradient_BTD, gradient_ND = gradients
    return (brought.loss * gradient_BTD).astype(gradient_BTD.dtype), brought.loss * gradient_ND, None, None, None


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
    """As few slices as keep the held logits within bounds."""
    tokens, length = shape_BTD[0] * shape_BTD[1], shape_BTD[1]
    return min(length, max(1, -(-tokens * classes // HELD_LOGITS)))


def _time_slices(arrays: Any, count: int) -> Any:
    """Arrays of B T ... as count x B x T / count ...; empty tokens, of weight zero, fill up the last slice."""

    def cut(array: jax.Array) -> jax.Array:
        missing = -array.shape[1] % count
        padded = jnp.pad(array, [(0, 0), (0, missing)] + [(0, 0)] * (array.ndim - 2))
        return jnp.moveaxis(padded.reshape(array.shape[0], count, -1, *array.shape[2:]), 1, 0)

    return jax.tree.map(cut, arrays)


def _joined(slices: jax.Array) -> jax.Array:
    return jnp.moveaxis(slices, 0, 1).reshape(slices.shape[1], -1, *slices.shape[3:])


def _nothing() -> TokenSums:
    return TokenSums(*(jnp.zeros((), jnp.float32) for _ in TokenSums._fields))


def _added(total: TokenSums, more: TokenSums) -> TokenSums:
    return TokenSums(*(a + b for a, b in zip(total, more, strict=True)))
