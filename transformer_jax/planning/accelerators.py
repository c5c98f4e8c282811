"""Accelerators that need not exist: what XLA needs to know to compile for them, and what their data sheets say.

XLA compiles for a description of devices. For TPUs libtpu has all descriptions (`jax[tpu]`), for GPUs the CUDA plugin
(`jax[cuda13]`) is given one from the table below. Neither needs a device, and nothing is run.
"""

import importlib.util
import math
import os
import re
from typing import Any, NamedTuple

import jax

from transformer_jax.errors import BadInput
from transformer_jax.model_config import ModelConfig
from transformer_jax.processes.hardware import PEAKS, figure
from transformer_jax.schema import nearest

GPUS_PER_HOST = 8
MAX_DEVICES = 4096


class Chip(NamedTuple):
    """One device of a kind: its name in JAX, its memory in bytes and the memory's bytes per second.

    A JAX device is a chip; on TPU v4 and TPU7x it is one of a chip's two cores.
    """

    kind: str
    memory: float
    bandwidth: float
    share: float = 1.0  # of the chip whose peak PEAKS has
    gpu: str = ""  # the rest of XLA's description of a GPU

    def flops(self, model: ModelConfig) -> tuple[float | None, str]:
        """FLOP/s of this model's matrix products by the data sheet, and their type."""
        peak, name = figure(PEAKS[self.kind], model.dtype, model.matmul_precision)
        return None if peak is None else self.share * peak * 1e12, name


# XLA's description of a GPU (GpuTargetConfigProto): what all of these have, then what differs. From Hopper on, XLA also
# uses features of a single architecture. From openxla/xla, xla/backends/gpu/target_config/specs/.
GPU = (
    'platform_name: "CUDA"\ndnn_version_info {{ major: 9 minor: 10 }}\ndevice_description_str: "{chip.kind}"\n'
    "gpu_device_info {{ memory_bandwidth: {chip.bandwidth} device_memory_size: {chip.memory} {chip.gpu}\n"
    "threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 shared_memory_per_block: 49152 "
    "block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 registers_per_core_limit: 65536 "
    "registers_per_block_limit: 65536 }}\n"
)
A100 = (
    "core_count: 108 fpus_per_core: 64 clock_rate_ghz: 1.41 l2_cache_size: 41943040 shared_memory_per_core: 167936 "
    "shared_memory_per_block_optin: 166912 cuda_compute_capability { major: 8 }"
)
H100 = (
    "core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98 l2_cache_size: 52428800 shared_memory_per_core: 233472 "
    "shared_memory_per_block_optin: 232448 "
    "cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }"
)
B200 = (
    "core_count: 148 fpus_per_core: 128 clock_rate_ghz: 1.965 l2_cache_size: 132644864 shared_memory_per_core: 233472 "
    "shared_memory_per_block_optin: 232448 "
    "cuda_compute_capability { major: 10 feature_extension: ACCELERATED_FEATURES }"
)
# TPUs from cloud.google.com/tpu/docs, GPUs from the same files as above.
CHIPS = {
    "v4": Chip("TPU v4", 16 * 2**30, 614e9, share=0.5),
    "v5e": Chip("TPU v5 lite", 16e9, 819e9),
    "v5p": Chip("TPU v5", 95e9, 2765e9),
    "v6e": Chip("TPU v6 lite", 32e9, 1640e9),
    "tpu7x": Chip("TPU7x", 96e9, 3690e9, share=0.5),
    "A100": Chip("NVIDIA A100-SXM4-80GB", 85_100_068_864, 2_039_040_000_000, gpu=A100),
    "H100": Chip("NVIDIA H100 80GB HBM3", 84_942_979_072, 3_352_320_000_000, gpu=H100),
    "H200": Chip("NVIDIA H200", 151_397_597_184, 4_800_000_000_000, gpu=H100),
    "B200": Chip("NVIDIA B200", 191_514_411_008, 7_672_320_000_000, gpu=B200),
}


class Target(NamedTuple):
    """Devices to compile for, and the options of their compiler."""

    name: str
    platform: str  # as JAX calls it when it lowers a program: "tpu" or "cuda"
    chip: Chip
    devices: tuple[Any, ...]  # jax.Device without a device behind it
    options: dict[str, str]


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
    raise BadInput(f"--compile-for={text}: is not known ({sizes}); {nearest(text, names)}")


def _gpus(text: str, chip: Chip, count: int) -> Target:
    shape = f"1x{max(count // GPUS_PER_HOST, 1)}x{min(count, GPUS_PER_HOST)}"
    config = GPU.format(chip=chip)
    devices = _topology(text, "jax[cuda13]", platform="cuda", topology_name=shape, topology=shape, target_config=config)
    # On the machine itself autotuning times kernels; here there is nothing to time.
    return Target(text, "cuda", chip, devices, {"xla_gpu_autotune_level": "0"})


def _tpus(text: str, chip: Chip, layout: list[int]) -> Target:
    # Otherwise libtpu asks the cloud what machine this is, and holds a lock that only one process can have.
    settings = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_WORKER_HOSTNAMES": "localhost"}
    os.environ.update({name: value for name, value in settings.items() if name not in os.environ})
    one_host = {"chips_per_host_bounds": (*layout, 1, 1)[:3]} if math.prod(layout) < 4 else {}
    devices = _topology(text, "jax[tpu]", platform="tpu", topology_name=text, **one_host)
    return Target(text, "tpu", chip, devices, {})


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
