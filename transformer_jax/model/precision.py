"""The precision of matrix products: float32 means float32, on accelerators as well."""

import contextlib

import jax

from transformer_jax.model_config import ModelConfig


def matmul_precision(config: ModelConfig) -> contextlib.AbstractContextManager[None]:
    """Inside, programs are traced with float32 products as `model.matmul_precision` says.

    By JAX's own default TPUs multiply float32 in one bfloat16 pass, and NVIDIA GPUs in TF32. Every program of a run
    enters this: training, evaluation, scoring and decoding. The modules themselves do not, so that in other code they
    follow that code's own setting.
    """
    return jax.default_matmul_precision(config.matmul_precision)


def precision_of(x: jax.Array) -> jax.lax.Precision | None:
    """The `precision` of a product of arrays of this type: none for float32, which follows the setting.

    Narrower types are exact in one pass, whatever the setting. It must be said because gradients inherit it: that of a
    product bfloat16 x bfloat16 -> float32 multiplies float32 by bfloat16, at "highest" three times as slowly on a TPU.
    """
    return None if x.dtype.itemsize >= 4 else jax.lax.Precision.DEFAULT
