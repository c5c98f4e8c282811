"""Devices to compile for that need not exist.

XLA compiles for a description of devices. For TPUs libtpu has all descriptions (`jax[tpu]`), for GPUs the CUDA plugin
(`jax[cuda13]`) is given one from accelerators.py. Neither needs a device, and nothing is run.
"""

import importlib.util
import math
import os
import re
from typing import Any, NamedTuple

import jax

from transformer_jax.accelerators import ACCELERATORS, GPU, Accelerator
from transformer_jax.errors import BadInput, did_you_mean
from transformer_jax.model_config import ModelConfig

GPUS_PER_HOST = 8
MAX_DEVICES = 4096
CHIPS = {chip.name: chip for chip in ACCELERATORS.values() if chip.name}


class Target(NamedTuple):
    """Devices to compile for, and the options of their compiler."""

    name: str
    platforms: tuple[str, ...] | None  # to lower a program for: "tpu" or "cuda"; None = the devices here
    chip: Accelerator
    devices: tuple[Any, ...]  # jax.Device, without a device behind it unless it is here
    options: dict[str, str]

    def flops(self, model: ModelConfig) -> tuple[float | None, str]:
        """FLOP/s of one device for the model's matrix products by the data sheet, and their type."""
        peak, name = self.chip.teraflops(model.dtype, model.matmul_precision)
        return None if peak is None else self.chip.share * peak * 1e12, name


def here() -> Target:
    """The devices of this process."""
    kind = jax.devices()[0].device_kind
    chip = ACCELERATORS.get(kind, Accelerator(kind, None, None, None, ""))
    return Target("this machine", None, chip, tuple(jax.devices()), {})


def parse_target(text: str) -> Target:
    """The devices that v5e:2x4, v5p:8x8x8, H100 or 64xH100 names."""
    if (tpu := re.fullmatch(r"(\w+):(\d+x\d+(?:x\d+)?)", text)) and tpu[1] in CHIPS:
        layout = [int(size) for size in tpu[2].split("x")]
        if math.prod(layout) <= MAX_DEVICES:
            return _tpus(text, CHIPS[tpu[1]], layout)
    elif (gpu := re.fullmatch(r"(?:(\d{1,4})x)?(\w+)", text)) and gpu[2] in CHIPS and CHIPS[gpu[2]].gpu:
        count = int(gpu[1] or 1)
        if 1 <= count <= GPUS_PER_HOST or (count % GPUS_PER_HOST == 0 and 0 < count <= MAX_DEVICES):
            return _gpus(text, CHIPS[gpu[2]], count)
    names = [f"8x{name}" if chip.gpu else f"{name}:2x2x1" for name, chip in CHIPS.items()] + ["v5e:2x4", "v6e:2x4"]
    sizes = f"at most {MAX_DEVICES:,} devices, GPUs in machines of {GPUS_PER_HOST}"
    raise BadInput(f"--compile-for={text}: is not known ({sizes}); {did_you_mean(text, names)}")


def _gpus(text: str, chip: Accelerator, count: int) -> Target:
    shape = f"1x{max(count // GPUS_PER_HOST, 1)}x{min(count, GPUS_PER_HOST)}"
    config = GPU.format(chip=chip)
    devices = _topology(text, "jax[cuda13]", platform="cuda", topology_name=shape, topology=shape, target_config=config)
    # On the machine itself autotuning times kernels; here there is nothing to time.
    return Target(text, ("cuda",), chip, devices, {"xla_gpu_autotune_level": "0"})


def _tpus(text: str, chip: Accelerator, layout: list[int]) -> Target:
    # Otherwise libtpu asks the cloud what machine this is, and holds a lock that only one process can have.
    settings = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_WORKER_HOSTNAMES": "localhost"}
    os.environ.update({name: value for name, value in settings.items() if name not in os.environ})
    one_host = {"chips_per_host_bounds": (*layout, 1, 1)[:3]} if math.prod(layout) < 4 else {}
    devices = _topology(text, "jax[tpu]", platform="tpu", topology_name=text, **one_host)
    return Target(text, ("tpu",), chip, devices, {})


def _topology(text: str, extra: str, **description: Any) -> tuple[Any, ...]:
    from jax.experimental import topologies

    plugins = {"jax[tpu]": ("libtpu",), "jax[cuda13]": ("jax_cuda13_plugin", "jax_cuda12_plugin")}[extra]
    if not any(map(importlib.util.find_spec, plugins)):
        raise BadInput(f"--compile-for={text}: needs its compiler: pip install '{extra}' (no device is needed)")
    jax.config.update("jax_platforms", "cpu")  # the plugin compiles, and runs nothing
    try:
        return tuple(topologies.get_topology_desc(**description).devices)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise BadInput(f"--compile-for={text}: the compiler has no such devices: {reason}") from None
