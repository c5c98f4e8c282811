"""What the machine could do at best: the rate that model FLOPs utilisation is measured against."""

import contextlib
import ctypes
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

# Dense bfloat16 FLOP/s by the vendors' data sheets; the first name that the device's own contains.
DATA_SHEET = {
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40": 181e12,
    "A10": 125e12,
    "V100": 125e12,
    "TPU v6": 918e12,
    "TPU v5p": 459e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v4": 275e12,
}


def peak_flops(dtype: str) -> tuple[float, str]:
    """FLOP/s of one device and where the number comes from: a data sheet, or a matrix product timed now."""
    kind = jax.devices()[0].device_kind
    if dtype == "bfloat16":
        for name, flops in DATA_SHEET.items():
            if name in kind:
                return flops, f"data sheet of {name}, dense bfloat16"
    size = 1024 if jax.default_backend() == "cpu" else 8192
    flops = _measured_matmul(size, dtype)
    # Pretended devices of one CPU share its cores.
    sharing = len(jax.local_devices()) if jax.default_backend() == "cpu" else 1
    return flops / sharing, f"a {size} x {size} {dtype} product measured now"


def _measured_matmul(size: int, dtype: str) -> float:
    matrix = jnp.ones((size, size), dtype)
    return 2 * size**3 / _seconds(jax.jit(lambda a: a @ a), matrix)


def products_rate(rows: int, width: int, inner: int, dtype: str) -> float:
    """FLOP/s of products between `rows` x `width` and `rows` x `inner`, as a feed-forward layer has them, timed now.

    Small ones are far from the peak. No model of these widths is faster, for what else it does comes on top.
    """
    layers = 8
    there, back = jnp.full((width, inner), 1 / width, dtype), jnp.full((inner, width), 1 / inner, dtype)

    def chain(x: jax.Array) -> jax.Array:
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
    """On a CPU under Linux: memory that was freed stays with the process, to be used again by the next step.

    XLA allocates its temporaries anew in each step. By default glibc hands large ones back to the kernel, and gets them
    back page by page, each zeroed: up to a third of a small step. One arena, no mappings, no trimming ends that.
    To be called before threads begin. Elsewhere it does nothing.
    """
    arena_max, mmap_max, trim_threshold = -8, -4, -1  # of <malloc.h>
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((arena_max, 1), (mmap_max, 0), (trim_threshold, -1)):
            mallopt(parameter, value)


def memory_peak() -> int | None:
    """Bytes that the first device held at most, where the backend tells."""
    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
