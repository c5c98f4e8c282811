"""The peak FLOP/s of the devices, which MFU is relative to; and memory."""

import contextlib
import ctypes
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from transformer_jax.model_config import ModelConfig
from transformer_jax.processes import data_sheets


def peak_flops(model: ModelConfig) -> tuple[float | None, str]:
    """FLOP/s of one device for the model's products and the source of the number; or None and why it is unknown.

    For accelerators it is the data sheet's; on a CPU it is a matrix product timed now.
    """
    devices = jax.devices()
    if devices[0].platform == "cpu":
        size = 1024
        measured = _measured_matmul(size, model.dtype)
        # Simulated devices of one CPU share its cores.
        return measured / len(jax.local_devices()), f"a {size} x {size} {model.dtype} product measured now"
    if len({device.device_kind for device in devices}) > 1:
        return None, "the devices are not all alike"
    try:
        return data_sheets.peak_flops(devices[0], model.dtype, model.matmul_precision)
    except data_sheets.Unknown as reason:
        return None, str(reason)


def _measured_matmul(size: int, dtype: str) -> float:
    matrix = jnp.ones((size, size), dtype)
    return 2 * size**3 / _seconds(jax.jit(lambda a: a @ a), matrix)


def products_rate(rows: int, width: int, inner: int, dtype: str, precision: str) -> float:
    """FLOP/s of the products of a feed-forward layer (`rows` x `width`, `rows` x `inner`), timed now.

    Small products are far from the peak, and no model of these widths is faster.
    """
    layers = 8
    there, back = jnp.full((width, inner), 1 / width, dtype), jnp.full((inner, width), 1 / inner, dtype)

    def chain(x: jax.Array) -> jax.Array:
        with jax.default_matmul_precision(precision):
            for _ in range(layers):
                x = (x @ there) @ back
        return x

    return layers * 4 * rows * width * inner / _seconds(jax.jit(chain), jnp.ones((rows, width), dtype))


def _seconds(program: Callable[[jax.Array], jax.Array], argument: jax.Array) -> float:
    """The median of five calls, after one that compiles."""
    program(argument).block_until_ready()

    def once() -> float:
        start = time.perf_counter()
        program(argument).block_until_ready()
        return time.perf_counter() - start

    return statistics.median(once() for _ in range(5))


def keep_freed_memory() -> None:
    """Keeps freed memory in the process, for the next step (glibc only; call it before threads start).

    XLA allocates its temporaries anew in each step. By default glibc returns large ones to the kernel and gets them
    back page by page, zeroed, which takes up to a third of a small step.
    """
    arena_max, mmap_max, trim_threshold = -8, -4, -1  # of <malloc.h>
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((arena_max, 1), (mmap_max, 0), (trim_threshold, -1)):
            mallopt(parameter, value)


def memory_peak() -> int | None:
    """The peak memory of the first device in bytes, if the backend reports it."""
    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
