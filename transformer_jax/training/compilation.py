"""Compiled programs: kept on disk for the next start, and counted."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

import jax

COMPILED = "/jax/core/compile/backend_compile_duration"
CACHE_HIT = "/jax/compilation_cache/cache_hits"


def use_cache(directory: str | None) -> None:
    """Keeps every compiled program in a directory, so that the next start does not compile it again."""
    if directory is None:
        return
    jax.config.update("jax_compilation_cache_dir", os.path.expanduser(directory))
    # JAX by itself keeps only what took a second to compile.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@contextlib.contextmanager
def told_when_slow(tell: Callable[[str], None], seconds: float = 3.0) -> Iterator[None]:
    """Says what takes so long if a program's first call, which compiles it, has not come back after some seconds."""
    timer = threading.Timer(seconds, tell, ["compiling the training step ..."])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class CompileWatch:
    """Counts compilations from the moment it is made: programs, seconds, and how many came from the cache."""

    def __init__(self) -> None:
        self.programs, self.seconds, self.cached = 0, 0.0, 0
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)
        jax.monitoring.register_event_listener(self._on_event)

    def __str__(self) -> str:
        return f"{self.programs} programs compiled in {self.seconds:.1f} s, {self.cached} of them from the cache"

    def _on_duration(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == COMPILED:
            self.programs += 1
            self.seconds += duration_secs

    def _on_event(self, event: str, **_: str | int) -> None:
        if event == CACHE_HIT:
            self.cached += 1
