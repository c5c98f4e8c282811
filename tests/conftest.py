"""Settings that all tests share: eight simulated devices, no silent broadcasting, and fast compilation."""

import gc
import os
import sys
from importlib import metadata
from pathlib import Path

# A collective keeps the thread that waits in it, and XLA has as many threads as devices: where two are under way at
# once, all threads may come to wait for a device that then has none. It happened, on two quiet cores.
os.environ["PJRT_NPROC"] = "64"
# Nearly all the time of the tests is compilation: one thread and the older code generator need less than half of it.
# Newer releases than 0.10 have no other than the new one, and refuse the flag.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
os.environ["XLA_FLAGS_OF_COMMANDS"] = "--xla_cpu_parallel_codegen_split_count=1" + (
    " --xla_cpu_use_fusion_emitters=false" if metadata.version("jaxlib").startswith("0.10.") else ""
)  # of the commands that are separate processes
# Where eight devices share two cores, one may let the others wait for long: only after ten minutes is that an error.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} {os.environ['XLA_FLAGS_OF_COMMANDS']} --xla_force_host_platform_device_count=8"
    " --xla_cpu_collective_call_terminate_timeout_seconds=600"
)
# One compilation cache for the trainings of all tests, because many have the same programs; it stays for the next time.
os.environ.setdefault("CACHE_OF_TESTS", str(Path(__file__).parents[1] / ".pytest_cache/compiled"))

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
# Tracing makes many objects and hardly any garbage: with the usual 700 a fifteenth of the time would go into looking.
gc.freeze()
gc.set_threshold(100_000, 20, 20)

# A process may have 65,530 mappings of memory on Linux, and is aborted at one more; each compiled program takes some.
MANY_MAPPINGS = 30_000
MAPPINGS = Path("/proc/self/maps")


@pytest.fixture(scope="module", autouse=True)
def _compiled_programs_do_not_pile_up():
    yield
    if MAPPINGS.exists() and MAPPINGS.read_bytes().count(b"\n") > MANY_MAPPINGS:
        if training_runs := sys.modules.get("tests.support.training_runs"):
            training_runs.known_steps.clear()  # they hold executables
        jax.clear_caches()
        gc.collect()
