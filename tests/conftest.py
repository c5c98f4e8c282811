"""Settings every test shares: eight pretended devices, no silent broadcasting, and programs compiled in a hurry."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax

jax.config.update("jax_numpy_rank_promotion", "raise")
# Nearly all the time of the tests is compilation; what runs as a process of its own is compiled as users compile it.
jax.config.update("jax_disable_most_optimizations", True)
