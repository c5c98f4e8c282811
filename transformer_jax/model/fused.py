"""Attention by jax.nn.dot_product_attention ("jax") or its cuDNN kernels ("cudnn"), where these support what is needed.

"jax" is tested on CPUs. "cudnn" is tested there with the kernels replaced, and compiled for GPUs; `checked` compares it
with the plain formula on the device before a run uses it.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import logging
import re
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.model.linear import precision_of
from transformer_jax.model_config import ModelConfig

logger = logging.getLogger("transformer_jax")

CUDNN = "cudnn"  # how jax.nn.dot_product_attention calls these kernels; tests replace them by "xla"
LARGEST_HEAD = 128  # Hopper has kernels for 256, but what is traced does not know the GPU


def resolved(config: ModelConfig, device: jax.Device, is_divided: bool) -> ModelConfig:
    """The config for a program on such devices: `auto` is decided, and `cudnn` replaced where it cannot run.

    `is_divided`: each device computes whole heads of its own rows. Where XLA divides a program, a kernel's rows and
    their lengths may be divided in different ways.
    """
    wanted = config.attention_implementation
    if wanted not in ("auto", "cudnn"):
        return config
    # ROCm's GPUs have names here, gfx942; cuDNN's kernels begin with Ampere, 8.0.
    capability = re.fullmatch(r"(\d+)\.\d+", str(getattr(device, "compute_capability", "")))
    has_kernels = device.platform == "gpu" and capability is not None and int(capability[1]) >= 8
    if wanted == "cudnn" and not has_kernels:
        warn_once("cudnn", f"cuDNN's kernels need an NVIDIA GPU, Ampere or later, here is a {device.device_kind}")
    elif wanted == "cudnn" and not is_divided:
        warn_once("cudnn", "programs on several devices that are divided by XLA do not allow kernels")
    runs = has_kernels and is_divided
    chosen: Any = "cudnn" if runs and (wanted == "cudnn" or config.dtype == "bfloat16") else "plain"
    return dataclasses.replace(config, attention_implementation=chosen)


def checked(config: ModelConfig, device: jax.Device) -> ModelConfig:
    """The config, with plain attention if the kernels that it would use on this device fail or give another result.

    Compares values and gradients on a tiny batch, in less than a second. Call it outside of jit.
    """
    if resolved(config, device, is_divided=True).attention_implementation != "cudnn":
        return config
    try:
        with jax.default_device(device):
            worst = _difference(config)
        problem = None if worst < 0.05 else f"its results differ from the plain formula's by {worst:.2g}"
    except Exception as error:  # whatever the compiler or the driver raises
        problem = f"it fails: {str(error).splitlines()[0]}"
    if problem is None:
        return config
    warn_once("cudnn", problem)
    return dataclasses.replace(config, attention_implementation="plain")


def _difference(config: ModelConfig) -> float:
    """The largest difference of output and gradients from the plain formula, relative to the largest entry of each."""
    length, lengths_B = 16, jnp.array([16, 11])
    heads, kv_heads, d_k, d_v = config.num_heads, config.key_value_heads, config.key_size, config.value_size
    shapes = (heads, d_k), (kv_heads, d_k), (kv_heads, d_v), (heads, d_v)
    keys = jax.random.split(jax.random.key(0), len(shapes))
    *inputs, weights = (
        jax.random.normal(key, (2, length, *shape), config.dtype) for key, shape in zip(keys, shapes, strict=True)
    )

    def kernel(q_BTHK: jax.Array, k_BSHK: jax.Array, v_BSHV: jax.Array) -> jax.Array:
        return fused_attention("cudnn", q_BTHK, k_BSHK, v_BSHV, None, None, config.score_scale, lengths_B, True)

    def plain(*inputs: jax.Array) -> jax.Array:
        q_BTHK, k_BSHK, v_BSHV = (x.astype(jnp.float32) for x in inputs)
        k_BSHK, v_BSHV = (jnp.repeat(x, heads // kv_heads, axis=2) for x in (k_BSHK, v_BSHV))
        places = jnp.arange(length)
        hidden_BTS = (places[None, :] > places[:, None])[None] | (places[None] >= lengths_B[:, None])[:, None]
        scores_BHTS = jnp.einsum("bthk,bshk->bhts", q_BTHK, k_BSHK) * config.score_scale
        weights_BHTS = jax.nn.softmax(jnp.where(hidden_BTS[:, None], -jnp.inf, scores_BHTS))
        return jnp.einsum("bhts,bshv->bthv", weights_BHTS, v_BSHV).astype(inputs[0].dtype)

    @functools.partial(jax.jit, static_argnums=0)
    def output_and_gradients(attention: Any) -> list[jax.Array]:
        output, pull_back = jax.vjp(attention, *inputs)
        return [output, *pull_back(weights)]

    pairs = zip(output_and_gradients(kernel), output_and_gradients(plain), strict=True)
    return max(float(jnp.max(jnp.abs(ours - theirs)) / jnp.max(jnp.abs(theirs))) for ours, theirs in pairs)


def unsupported(
    implementation: str,
    q_BTHK: jax.Array,
    v_BSHV: jax.Array,
    is_described: bool,
    has_bias: bool,
    has_softcap: bool,
    weights_needed: bool,
) -> str | None:
    """Why the implementation cannot compute this attention, or None if it can.

    `is_described`: there is no mask, or lengths and `is_causal` say the same.
    """
    width = q_BTHK.shape[-1]
    if weights_needed:
        return "the attention weights themselves are needed (to show or drop them, or for relative positions)"
    if has_softcap:
        return "jax.nn.dot_product_attention has no soft-capping of the scores (model.attention_softcap)"
    if width != v_BSHV.shape[-1]:
        return f"it needs d_k = d_v, here {width} and {v_BSHV.shape[-1]}"
    if implementation != "cudnn":
        return None
    if not is_installed():
        return "cuDNN is not installed: pip install 'jax[cuda13]'"
    if q_BTHK.dtype not in (jnp.bfloat16, jnp.float16):
        return f"cuDNN computes in bfloat16 or float16, here is {q_BTHK.dtype}"
    if width % 8 or width > LARGEST_HEAD:
        return f"cuDNN needs a d_k that is a multiple of 8 and at most {LARGEST_HEAD}, here is {width}"
    if has_bias:
        return "the position encoding adds to the scores (T5, ALiBi, Transformer-XL)"
    if not is_described:
        return "the mask is not only of padding and later tokens (packed or given masks, decoding steps)"
    return None


@functools.cache
def is_installed() -> bool:
    return any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))


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
    scale: float | None,
    lengths_B: jax.Array | None,
    is_causal: bool,
) -> jax.Array:
    """Equation 1 without its weights; `scale` replaces 1 / sqrt(d_k). cuDNN reads lengths and a flag, not the mask.

    By cuDNN a row without tokens attends to its first key, where the plain formula has zeros: no loss depends on it.
    """
    attend: Any = functools.partial(jax.nn.dot_product_attention, q_BTHK, k_BSHK, v_BSHV, scale=scale)
    if implementation == "cudnn":
        options: dict[str, Any] = {"is_causal": is_causal, "implementation": CUDNN}
        if lengths_B is not None:
            # Under `vmap` the kernel needs lengths for the rows of each member, also where these share a batch.
            lengths_B = jnp.where(q_BTHK[:, 0, 0, 0] == 0, lengths_B, lengths_B)
            queries_B = jnp.full_like(lengths_B, q_BTHK.shape[1]) + 0 * lengths_B
            options |= {"query_seq_lengths": queries_B, "key_value_seq_lengths": jnp.maximum(lengths_B, 1)}
        output_BTHV: jax.Array = attend(**options)
        return output_BTHV
    is_float32 = precision_of(q_BTHK) is None
    with contextlib.nullcontext() if is_float32 else jax.default_matmul_precision("default"):
        output_BTHV = attend(bias=bias, mask=mask, implementation="xla")
    if mask is None:
        return output_BTHV
    # For a row that may attend to nothing JAX returns the mean of the values; here it is zero.
    any_BT11 = jnp.moveaxis(mask.any(-1, keepdims=True), 1, 2)
    return jnp.where(any_BT11, output_BTHV, jnp.zeros_like(output_BTHV))
