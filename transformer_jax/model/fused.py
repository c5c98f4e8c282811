"""Attention by jax.nn.dot_product_attention ("jax") or its cuDNN kernels ("cudnn"), and who may use them.

"jax" is tested on CPUs. "cudnn" is tested there with the kernels replaced, and compiled for GPUs; `checked` compares it
with JAX's formula on the device before a run uses it.
"""

import contextlib
import dataclasses
import functools
import logging
import re
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from transformer_jax.model.layers import precision_of
from transformer_jax.model_config import ModelConfig

logger = logging.getLogger("transformer_jax")

CUDNN = "cudnn"  # how jax.nn.dot_product_attention calls these kernels; tests replace them by "xla"
LARGEST_HEAD = 128  # Hopper has kernels for 256, but what is traced does not know the GPU


def resolved(config: ModelConfig, device: jax.Device, is_local: bool) -> ModelConfig:
    """The config for a program on such devices: `auto` is decided, and what cannot run there becomes `plain`.

    `is_local`: each device computes whole heads of its own rows. Where XLA divides a program, a kernel's rows and
    their lengths may be divided in different ways.
    """
    wanted = config.attention_implementation
    kind: Any = "cudnn" if wanted == "auto" else wanted
    width = config.key_size
    # ROCm's GPUs have names here, gfx942; cuDNN's kernels begin with Ampere, 8.0.
    capability = re.fullmatch(r"(\d+)\.\d+", str(getattr(device, "compute_capability", "")))
    has_kernels = device.platform == "gpu" and capability is not None and int(capability[1]) >= 8
    reasons = {
        "it has no model.attention_softcap": config.attention_softcap is not None,
        f"it needs d_k = d_v, here {width} and {config.value_size}": width != config.value_size,
    }
    if kind == "cudnn":
        reasons |= {
            f"cuDNN needs an NVIDIA GPU, Ampere or later, here is a {device.device_kind}": not has_kernels,
            "cuDNN needs devices that divide a batch by rows, and by whole heads": not is_local,
            f"cuDNN computes in bfloat16, here is {config.dtype}": config.dtype != "bfloat16",
            f"cuDNN needs d_k <= {LARGEST_HEAD}, a multiple of 8, not {width}": width % 8 > 0 or width > LARGEST_HEAD,
        }
    problem = next((reason for reason, applies in reasons.items() if applies and wanted != "plain"), None)
    if problem and wanted != "auto":
        warn_once(wanted, problem)
    return dataclasses.replace(config, attention_implementation="plain" if problem else kind)


@functools.cache
def warn_once(implementation: str, reason: str) -> None:
    logger.warning("attention falls back from %r to 'plain': %s", implementation, reason)


def fused_attention(
    implementation: str,
    q_BTHK: jax.Array,
    k_BSHK: jax.Array,
    v_BSHV: jax.Array,
    mask: Any = None,
    bias: jax.Array | None = None,
    scale: float | None = None,
    lengths_B: Any = None,
    is_causal: bool = False,
    window: int | None = None,
) -> jax.Array | None:
    """Equation 1 without its weights, or None where cuDNN, which reads lengths and a flag, cannot compute it.

    Of windows it has kernels for causal ones; JAX's formula would need a whole matrix of weights.

    By cuDNN a row without tokens attends to its first key, where the plain formula has zeros: no loss depends on it.
    """
    attend: Any = functools.partial(jax.nn.dot_product_attention, scale=scale)
    output_BTHV: jax.Array
    if window is not None and not (implementation == "cudnn" and is_causal):
        return None
    if implementation == "cudnn":
        if bias is not None or (mask is not None and lengths_B is None):
            return None
        lengths: dict[str, jax.Array] = {}
        options: dict[str, Any] = {"is_causal": is_causal, "implementation": CUDNN}
        if window is not None:
            options["local_window_size"] = window, 0
        if lengths_B is not None:
            # Under `vmap` the kernel needs lengths for the rows of each member, also where these share a batch.
            lengths_B = jnp.where(q_BTHK[:, 0, 0, 0] == 0, lengths_B, lengths_B)
            queries_B = jnp.full_like(lengths_B, q_BTHK.shape[1]) + 0 * lengths_B
            lengths = {"query_seq_lengths": queries_B, "key_value_seq_lengths": jnp.maximum(lengths_B, 1)}
        kernel = lambda q, k, v, lengths: attend(q, k, v, **lengths, **options)  # noqa: E731
        if jax.sharding.get_abstract_mesh().shape.get("tensor", 1) > 1:  # XLA cannot divide kernels over devices
            heads = PartitionSpec(None, None, "tensor")
            specs: Any = {"in_specs": (heads, heads, heads, PartitionSpec()), "out_specs": heads}
            kernel = jax.shard_map(kernel, **specs, axis_names={"tensor"}, check_vma=False)
        output_BTHV = kernel(q_BTHK, k_BSHK, v_BSHV, lengths)
        return output_BTHV
    is_float32 = precision_of(q_BTHK) is None
    with contextlib.nullcontext() if is_float32 else jax.default_matmul_precision("default"):
        output_BTHV = attend(q_BTHK, k_BSHK, v_BSHV, bias=bias, mask=mask, implementation="xla")
    if mask is None:
        return output_BTHV
    # For a row that may attend to nothing JAX returns the mean of the values; here it is zero.
    any_BT11 = jnp.moveaxis(mask.any(-1, keepdims=True), 1, 2)
    return jnp.where(any_BT11, output_BTHV, jnp.zeros_like(output_BTHV))


def checked(config: ModelConfig, device: jax.Device) -> ModelConfig:
    """The config, with plain attention if the kernels that it would use on this device fail or give another result.

    Compares value and gradients with JAX's own formula on a tiny batch, in less than a second, outside of jit.
    """
    if resolved(config, device, is_local=True).attention_implementation != "cudnn":
        return config
    try:
        with jax.default_device(device):
            kernels, formula = _tried("cudnn", config), _tried("jax", config)
        # Relative to the largest entry of each array; a NaN is a difference.
        differences = [jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b)) for a, b in zip(kernels, formula, strict=True)]
        worst = float(jnp.max(jnp.array(differences)))
        problem = None if worst < 0.05 else f"its results differ from the formula's by {worst:.2g}"
    except Exception as error:  # whatever the compiler or the driver raises
        problem = f"it fails: {str(error).splitlines()[0]}"
    if problem is None:
        return config
    warn_once("cudnn", problem)
    return dataclasses.replace(config, attention_implementation="plain")


def _tried(implementation: str, config: ModelConfig) -> list[jax.Array]:
    """Attention of two short rows, causal and with padding, and its gradients."""
    lengths_B, places, heads = jnp.array([16, 11]), jnp.arange(16), config.num_heads
    mask_B1TS = ((places[None] <= places[:, None])[None] & (places[None] < lengths_B[:, None])[:, None])[:, None]
    q, k, v, weights = (
        jax.random.normal(jax.random.key(i), (2, 16, count, config.key_size), config.dtype)
        for i, count in enumerate((heads, config.key_value_heads, config.key_value_heads, heads))
    )
    options: dict[str, Any] = {"scale": config.score_scale, "lengths_B": lengths_B, "is_causal": True}
    if config.window is not None:
        mask_B1TS &= (places[:, None] - places[None] <= 4)[None, None]
        options["window"] = 4 if implementation == "cudnn" else None
    attend: Any = functools.partial(fused_attention, implementation, mask=mask_B1TS, **options)
    output, pull_back = jax.vjp(jax.jit(attend), q, k, v)
    return [output, *pull_back(weights)]
