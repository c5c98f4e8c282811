"""Several processes that train one run: found, connected by `jax.distributed`, tested by a first collective.

watch.py notices when one of them is lost later on.
"""

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from transformer_jax.errors import BadInput, Failed
from transformer_jax.files.progress import tell
from transformer_jax.processes.watch import CAME, THROUGH, Limits, Member, Watch

T = TypeVar("T")

# From here on JAX takes a port by the number of the job, where a cluster has numbers.
PORTS_OF_JOBS = 61440


class Coordinator(NamedTuple):
    """Where process 0 listens, the number of processes, and which of them this one is."""

    host: str
    port: int
    processes: int
    number: int


class Team:
    """The processes of a run. One process alone has no watch."""

    def __init__(self, watch: Watch | None = None):
        self._watch = watch

    @property
    def is_first(self) -> bool:
        """Whether this process writes what is written once: logs, reports, the lock."""
        return self._watch is None or self._watch.me.number == 0

    def on_first_then_on_others(self, make: Callable[[], T], seen_by_all: Path) -> T:
        """Runs `make` in the first process and then in the others; all must see the same file afterwards."""
        if self._watch is None:
            return make()
        return self._watch.on_first_then_on_others(
            make, lambda: seen_by_all.read_text() if seen_by_all.is_file() else "nothing"
        )

    def stop_at(self, step: int, why: str | None) -> str | None:
        """Why all processes stop before this step, or None; `why` is the reason of this process."""
        return why if self._watch is None else self._watch.stop_at(step, why)


_team = Team()


def processes() -> Team:
    """The team of this process; global, like `jax.process_index()`."""
    return _team


@contextlib.contextmanager
def joined(coordinator: str | None, processes: int | None, process_id: int | None, limits: Limits) -> Iterator[None]:
    """Joins this process to its team. Inside, the loss of one process ends all."""
    global _team
    address = asked_for(coordinator, processes, process_id) or found(processes, limits)
    if address is None or address.processes == 1:
        yield
        return
    # JAX listens at the port, the watch at the one before it.
    given_by = "JAX_COORDINATOR_PORT" if coordinator is None else "--coordinator"
    watch = Watch(address.number, address.processes, limits)
    members = watch.join(address.host, address.port - 1, given_by)
    try:
        start(address, limits, asked=coordinator is not None)
        watch.reached(CAME)
        try_collective()
        watch.reached(THROUGH)
        if address.number == 0:
            tell(table(members))
        _team = Team(watch)
        yield
        jax.distributed.shutdown()
        watch.leave()
    except (Exception, KeyboardInterrupt) as error:
        of_jax = isinstance(error, Failed) and isinstance(error.__cause__, (RuntimeError, ValueError))
        if of_jax or not isinstance(error, (BadInput, Failed, KeyboardInterrupt)):
            watch.wait_for_loss()  # most likely a collective failed, perhaps of saving, because a process is lost
        end_together(watch, error)
        raise


def asked_for(coordinator: str | None, processes: int | None, process_id: int | None) -> Coordinator | None:
    """The address that the flags give; None without flags."""
    given = {"--coordinator": coordinator, "--processes": processes, "--process-id": process_id}
    missing = [flag for flag, value in given.items() if value is None]
    if len(missing) == 3 or (processes == 1 and len(missing) == 2):
        return None
    if coordinator is None or processes is None or process_id is None:
        raise BadInput(f"{' and '.join(missing)}: missing; --coordinator, --processes and --process-id go together")
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 1 < int(port) < 2**16:
        raise BadInput(f"--coordinator={coordinator}: must be HOST:PORT, of the machine where process 0 runs")
    if processes < 1:
        raise BadInput(f"--processes={processes}: must be at least 1")
    if not 0 <= process_id < processes:
        raise BadInput(f"--process-id={process_id}: must be from 0 to {processes - 1}, for --processes={processes}")
    return Coordinator(host.strip("[]"), int(port), processes, process_id)


def found(processes: int | None, limits: Limits) -> Coordinator | None:
    """The processes that a cluster has started together: SLURM, a TPU pod, Kubernetes, Open MPI."""
    if processes == 1 or os.environ.get("SLURM_NTASKS") == "1":
        return None
    if "KUBERNETES_SERVICE_HOST" in os.environ and "JOB_COMPLETION_INDEX" not in os.environ:
        return None  # a single pod
    from jax._src.clusters import ClusterEnv  # JAX has no public function for this

    coordinator, count, index, _ = ClusterEnv.auto_detect_unset_distributed_params(
        None, None, None, None, None, int(limits.start)
    )
    if coordinator is None or count is None or index is None:
        return None
    host, _, text = coordinator.rpartition(":")
    port = int(text)
    if port >= PORTS_OF_JOBS and not os.environ.get("JAX_COORDINATOR_PORT"):
        # Two for each job: the next job may run on the same machine.
        port = PORTS_OF_JOBS + 2 * (port % 2048) + 1
    return Coordinator(host.strip("[]"), port, count, index)


def start(address: Coordinator, limits: Limits, asked: bool) -> None:
    """Initializes `jax.distributed`. It aborts when a process is lost, so it gets more time than the watch."""
    timeout = int(10 * limits.silence) + 100
    jax.config.update("jax_enable_preemption_service", False)  # signals.py handles SIGTERM
    # A scheduler may have divided the accelerators of a machine among its processes; JAX asks it.
    detection = "deactivate" if asked else None
    host = f"[{address.host}]" if ":" in address.host else address.host  # of IPv6
    bind = f"{host}:{address.port}" if address.host in ("localhost", "127.0.0.1") else None
    jax.distributed.initialize(
        f"{host}:{address.port}",
        address.processes,
        address.number,
        initialization_timeout=timeout,
        heartbeat_timeout_seconds=timeout,
        shutdown_timeout_seconds=timeout,
        coordinator_bind_address=bind,
        cluster_detection_method=detection,
    )


def try_collective() -> None:
    """Adds a one from every device, so that a network that does not work fails now."""
    mesh = jax.make_mesh((jax.device_count(),), ("devices",), axis_types=(AxisType.Auto,))
    ones = np.ones(jax.local_device_count(), np.int32)
    everywhere = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("devices")), ones)
    counted = int(jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(everywhere))
    if counted != jax.device_count():
        raise Failed(f"a sum of one from each of {jax.device_count()} devices came out as {counted}")


def table(members: Sequence[Member]) -> str:
    """Which process runs where, with which devices."""
    lines = [f"{len(members)} processes, {jax.device_count()} devices:"]
    for member in members:
        local = [device for device in jax.devices() if device.process_index == member.number]
        numbers = f"{local[0].id}" if len(local) == 1 else f"{local[0].id} to {local[-1].id}"
        lines.append(f"  {member}: device {numbers}, {local[0].device_kind}")
    return "\n".join(lines)


def end_together(watch: Watch, error: BaseException) -> None:
    """Tells the others why this process ends, and lets it exit without waiting for them."""
    reason = (str(error).splitlines() or [""])[0]
    watch.give_up(reason if isinstance(error, (BadInput, Failed)) else f"{type(error).__name__}: {reason}")
    atexit.register(_exit, 2 if isinstance(error, BadInput) else 1)  # runs before JAX's exit handler, which waits


def _exit(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
