"""Several processes that train one run: what they agree on, and how they find each other and end together."""

import atexit
import contextlib
import dataclasses
import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
from jax._src.clusters import ClusterEnv  # has no public name

from transformer_jax.config import MeshConfig
from transformer_jax.errors import BadInput, Failed, is_of_memory
from transformer_jax.files import remote
from transformer_jax.files.progress import tell
from transformer_jax.processes import watchdog
from transformer_jax.processes.channel import SECONDS_TO_TELL, Channel, connect, is_loopback, leave

T = TypeVar("T")

# Seconds that a network file system may take to show one machine what another has written.
SHARED_WITHIN = 60.0
NUMERIC_OPTIONS = (
    *("jax_default_prng_impl", "jax_threefry_partitionable", "jax_random_seed_offset", "jax_enable_x64"),
    *("jax_numpy_dtype_promotion", "jax_default_matmul_precision", "jax_softmax_custom_jvp", "jax_disable_jit"),
)
FLAGS = (
    "--coordinator, --processes and --process-id say where the others are, --processes=1 trains with this process alone"
)


@dataclasses.dataclass(frozen=True)
class Processes:
    """The processes of a run, and which of them this one is."""

    number: int = 0
    count: int = 1
    channel: Channel | None = None

    def __str__(self) -> str:
        return self.channel.names[self.number] if self.channel else "this process"

    @property
    def is_first(self) -> bool:
        """Whether this process writes what is written once: logs, reports, the lock."""
        return self.number == 0

    def gather(self, text: str, meeting: str = "gather") -> list[str]:
        """A text from each process, in all processes. Threads that gather at the same time have their own meetings."""
        return self.channel.meet(meeting, text) if self.channel else [text]

    def broadcast(self, value: Any) -> Any:
        """The value of process 0, in all processes. It must be JSON."""
        return value if self.count == 1 else json.loads(self.gather(json.dumps(value if self.is_first else None))[0])

    def compare(self, facts: Mapping[str, Any]) -> None:
        """Raises BadInput in all processes if a fact is not the same in all; it names the first that differs."""
        found = [json.loads(text) for text in self.gather(json.dumps({name: str(facts[name]) for name in facts}))]
        for name in {name: None for each in found for name in each}:
            values = [each.get(name, "nothing") for each in found]
            if self.channel and (others := [number for number in range(self.count) if values[number] != values[0]]):
                first, other = self.channel.names[0], self.channel.names[others[0]]
                raise BadInput(
                    f"the processes of a run must agree, but {name} is {values[0]} in {first} and "
                    f"{values[others[0]]} in {other}"
                )

    def on_first_then_on_others(self, make: Callable[[], T], seen_by_all: Path) -> T:
        """Runs `make` in process 0 and then in the others, which must see the same file afterwards."""
        if self.count == 1:
            return make()
        if self.is_first:
            with watchdog.working():
                made = make()
            remote.push(seen_by_all.parent)
        content = self.broadcast(remote.read_text(seen_by_all))
        if self.is_first:
            return made
        deadline = time.monotonic() + SHARED_WITHIN
        while remote.read_text(seen_by_all) != content:
            if time.monotonic() > deadline:
                raise Failed(
                    f"{self} does not see {seen_by_all}, which process 0 has written: --workdir, and data.directory if "
                    "it is given, must lie on a file system that all processes share"
                )
            time.sleep(0.5)
        remote.pull(seen_by_all.parent)
        return make()


_processes = Processes()


def processes() -> Processes:
    """The processes of this run; global, like `jax.process_index()`."""
    return _processes


@contextlib.contextmanager
def joined(
    coordinator: str | None,
    count: int | None,
    number: int | None,
    mesh: MeshConfig,
    facts: Callable[[], Mapping[str, Any]],
) -> Iterator[None]:
    """Connects the processes of a run, which the flags or the cluster's environment describe; `facts` must be the same.

    All end when one has ended, is silent for `mesh.lost_after` seconds, or hangs for `mesh.stalled_after`.
    """
    global _processes
    local_devices = None
    if not check_flags(coordinator, count, number) and count != 1 and in_cluster():
        coordinator, count, number, local_devices = detected(coordinator, count, number, mesh)
    if count is None or count == 1:
        yield
        return
    assert coordinator is not None and number is not None
    channel = connect(coordinator, count, number, mesh)
    _processes = Processes(number, count, channel)
    try:
        _processes.compare({**numeric_options(), **facts()})
        initialize(coordinator, count, number, local_devices, mesh)
        _processes.compare({"devices": own_devices()})
        if number == 0:
            lines = [f"  {name}: {own_devices()}" for name in channel.names]
            tell("\n".join([f"{count} processes, {jax.device_count()} devices:", *lines]))
        yield
        with watchdog.waiting():
            jax.distributed.shutdown()
        channel.finish()
    except (Exception, KeyboardInterrupt) as error:
        status = 2 if isinstance(error, BadInput) else 1
        atexit.register(leave, status)  # JAX's own exit handler waits for the others
        reason = unreachable(error)
        if reason:
            time.sleep(SECONDS_TO_TELL)  # if another process has ended, this one learns why, and ends
        channel.end((str(error).splitlines() or [type(error).__name__])[0], status)
        if reason:
            raise Failed(
                f"{_processes} could not reach the others ({reason.splitlines()[0][:200]}): the log of the process "
                "that ended first says why; the same command resumes from the last checkpoint"
            ) from error
        raise
    finally:
        _processes = Processes()


