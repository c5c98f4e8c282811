"""Attention by jax.nn.dot_product_attention or its cuDNN kernels, where these support what is needed.

"jax" is tested on CPUs. "cudnn" is tested there with the kernels replaced, compiled for GPUs, and has never been run.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import logging
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from transformer_jax.model.masks import Mask, TokenMask
from transformer_jax.model.precision import precision_of
from transformer_jax.model_config import ModelConfig

logger = logging.getLogger("transformer_jax")

CUDNN = "cudnn"  # how jax.nn.dot_product_attention calls these kernels; tests replace them by "xla"
LARGEST_HEAD = 128  # Hopper has kernels for 256, but what is traced does not know the GPU


def resolved(config: ModelConfig, device: jax.Device, is_divided: bool) -> ModelConfig:
    """The config for a program on such devices: `auto` is decided, and `cudnn` replaced where it cannot run.

    `is_divided`: on each device the program computes rows of its own. Where XLA divides it, a kernel's rows and their
    lengths may be divided in different ways.
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
        warn_once("cudnn", "evaluation and scoring on several devices are divided by XLA, which kernels do not allow")
    runs = has_kernels and is_divided
    chosen: Any = "cudnn" if runs and (wanted == "cudnn" or config.dtype == "bfloat16") else "plain"
    return dataclasses.replace(config, attention_implementation=chosen)


def takes_token_masks(config: ModelConfig) -> bool:
    """Whether masks of padding may stay descriptions. Custom attention and custom layers are given arrays."""
    parts = config.parts
    is_custom = any((parts.attention, parts.encoder_layer, parts.decoder_layer))
    return config.attention_implementation == "cudnn" and not is_custom


def unsupported(
    implementation: str,
    q_BTHK: jax.Array,
    v_BSHV: jax.Array,
    mask: Mask,
    has_bias: bool,
    has_softcap: bool,
    weights_needed: bool,
) -> str | None:
    """Why the implementation cannot compute this attention, or None if it can."""
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
    if isinstance(mask, jax.Array):
        return "the mask is not only of padding and later tokens (packed or given masks, custom layers, decoding steps)"
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
    mask: Any,
    bias: jax.Array | None,
    scale: float | None = None,
) -> jax.Array:
    """Equation 1 without its weights; `scale` replaces 1 / sqrt(d_k)."""
    if implementation == "cudnn":
        return _by_cudnn(q_BTHK, k_BSHK, v_BSHV, mask, scale)
    return _by_jax(q_BTHK, k_BSHK, v_BSHV, mask, bias, scale)


def _by_jax(
    q_BTHK: jax.Array,
    k_BSHK: jax.Array,
    v_BSHV: jax.Array,
    mask: jax.Array | None,
    bias: jax.Array | None,
    scale: float | None,
) -> jax.Array:
    """Equal to the plain one, also in rows that may attend to nothing."""
    is_float32 = precision_of(q_BTHK) is None
    with contextlib.nullcontext() if is_float32 else jax.default_matmul_precision("default"):
        attend: Any = functools.partial(jax.nn.dot_product_attention, scale=scale, implementation="xla")
        output_BTHV = attend(q_BTHK, k_BSHK, v_BSHV, bias, mask)
    if mask is None:
        return output_BTHV
    # For a row that may attend to nothing JAX returns the mean of the values; here it is zero.
    any_BT11 = jnp.moveaxis(mask.any(-1, keepdims=True), 1, 2)
    return jnp.where(any_BT11, output_BTHV, jnp.zeros_like(output_BTHV))


def _by_cudnn(
    q_BTHK: jax.Array, k_BSHK: jax.Array, v_BSHV: jax.Array, mask: TokenMask | None, scale: float | None
) -> jax.Array:
    """By kernels that keep no scores. Queries at padding count as any others, as in the plain formula.

    A row without tokens attends to its first key, where the plain formula has zeros: nothing that counts depends on it.
    """
    (rows, queries), keys = q_BTHK.shape[:2], k_BSHK.shape[1]
    lengths_B = jnp.full(rows, keys, jnp.int32) if mask is None else jnp.maximum(mask.lengths_B, 1)

    def kernel(q_BTHK: jax.Array, k_BSHK: jax.Array, v_BSHV: jax.Array, lengths_B: jax.Array) -> jax.Array:
        q_BTHK, k_BSHK, v_BSHV = (_even(array) for array in (q_BTHK, k_BSHK, v_BSHV))
        lengths = {"query_seq_lengths": jnp.full_like(lengths_B, q_BTHK.shape[1]), "key_value_seq_lengths": lengths_B}
        # Under `vmap` the kernel needs lengths for the rows of each member, also where these share a batch.
        own_B = q_BTHK[:, 0, 0, 0] == 0
        lengths = {name: jnp.where(own_B, each, each) for name, each in lengths.items()}
        options = {"is_causal": mask is not None and mask.causal, "scale": scale, "implementation": CUDNN}
        attend: Any = functools.partial(jax.nn.dot_product_attention, **options)
        return attend(q_BTHK, k_BSHK, v_BSHV, **lengths)[:, :queries]

    return _over_heads(kernel, q_BTHK, k_BSHK, v_BSHV, lengths_B)


def _even(x_BTHK: jax.Array) -> jax.Array:
    """With one more position if there is an odd number of them, which the kernels' gradients do not allow."""
    return jnp.pad(x_BTHK, ((0, 0), (0, x_BTHK.shape[1] % 2), (0, 0), (0, 0)))


def _over_heads(attention, *arrays):  # type: ignore[no-untyped-def]
    """Attention on each device's own heads. XLA cannot divide a kernel inside a `shard_map` over some of the axes."""
    mesh = jax.sharding.get_abstract_mesh()
    rest = tuple(name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind != AxisType.Manual)
    if not rest:
        return attention(*arrays)
    devices = math.prod(mesh.shape[name] for name in rest)
    divides = all(array.shape[2] % devices == 0 for array in arrays if array.ndim == 4)
    heads = PartitionSpec(None, None, rest if divides else None)
    specs = tuple(heads if array.ndim == 4 else PartitionSpec() for array in arrays)
    return jax.shard_map(attention, in_specs=specs, out_specs=heads, axis_names=set(rest), check_vma=False)(*arrays)
