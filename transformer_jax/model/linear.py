"""The linear map x W + b, its initial weights, and the precision of matrix products."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.custom_derivatives import SymbolicZero

_AT_ONCE: ContextVar[bool] = ContextVar("gradients_at_once", default=False)


def precision_of(x: jax.Array) -> jax.lax.Precision | None:
    """The `precision` of a product of arrays of this type; None for float32, which follows the caller's setting.

    Narrower types are exact in one pass. They need it explicitly because gradients inherit it: the gradient of a
    product bfloat16 x bfloat16 -> float32 multiplies float32 by bfloat16, at "highest" three times as slowly on a TPU.
    """
    return None if x.dtype.itemsize >= 4 else jax.lax.Precision.DEFAULT


def xavier(
    gain: float = 1.0, base_shape: tuple[float, float] | None = None, shared_by: int = 1
) -> nn.initializers.Initializer:
    """Xavier-uniform (Glorot and Bengio 2010), times a gain.

    `base_shape` is the shape of the matrix in muP's base model: beyond it the variance is proportional to 1 / fan_in.
    `shared_by`: the number of heads that each output serves; it begins as if each of them had its own.
    """

    def initialize(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
        base = base_shape or (shape[0], shape[1] * shared_by)
        variance = gain**2 * (sum(shape) / sum(base)) * (base[0] / shape[0])  # as a multiple of Xavier's
        return nn.initializers.variance_scaling(variance, "fan_avg", "uniform")(key, shape, dtype)

    return initialize


class Linear(nn.Module):
    """x W + b on the last axis, with `features` outputs. W is Xavier-uniform by default, b zero.

    The product is two-dimensional, over (all other axes, width): on CPUs it is 1.5 times as fast as flax's nn.Dense,
    which keeps the batch axes.
    """

    use_bias: bool = True
    dtype: Any = jnp.float32
    kernel_init: nn.initializers.Initializer = xavier()

    @nn.compact
    def __call__(self, x: jax.Array, features: int) -> jax.Array:
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], features))
        rows, kernel = x.reshape(-1, x.shape[-1]).astype(self.dtype), kernel.astype(self.dtype)
        if _AT_ONCE.get():
            rows, kernel = _with_gradients_at_once(rows, kernel)
        product = jnp.matmul(rows, kernel, precision=precision_of(rows))
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros_init(), (features,))
            product = product + bias.astype(self.dtype)[None]
        return product.reshape(*x.shape[:-1], features)


@contextlib.contextmanager
def gradients_at_once(wanted: bool) -> Iterator[None]:
    """While this is traced, no product's gradient of x is used before the gradient of its kernel is there, too.

    XLA for TPUs otherwise computes the kernels' gradients last, and moves what they need of all layers to memory and
    back. On GPUs it changes little, and delays messages.
    """
    token = _AT_ONCE.set(wanted)
    try:
        yield
    finally:
        _AT_ONCE.reset(token)


@jax.custom_jvp
def _with_gradients_at_once(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both as they are; in the backward pass their gradients go through a barrier, which waits for both."""
    return x, kernel


def _derivative(inputs: tuple[Any, Any], changes: tuple[Any, Any]) -> tuple[Any, Any]:
    if any(isinstance(change, SymbolicZero) for change in changes):  # only one gradient is wanted: none to wait for
        return inputs, changes
    return inputs, jax.lax.optimization_barrier(changes)


_with_gradients_at_once.defjvp(_derivative, symbolic_zeros=True)
