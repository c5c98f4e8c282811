"""This process's devices, cores and memory: the peak FLOP/s that MFU is relative to, the memory in use."""

import contextlib
import ctypes
import os
import time

import jax

from transformer_jax.accelerators import ACCELERATORS
from transformer_jax.model_config import ModelConfig

_start = time.monotonic()


def peak_flops(model: ModelConfig) -> tuple[float | None, str]:
    """FLOP/s of one device for the model's products by its data sheet, and which that is; or None and why not."""
    devices, dtype = jax.devices(), model.dtype
    kind = ", ".join(sorted({device.device_kind for device in devices}))
    if kind not in ACCELERATORS:
        return None, f"no data sheet of {kind!r} is known here"
    chip = ACCELERATORS[kind]
    teraflops, name = chip.teraflops(dtype, model.matmul_precision)
    cores = getattr(devices[0], "num_cores", None) if chip.cores else 1
    if teraflops is None or cores is None:
        return None, f"the data sheet of {kind} has no figure for {name}, or the device does not report its cores"
    return teraflops * 1e12 * cores / max(chip.cores, 1), f"{chip.source}, dense {name}"


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


def restart_clock() -> None:
    """Lets `train.hours` count from now on, in a process that does more than one training."""
    global _start
    _start = time.monotonic()


def seconds_since_start() -> float:
    """Seconds since this process imported its modules, soon after its start, or since `restart_clock`."""
    return time.monotonic() - _start


def memory() -> float | None:
    """The memory of a device in bytes, of a CPU its share of the machine's; None if the backend does not report it."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / jax.local_device_count()
    return (device.memory_stats() or {}).get("bytes_limit")


def memory_peak() -> int | None:
    """The peak memory of the first device in bytes, if the backend reports it."""
    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
