"""The peak FLOP/s of the devices, to which MFU is relative, with its source; and memory."""

import contextlib
import ctypes
import os
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from transformer_jax.model_config import ModelConfig


class Peak(NamedTuple):
    """TFLOP/s of dense matrix products (data sheets often show twice as many, with sparsity); None if not given."""

    bfloat16: float | None  # on tensor cores, added up in float32
    tf32: float | None
    float32: float | None  # without tensor cores
    source: str
    cores: int = 0  # of a TPU chip, whose peak this is; a JAX device may be one core or the chip


_A100 = Peak(312, 156, 19.5, "NVIDIA A100 data sheet")
_H100 = Peak(989, 494, 67, "NVIDIA H100 data sheet, SXM")
_H100_NVL = Peak(835, 417, 60, "NVIDIA H100 data sheet, NVL")
_GH200 = Peak(989, 494, 67, "NVIDIA GH200 data sheet")

# By `jax.Device.device_kind`: of GPUs CUDA's name, of TPUs libtpu's (v2 to TPU7x were read from libtpu 0.0.42 itself).
# No other name is guessed: cards with similar names differ twofold (L40 and L40S, A10 and A10G).
PEAKS = {
    "NVIDIA A100-SXM4-40GB": _A100,
    "NVIDIA A100-SXM4-80GB": _A100,
    "NVIDIA A100-PCIE-40GB": _A100,
    "NVIDIA A100 80GB PCIe": _A100,
    "NVIDIA H100 80GB HBM3": _H100,
    "NVIDIA H100 PCIe": Peak(756, 378, 51, "NVIDIA H100 data sheet, PCIe"),
    "NVIDIA H100 NVL": _H100_NVL,
    "NVIDIA H200": Peak(989, 494, 67, "NVIDIA H200 data sheet, SXM"),
    "NVIDIA H200 NVL": Peak(835, 417, 60, "NVIDIA H200 data sheet, NVL"),
    "NVIDIA GH200 120GB": _GH200,
    "NVIDIA GH200 480GB": _GH200,
    "NVIDIA B200": Peak(2250, 1100, None, "NVIDIA Blackwell data sheet, HGX B200"),
    "NVIDIA GB200": Peak(2500, 1250, None, "NVIDIA Blackwell data sheet, GB200"),
    "NVIDIA L4": Peak(121, 60, 30.3, "NVIDIA L4 data sheet"),
    "NVIDIA L40": Peak(181.05, 90.5, 90.5, "NVIDIA L40 data sheet"),
    "NVIDIA L40S": Peak(362.05, 183, 91.6, "NVIDIA L40S data sheet"),
    "NVIDIA A10": Peak(125, 62.5, 31.2, "NVIDIA A10 data sheet"),
    "NVIDIA A10G": Peak(70, 35, 35, "NVIDIA A10G data sheet (for AWS)"),
    "NVIDIA A30": Peak(165, 82, 10.3, "NVIDIA A30 data sheet"),
    "NVIDIA A40": Peak(149.7, 74.8, 37.4, "NVIDIA A40 data sheet"),
    "NVIDIA GeForce RTX 3090": Peak(71, 35.6, 35.6, "NVIDIA Ampere GA102 whitepaper, appendix A"),
    "NVIDIA GeForce RTX 4090": Peak(165.2, 82.6, 82.6, "NVIDIA Ada whitepaper, appendix A"),
    "Tesla T4": Peak(None, None, 8.1, "NVIDIA T4 data sheet"),
    "TPU v2": Peak(45, None, None, "cloud.google.com/tpu/docs/v2", cores=2),
    "TPU v3": Peak(123, None, None, "cloud.google.com/tpu/docs/v3", cores=2),
    "TPU v4": Peak(275, None, None, "cloud.google.com/tpu/docs/v4", cores=2),
    "TPU v5 lite": Peak(197, None, None, "cloud.google.com/tpu/docs/v5e", cores=1),
    "TPU v5e": Peak(197, None, None, "cloud.google.com/tpu/docs/v5e", cores=1),
    "TPU v5": Peak(459, None, None, "cloud.google.com/tpu/docs/v5p", cores=2),
    "TPU v5p": Peak(459, None, None, "cloud.google.com/tpu/docs/v5p", cores=2),
    "TPU v6 lite": Peak(918, None, None, "cloud.google.com/tpu/docs/v6e", cores=1),
    "TPU v6e": Peak(918, None, None, "cloud.google.com/tpu/docs/v6e", cores=1),
    "TPU7x": Peak(2307, None, None, "cloud.google.com/tpu/docs/tpu7x", cores=2),
}


SIZE = 1024  # of the product that is measured


def peak_flops(model: ModelConfig) -> tuple[float | None, str]:
    """FLOP/s of one device for the model's products and the source of the number; or None and why it is unknown.

    For accelerators it is the data sheet's; on a CPU it is a matrix product timed now.
    """
    devices, dtype = jax.devices(), model.dtype
    kind = ", ".join(sorted({device.device_kind for device in devices}))
    if devices[0].platform == "cpu":
        return _measured(dtype), f"a {SIZE} x {SIZE} {dtype} product measured now"
    if kind not in PEAKS:
        return None, f"no data sheet of {kind!r} is known here"
    peak = PEAKS[kind]
    teraflops, name = figure(peak, dtype, model.matmul_precision)
    cores = getattr(devices[0], "num_cores", None) if peak.cores else 1
    if teraflops is None or cores is None:
        return None, f"the data sheet of {kind} has no figure for {name}, or the device does not report its cores"
    return teraflops * 1e12 * cores / max(peak.cores, 1), f"{peak.source}, dense {name}"


def _measured(dtype: str) -> float:
    """FLOP/s of a matrix product, of which each simulated device has its share."""
    matrix, product = jnp.ones((SIZE, SIZE), dtype), jax.jit(lambda a: a @ a)
    product(matrix).block_until_ready()
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        product(matrix).block_until_ready()
        seconds.append(time.perf_counter() - began)
    return 2 * SIZE**3 / statistics.median(seconds) / len(jax.local_devices())


def figure(peak: Peak, dtype: str, precision: str) -> tuple[float | None, str]:
    """TFLOP/s, and the type of the products."""
    if dtype == "bfloat16":
        return peak.bfloat16, "bfloat16"
    if peak.cores:  # a TPU multiplies in bfloat16: in one pass, or in so many more that there is no figure for it
        in_passes = f"float32 at {precision} precision"
        return (peak.bfloat16, "bfloat16, in one pass") if precision == "default" else (None, in_passes)
    if precision != "highest" and peak.tf32 is not None:
        return peak.tf32, "TF32"
    return peak.float32, "float32"


def keep_freed_memory() -> None:
    """Keeps freed memory in the process, for the next step (glibc only; call it before threads start).

    XLA allocates its temporaries in each step again. By default glibc returns large ones to the kernel and gets them
    back page by page, zeroed, which takes up to a third of a small step.
    """
    arena_max, mmap_max, trim_threshold = -8, -4, -1  # of <malloc.h>
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((arena_max, 1), (mmap_max, 0), (trim_threshold, -1)):
            mallopt(parameter, value)


def seconds_since_start() -> float:
    """Seconds since this process was started."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # since the machine was
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def memory_peak() -> int | None:
    """The peak memory of the first device in bytes, if the backend reports it."""
    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
