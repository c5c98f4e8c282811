"""The precision of matrix products: by default full float32, also on accelerators."""

import contextlib

import jax

from transformer_jax.model_config import ModelConfig


def matmul_precision(config: ModelConfig) -> contextlib.AbstractContextManager[None]:
    """A context in which programs are traced with the precision `model.matmul_precision`.

    By default JAX multiplies float32 in one bfloat16 pass on TPUs, and in TF32 on NVIDIA GPUs. All programs of a run
    are traced inside: training, evaluation, scoring and decoding. The modules themselves follow the caller's setting.
    """
    return jax.default_matmul_precision(config.matmul_precision)


def precision_of(x: jax.Array) -> jax.lax.Precision | None:
    """The `precision` of a product of arrays of this type; None for float32, which follows the setting.

    Narrower types are exact in one pass. They need it explicitly because gradients inherit it: that of a product
    bfloat16 x bfloat16 -> float32 multiplies float32 by bfloat16, at "highest" three times as slowly on a TPU.
    """
    return None if x.dtype.itemsize >= 4 else jax.lax.Precision.DEFAULT
