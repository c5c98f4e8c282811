"""Tries cuDNN's attention on the devices of a run before the run uses it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from transformer_jax.config import ExperimentConfig
from transformer_jax.model import fused
from transformer_jax.model_config import ModelConfig
from transformer_jax.processes.distributed import processes


def with_checked_attention(experiment: ExperimentConfig) -> ExperimentConfig:
    """The experiment, with plain attention if fused kernels fail or are wrong on a device of any of the processes."""
    model = checked(experiment.model, jax.local_devices()[0])
    if "plain" in processes().gather(model.attention_implementation):
        model = dataclasses.replace(model, attention_implementation="plain")
    return dataclasses.replace(experiment, model=model)


def checked(config: ModelConfig, device: jax.Device) -> ModelConfig:
    """The config, with plain attention if the kernels that it would use on this device fail or give another result.

    Compares value and gradients with JAX's own formula on a tiny batch, in less than a second, outside of jit.
    """
    if fused.resolved(config, device, has_whole_heads=True).attention_implementation != "cudnn":
        return config
    try:
        with jax.default_device(device):
            difference = _difference(config)
        problem = None if difference < 0.05 else f"its results differ from the formula's by {difference:.2g}"
    except Exception as error:  # whatever the compiler or the driver raises
        problem = f"it fails: {str(error).splitlines()[0]}"
    if problem is None:
        return config
    fused.warn_once(problem)
    return dataclasses.replace(config, attention_implementation="plain")


def _difference(config: ModelConfig) -> float:
    """Between attention of two short rows by the kernels and by the formula, causal and with padding.

    The largest of the output and the gradients, relative to the largest entry of each; NaN if there is one.
    """
    lengths_B, places, heads = jnp.array([16, 11]), jnp.arange(16), config.num_heads
    window = None if config.window is None else 4
    distances_TS = places[None] - places[:, None]
    seen_TS = (distances_TS <= 0) & (distances_TS >= -(window or 16))
    mask_B1TS = (seen_TS[None] & (places[None] < lengths_B[:, None])[:, None])[:, None]
    *inputs, weights = (
        jax.random.normal(jax.random.key(i), (2, 16, count, config.key_size), config.dtype)
        for i, count in enumerate((heads, config.key_value_heads, config.key_value_heads, heads))
    )
    scale, differences = config.score_scale, []
    kernels = functools.partial(fused.fused_attention, scale=scale, lengths_B=lengths_B, is_causal=True, window=window)
    formula = functools.partial(jax.nn.dot_product_attention, scale=scale, mask=mask_B1TS, implementation="xla")
    (ours, pull_ours), (theirs, pull_theirs) = (jax.vjp(jax.jit(each), *inputs) for each in (kernels, formula))
    for a, b in zip([ours, *pull_ours(weights)], [theirs, *pull_theirs(weights)], strict=True):
        differences.append(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b)))
    return float(jnp.max(jnp.array(differences)))
