"""Accelerators that need not exist: what XLA needs to know to compile for them, and what their data sheets say.

XLA compiles for a description of devices. For TPUs libtpu has all descriptions (`jax[tpu]`), for GPUs the CUDA plugin
(`jax[cuda13]`) is given one from the table below. Neither needs a device, and nothing is run.
"""

import dataclasses
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
    """One device of a kind: its name in JAX, its memory in bytes and the memory's bytes per second."""

    kind: str
    memory: float
    bandwidth: float
    source: str
    share: float = 1.0  # of the chip whose peak PEAKS has

    def flops(self, model: ModelConfig) -> tuple[float | None, str]:
        """FLOP/s of this model's matrix products by the data sheet, and their type."""
        peak, name = figure(PEAKS[self.kind], model.dtype, model.matmul_precision)
        return None if peak is None else self.share * peak * 1e12, name


# What JAX calls a device is a chip, except that of TPU v4 and TPU7x it is one of a chip's two cores.
TPUS = {
    "v4": Chip("TPU v4", 16 * 2**30, 614e9, "cloud.google.com/tpu/docs/v4, half of a chip", 0.5),
    "v5e": Chip("TPU v5 lite", 16e9, 819e9, "cloud.google.com/tpu/docs/v5e"),
    "v5p": Chip("TPU v5", 95e9, 2765e9, "cloud.google.com/tpu/docs/v5p"),
    "v6e": Chip("TPU v6 lite", 32e9, 1640e9, "cloud.google.com/tpu/docs/v6e"),
    "tpu7x": Chip("TPU7x", 96e9, 3690e9, "cloud.google.com/tpu/docs/tpu7x, half of a chip", 0.5),
}
SPECS = "openxla/xla, xla/backends/gpu/target_config/specs/"
GPUS = {
    "A100": Chip("NVIDIA A100-SXM4-80GB", 85_100_068_864, 2_039_040_000_000, f"{SPECS}a100_sxm_80.txtpb"),
    "H100": Chip("NVIDIA H100 80GB HBM3", 84_942_979_072, 3_352_320_000_000, f"{SPECS}h100_sxm.txtpb"),
    "H200": Chip("NVIDIA H200", 151_397_597_184, 4_800_000_000_000, f"{SPECS}h200.txtpb"),
    "B200": Chip("NVIDIA B200", 191_514_411_008, 7_672_320_000_000, f"{SPECS}b200.txtpb"),
}


class Cores(NamedTuple):
    """The multiprocessors of a GPU, for XLA: from the same files."""

    capability: int
    processors: int
    fpus: int
    clock_ghz: float
    shared_memory: int  # bytes of each
    shared_memory_per_block: int  # the most that a kernel may ask for
    l2_cache: int


