"""Compiled programs: the compilation cache, a counter of compilations, and a known fault of the compiler."""

import importlib.metadata
import os
import threading

import jax
from jax.sharding import Mesh

from transformer_jax import schema
from transformer_jax.schema import Section, is_address

# Releases of jaxlib that on a CPU fuse a product and the sum over its result into a kernel that can be wrong, without
# an error: `jit(vmap(lambda row: sum((matrix @ row) ** 2)))` from row 32,769 on (github.com/jax-ml/jax/issues/39103).
MISCOMPILING = ("0.10.2",)
FUSION = "xla_cpu_experimental_ynn_fusion_type"

COMPILED = "/jax/core/compile/backend_compile_duration"
CACHE_HIT = "/jax/compilation_cache/cache_hits"


def use_cache(directory: str | None) -> None:
    folder = os.path.expanduser(directory or "~")
    if directory is None or folder.startswith("~"):  # a user without a home directory
        return
    jax.config.update("jax_compilation_cache_dir", folder)
    # By default JAX caches only what took a second to compile.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def unfused(mesh: Mesh) -> dict[str, str] | None:
    """Compiler options that switch the fusion off where it is faulty, unless XLA_FLAGS sets it.

    The fusion saves up to half of a search's time, so it stays on for the programs that tests/drills/test_compiler.py
    compares with and without it.
    """
    faulty = mesh.devices.flat[0].platform == "cpu" and importlib.metadata.version("jaxlib") in MISCOMPILING
    return {FUSION: ""} if faulty and FUSION not in os.environ.get("XLA_FLAGS", "") else None


def unfused_if_custom(mesh: Mesh, *sections: Section) -> dict[str, str] | None:
    """`unfused` if these sections of a config name custom code, whose programs have not been compared."""
    values = (schema.value_at(section, option.path) for section in sections for option in schema.options(type(section)))
    custom = any(isinstance(value, type) or (isinstance(value, str) and is_address(value)) for value in values)
    return unfused(mesh) if custom else None


class CompileWatch:
    """Counts the programs from now on, in all threads: those compiled, with the seconds of each, and those cached."""

    def __init__(self) -> None:
        self.compiled, self.seconds, self.cached = 0, 0.0, 0
        self._thread = threading.local()  # `hit`: whether its program is in the cache
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)
        jax.monitoring.register_event_listener(self._on_event)

    def __str__(self) -> str:
        programs = f"{self.compiled + self.cached} programs, {self.cached} of them from the cache"
        return f"{programs}, {self.compiled} compiled in {self.seconds:.1f} s"

    def _on_event(self, event: str, **_: str | int) -> None:
        if event == CACHE_HIT:
            self._thread.hit = True

    def _on_duration(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event != COMPILED:
            return
        if vars(self._thread).pop("hit", False):
            self.cached += 1
        else:
            self.compiled += 1
            self.seconds += duration_secs
