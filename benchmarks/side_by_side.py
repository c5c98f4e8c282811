"""Shared by the benchmarks: timing several systems in turn, describing the machine, and measuring its limits."""

import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# The first that a processor has.
INSTRUCTIONS = {
    "amx_bf16": "AMX for bfloat16",
    "avx512_bf16": "AVX-512 with bfloat16",
    "avx512f": "AVX-512",
    "avx2": "AVX2",
}
PACKAGES = ("jax", "flax", "optax", "torch", "transformers", "ctranslate2")


def turn_by_turn(systems: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each system: every round times each once, so that changes in the machine's speed affect all of them.

    A warm-up round, which compiles, is not counted.
    """
    for run in systems.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, run in systems.items():
            seconds[name].append(timed(run))
    return seconds


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def medians(seconds: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in seconds.items()}


def machine() -> str:
    """Devices, cores and versions, in a line."""
    installed = [(name, version_of(name)) for name in PACKAGES]
    versions = ", ".join(f"{name} {version}" for name, version in installed if version)
    kinds = ", ".join(sorted({device.device_kind for device in jax.devices()}))
    return f"{jax.device_count()} {kinds}; {len(os.sched_getaffinity(0))} cores of {processor()}; {versions}"


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """Its name, which a virtual machine may shorten, and its best vector instructions, which decide more."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = fields.get("flags", "").split()
    best = next((what for flag, what in INSTRUCTIONS.items() if flag in flags), "vector instructions unknown")
    return f"{fields.get('model name', platform.machine())} ({best})"


class Limits(NamedTuple):
    """What the machine does at best, as measured now: FLOP/s of a matrix product by library and type, and bytes/s."""

    products: dict[str, float]
    bandwidth: float

    def __str__(self) -> str:
        rates = ", ".join(f"{name} {flops / 1e9:,.0f} GFLOP/s" for name, flops in self.products.items())
        return f"at best, measured now: matrix products {rates}; memory {self.bandwidth / 1e9:.1f} GB/s"


def limits(products: Iterable[str], rounds: int = 7) -> Limits:
    """Of these products ("jax float32") and of memory.

    Square matrices that outgrow the caches, and a sum of two arrays: 8 bytes read and 4 written for each number.
    """
    size, numbers = 2048 if jax.default_backend() == "cpu" else 8192, 2**27
    libraries = {"jax": _jax_product, "torch": _torch_product}
    systems = {name: libraries[name.split()[0]](size, name.split()[1]) for name in sorted(set(products))}
    fastest = {name: min(seconds) for name, seconds in turn_by_turn(systems, rounds).items()}
    one, other = jnp.ones(numbers), jnp.ones(numbers)
    add = jax.jit(jnp.add)
    stream = turn_by_turn({"add": lambda: jax.block_until_ready(add(one, other))}, rounds)["add"]
    return Limits({name: 2 * size**3 / value for name, value in fastest.items()}, 12 * numbers / min(stream))


def _jax_product(size: int, dtype: str) -> Callable[[], object]:
    matrix = jnp.asarray(np.random.default_rng(0).normal(size=(size, size)), dtype)
    product = jax.jit(lambda a: a @ a)
    return lambda: jax.block_until_ready(product(matrix))


def _torch_product(size: int, dtype: str) -> Callable[[], object]:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    matrix = torch.randn(size, size, dtype=getattr(torch, dtype), device=device)

    def run() -> None:
        torch.matmul(matrix, matrix)
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def write_json(file: Path | None, **content: Any) -> None:
    if file is not None:
        file.write_text(json.dumps(content, indent=1, default=str) + "\n")