def numeric_options() -> dict[str, Any]:
    """JAX's options that change the numbers of a program."""
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith("--xla_dump")]
    return {"XLA_FLAGS": " ".join(flags), **{name: getattr(jax.config, name, None) for name in NUMERIC_OPTIONS}}


def own_devices() -> str:
    return f"{jax.local_device_count()} x {jax.local_devices()[0].device_kind}"


def unreachable(error: BaseException | None) -> str | None:
    """JAX's message about the other processes, if they are why `error` was raised."""
    while error is not None:
        if (isinstance(error, jax.errors.JaxRuntimeError) and not is_of_memory(error)) or "Gloo" in str(error):
            return str(error)
        error = error.__cause__
    return None


def check_flags(coordinator: str | None, count: int | None, number: int | None) -> bool:
    """Whether the flags describe several processes. They go together."""
    flags = (coordinator, count, number)
    if flags.count(None) == 3 or (count == 1 and flags.count(None) == 2):
        return False
    host, _, port = (coordinator or "").rpartition(":")
    is_port = port.isdecimal() and 0 < int(port) < 1 << 16
    if count is None or number is None or not 0 <= number < count or not host or not is_port:
        raise BadInput(
            f"--coordinator={coordinator} --processes={count} --process-id={number}: give all three: "
            "HOST:PORT of the machine of process 0, N, and a number below N"
        )
    return count > 1


def in_cluster() -> bool:
    """Whether the environment says that this may be one of several processes."""
    found = os.environ
    slurm = {"SLURM_STEP_NODELIST", "SLURM_PROCID"} <= set(found) and found.get("SLURM_NTASKS", "1") != "1"
    mpi = found.get("OMPI_COMM_WORLD_SIZE", "1") != "1"
    kubernetes = "KUBERNETES_SERVICE_HOST" in found and "JOB_COMPLETION_INDEX" in found
    chips = any(Path("/dev").glob("accel[0-9]*")) or any(Path("/dev/vfio").glob("[0-9]*"))
    tpu = chips and importlib.util.find_spec("libtpu") is not None and found.get("JAX_PLATFORMS") != "cpu"
    return slurm or mpi or kubernetes or tpu


def detected(coordinator: str | None, count: int | None, number: int | None, mesh: MeshConfig) -> tuple[Any, ...]:
    """Where the other processes are, by the cluster's environment; what the flags say is kept."""
    coordinator = coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS")
    try:
        found = ClusterEnv.auto_detect_unset_distributed_params(
            coordinator, count, number, None, None, max(int(mesh.start_within), 1)
        )
    except (ValueError, RuntimeError, OSError, KeyError) as error:
        raise BadInput(f"the cluster does not say where the other processes are: {error}; {FLAGS}") from error
    if None in found[:3]:
        raise BadInput(f"the cluster does not say where the other processes are; {FLAGS}")
    return found


def initialize(
    coordinator: str, count: int, number: int, local_devices: Sequence[int] | None, mesh: MeshConfig
) -> None:
    """Connects JAX to the other processes, all of which are there."""
    # The channel notices a lost process first. JAX would end this one by SIGABRT.
    lost_after = 2 * int(mesh.lost_after) + 10
    try:
        jax.config.update("jax_enable_preemption_service", False)  # signals.py asks the channel
        jax.distributed.initialize(
            coordinator,
            count,
            number,
            local_devices,
            initialization_timeout=max(int(mesh.start_within), 1),
            heartbeat_timeout_seconds=lost_after,
            shutdown_timeout_seconds=lost_after,
            coordinator_bind_address=coordinator if is_loopback(coordinator.rpartition(":")[0]) else None,
            cluster_detection_method="deactivate",
        )
    except (ValueError, RuntimeError) as error:
        raise Failed(f"{_processes} could not be connected to {coordinator}: {str(error).splitlines()[0]}") from error
