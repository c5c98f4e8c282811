"""Attention by cuDNN's kernels, through jax.nn.dot_product_attention, and who may use them.

In tests on CPUs JAX's own formula is called in their place. They are compiled for GPUs in tests/accelerators, and
training/kernels.py compares them with the formula on the device before a run uses them.
"""

import dataclasses
import functools
import logging
import re
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from transformer_jax.errors import BadInput
from transformer_jax.model.context import Context
from transformer_jax.model.meshes import explicit_mesh
from transformer_jax.model.positions import OF_SCORES
from transformer_jax.model_config import ModelConfig

logger = logging.getLogger("transformer_jax")

CUDNN = "cudnn"  # how jax.nn.dot_product_attention calls these kernels; tests replace them by "xla"
LARGEST_HEAD = 128  # Hopper has kernels for 256, but what is traced does not know the GPU


def resolved(config: ModelConfig, device: jax.Device, has_whole_heads: bool) -> ModelConfig:
    """The config for a program on such devices: `auto` is decided, and what cannot run there becomes `plain`.

    `has_whole_heads`: each device computes whole heads of its rows. Where XLA divides a program, a kernel's rows and
    their lengths may be divided in different ways.
    """
    wanted, width = config.attention_implementation, config.key_size
    # ROCm's GPUs have names here, gfx942; cuDNN's kernels begin with Ampere, 8.0.
    capability = re.fullmatch(r"(\d+)\.\d+", str(getattr(device, "compute_capability", "")))
    has_kernels = device.platform == "gpu" and capability is not None and int(capability[1]) >= 8
    reasons = {
        "cuDNN has no model.attention_softcap": config.attention_softcap is not None,
        f"cuDNN needs d_k = d_v, not {width} and {config.value_size}": width != config.value_size,
        f"cuDNN needs an NVIDIA GPU, Ampere or later, not {device.device_kind}": not has_kernels,
        "cuDNN needs devices that divide a batch by rows, and by whole heads": not has_whole_heads,
        f"cuDNN needs model.dtype = bfloat16, not {config.dtype}": config.dtype != "bfloat16",
        f"cuDNN needs d_k <= {LARGEST_HEAD}, a multiple of 8, not {width}": width % 8 > 0 or width > LARGEST_HEAD,
    }
    problem = next((reason for reason, applies in reasons.items() if applies), None)
    if problem and wanted == "cudnn":
        warn_once(problem)
    return dataclasses.replace(config, attention_implementation="plain" if problem or wanted == "plain" else "cudnn")


@functools.cache
def warn_once(reason: str) -> None:
    logger.warning("attention falls back from 'cudnn' to 'plain': %s", reason)


def computes(context: Context, q_BTHK: jax.Array) -> bool:
    """Whether lengths, a flag and a window say all that acts on the scores.

    A mask with its own keys for a head says more than lengths, and so does one with its own for a query, unless it is
    causal. XLA cannot divide kernels over a mesh with explicit axes.
    """
    is_known = context.mask is None or context.lengths_B is not None
    if context.mask is not None:
        heads, queries = context.mask.shape[1:3]
        is_known &= heads == 1 and (context.is_causal or queries == 1)
    is_known &= context.window is None or context.is_causal
    is_known &= context.bias is None and (context.encoding is None or not context.encoding.overrides(*OF_SCORES))
    return is_known and context.cache is None and context.segments_BT is None and explicit_mesh(q_BTHK) is None


def attention(
    q_BTHK: jax.Array, k_BSHK: jax.Array, v_BSHV: jax.Array, scale: float | None, context: Context
) -> jax.Array:
    """Equation 1 by kernels; NaN in rows whose mask shows the last query other keys than the first `lengths_B`."""
    lengths_B, options = context.lengths_B, (context.is_causal, context.window)
    heads_BTHV = fused_attention(q_BTHK, k_BSHK, v_BSHV, scale, lengths_B, *options)
    if lengths_B is None:
        return heads_BTHV
    # The last query sees the keys of its row: its part of the mask has no later ones, and never a window's.
    are_first_BS = jnp.arange(k_BSHK.shape[1])[None] < jnp.asarray(lengths_B)[:, None]
    is_described_B = (context.mask[:, 0, -1] == are_first_BS).all(axis=1)
    return jnp.where(is_described_B[:, None, None, None], heads_BTHV, jnp.nan)


def fused_attention(
    q_BTHK: jax.Array,
    k_BSHK: jax.Array,
    v_BSHV: jax.Array,
    scale: float | None = None,
    lengths_B: Any = None,
    is_causal: bool = False,
    window: int | None = None,
) -> jax.Array:
    """Equation 1 without its weights. The mask is described by lengths and a flag; a window needs `is_causal`.

    A row without tokens attends to its first key, where the plain formula has zeros: no loss depends on it.
    """
    lengths: dict[str, jax.Array] = {}
    options: dict[str, Any] = {"scale": scale, "is_causal": is_causal, "implementation": CUDNN}
    if window is not None:
        options["local_window_size"] = window, 0
    if lengths_B is not None:
        # Under `vmap` the kernel needs lengths for the rows of each member, also where these share a batch.
        lengths_B = jnp.where(q_BTHK[:, 0, 0, 0] == 0, lengths_B, lengths_B)
        queries_B = jnp.full_like(lengths_B, q_BTHK.shape[1]) + 0 * lengths_B
        lengths = {"query_seq_lengths": queries_B, "key_value_seq_lengths": jnp.maximum(lengths_B, 1)}

    def kernel(q_BTHK: jax.Array, k_BSHK: jax.Array, v_BSHV: jax.Array, lengths: Any) -> jax.Array:
        try:
            return jax.nn.dot_product_attention(q_BTHK, k_BSHK, v_BSHV, **lengths, **options)
        except RuntimeError as error:
            if "cuDNN is not detected" not in str(error):
                raise
            raise BadInput("implementation = 'cudnn': needs an NVIDIA GPU with cuDNN; 'plain' runs anywhere") from error

    if jax.sharding.get_abstract_mesh().shape.get("tensor", 1) > 1:  # XLA cannot divide kernels over devices
        heads = PartitionSpec(None, None, "tensor")
        specs: Any = {"in_specs": (heads, heads, heads, PartitionSpec()), "out_specs": heads}
        kernel = jax.shard_map(kernel, **specs, axis_names={"tensor"}, check_vma=False)
    return kernel(q_BTHK, k_BSHK, v_BSHV, lengths)
