"""Attention by jax.nn.dot_product_attention or its cuDNN kernels, where these support what is needed.

"jax" is tested on CPUs; "cudnn" has never been run.
"""

import contextlib
import functools
import logging

import jax
import jax.numpy as jnp

from transformer_jax.model.precision import precision_of

logger = logging.getLogger("transformer_jax")


def unsupported(
    implementation: str, q_BTHK: jax.Array, k_BSHK: jax.Array, v_BSHV: jax.Array, weights_needed: bool
) -> str | None:
    """Why the implementation cannot compute this attention, or None if it can."""
    if weights_needed:
        return "the attention weights themselves are needed (to show or drop them, or for relative positions)"
    if q_BTHK.shape[-1] != v_BSHV.shape[-1]:
        return f"it needs d_k = d_v, here {q_BTHK.shape[-1]} and {v_BSHV.shape[-1]}"
    if implementation != "cudnn":
        return None
    if jax.default_backend() != "gpu":
        return f"cuDNN runs on a GPU, here is a {jax.default_backend()}"
    if q_BTHK.dtype not in (jnp.bfloat16, jnp.float16):
        return f"cuDNN computes in bfloat16 or float16, here is {q_BTHK.dtype}"
    if q_BTHK.shape[1] % 2 or k_BSHK.shape[1] % 2:
        return f"cuDNN needs even lengths, here are {q_BTHK.shape[1]} and {k_BSHK.shape[1]}"
    return None


@functools.cache
def warn_once(implementation: str, reason: str) -> None:
    logger.warning("attention falls back from %r to 'plain': %s", implementation, reason)


def fused_attention(
    implementation: str,
    q_BTHK: jax.Array,
    k_BSHK: jax.Array,
    v_BSHV: jax.Array,
    mask: jax.Array | None,
    bias: jax.Array | None,
) -> jax.Array:
    """Equation 1 without its weights; equal to the plain one, also in rows that may attend to nothing."""
    shape_BHTS = (q_BTHK.shape[0], q_BTHK.shape[2], q_BTHK.shape[1], k_BSHK.shape[1])
    if mask is not None:
        # cuDNN takes no mask that broadcasts over queries or keys.
        mask = jnp.broadcast_to(mask, (*mask.shape[:2], *shape_BHTS[2:]))
    if bias is not None:
        bias = jnp.broadcast_to(bias, (*bias.shape[:2], *shape_BHTS[2:]))
        bias = bias.astype(q_BTHK.dtype) if implementation == "cudnn" else bias  # cuDNN takes no other type
    is_float32 = precision_of(q_BTHK) is None
    with contextlib.nullcontext() if is_float32 else jax.default_matmul_precision("default"):
        output_BTHV = jax.nn.dot_product_attention(
            q_BTHK, k_BSHK, v_BSHV, bias, mask, implementation="cudnn" if implementation == "cudnn" else "xla"
        )
    if mask is None:
        return output_BTHV
    # For a row that may attend to nothing JAX returns the mean of the values; here it is zero.
    any_BT11 = jnp.moveaxis(mask.any(-1, keepdims=True), 1, 2)
    return jnp.where(any_BT11, output_BTHV, jnp.zeros_like(output_BTHV))