CORES = {
    "A100": Cores(8, 108, 64, 1.41, 167_936, 166_912, 41_943_040),
    "H100": Cores(9, 132, 128, 1.98, 233_472, 232_448, 52_428_800),
    "H200": Cores(9, 132, 128, 1.98, 233_472, 232_448, 52_428_800),
    "B200": Cores(10, 148, 128, 1.965, 233_472, 232_448, 132_644_864),
}


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices to compile for, and the options of their compiler."""

    name: str
    platform: str  # as JAX calls it when it lowers a program: "tpu" or "cuda"
    chip: Chip
    devices: tuple[Any, ...]  # jax.Device without a device behind it
    options: dict[str, str]


def parse_target(text: str) -> Target:
    """The devices that v5e:2x4, v5p:8x8x8, H100 or 64xH100 names."""
    generation, colon, layout = text.partition(":")
    number, times, gpu = text.rpartition("x")
    if colon and generation in TPUS and re.fullmatch(r"\d+(x\d+){1,2}", layout):
        return _tpus(text, generation, [int(size) for size in layout.split("x")])
    if not colon and gpu in GPUS and (not times or (number.isdecimal() and len(number) <= 4)):
        return _gpus(text, gpu, int(number) if times else 1)
    names = [
        *(f"{tpu}:2x4" if tpu in ("v5e", "v6e") else f"{tpu}:2x2x1" for tpu in TPUS),
        *(f"8x{gpu}" for gpu in GPUS),
    ]
    raise BadInput(f"--compile-for={text}: is not known; {nearest(text, names)}")


def _gpus(text: str, gpu: str, count: int) -> Target:
    hosts, left = divmod(count, GPUS_PER_HOST)
    if not 1 <= count <= MAX_DEVICES or (hosts and left):
        raise BadInput(
            f"--compile-for={text}: must be 1 to {GPUS_PER_HOST} {gpu}, or a multiple of {GPUS_PER_HOST} up to "
            f"{MAX_DEVICES:,}"
        )
    _need("jax_cuda13_plugin", "jax_cuda12_plugin", text=text, extra="jax[cuda13]", size="5 GB of NVIDIA's packages")
    shape = f"1x{hosts or 1}x{GPUS_PER_HOST if hosts else count}"
    devices = _topology(text, platform="cuda", topology_name=shape, topology=shape, target_config=gpu_config(gpu))
    # On the machine itself autotuning times kernels; here there is nothing to time.
    return Target(text, "cuda", GPUS[gpu], devices, {"xla_gpu_autotune_level": "0"})


def _tpus(text: str, generation: str, layout: list[int]) -> Target:
    if math.prod(layout) > MAX_DEVICES:
        raise BadInput(f"--compile-for={text}: must have at most {MAX_DEVICES:,} chips")
    _need("libtpu", text=text, extra="jax[tpu]", size="350 MB")
    # Otherwise libtpu asks the cloud what machine this is, and holds a lock that only one process can have.
    settings = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_WORKER_HOSTNAMES": "localhost"}
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    one_host = {"chips_per_host_bounds": (*layout, 1, 1)[:3]} if math.prod(layout) < 4 else {}
    devices = _topology(text, platform="tpu", topology_name=text, **one_host)
    return Target(text, "tpu", TPUS[generation], devices, {})


def _need(*modules: str, text: str, extra: str, size: str) -> None:
    if not any(importlib.util.find_spec(module) for module in modules):
        raise BadInput(f"--compile-for={text}: needs its compiler: pip install '{extra}' ({size}; no device is needed)")


def _topology(text: str, **description: Any) -> tuple[Any, ...]:
    from jax.experimental import topologies

    jax.config.update("jax_platforms", "cpu")  # the plugin compiles, and runs nothing
    try:
        return tuple(topologies.get_topology_desc(**description).devices)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise BadInput(f"--compile-for={text}: the compiler has no such devices: {reason}") from None


def gpu_config(gpu: str) -> str:
    """XLA's description of a GPU: a GpuTargetConfigProto in text format."""
    chip, cores = GPUS[gpu], CORES[gpu]
    fields = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 49152,
        "shared_memory_per_core": cores.shared_memory,
        "threads_per_core_limit": 2048,
        "core_count": cores.processors,
        "fpus_per_core": cores.fpus,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "memory_bandwidth": int(chip.bandwidth),
        "l2_cache_size": cores.l2_cache,
        "clock_rate_ghz": cores.clock_ghz,
        "device_memory_size": int(chip.memory),
        "shared_memory_per_block_optin": cores.shared_memory_per_block,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
    }
    # From Hopper on, XLA also uses what only this one architecture has.
    capability = f"major: {cores.capability}" + (
        " feature_extension: ACCELERATED_FEATURES" if cores.capability > 8 else ""
    )
    lines = "\n".join(f"  {name}: {value}" for name, value in fields.items())
    return (
        f'platform_name: "CUDA"\ndnn_version_info {{ major: 9 minor: 10 }}\ndevice_description_str: "{chip.kind}"\n'
        f"gpu_device_info {{\n{lines}\n  cuda_compute_capability {{ {capability} }}\n}}\n"
    )
