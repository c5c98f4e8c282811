"""Many processes, one run: who they are, that they reach each other, and that they end together.

`jax.distributed` and the collectives do the work. What is added here: it is found out whether there are other processes
at all; a collective that is tried before anything else; who is who, in the log; and the watch (watch.py), for what can
go wrong afterwards.
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


class Address(NamedTuple):
    """Where process 0 is to be reached, how many processes there are, and which of them this one is."""

    host: str
    port: int
    processes: int
    number: int


class Team:
    """The processes of a run, as one of them sees the others; alone, it sees none."""

    def __init__(self, watch: Watch | None = None):
        self._watch = watch

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes what is written once: logs, reports, the lock."""
        return self._watch is None or self._watch.me.number == 0

    def first_then_all(self, make: Callable[[], T], seen_by_all: Path) -> T:
        """`make()` here and everywhere, the first process before all others; all must see the same file."""
        if self._watch is None:
            return make()
        return self._watch.first_then_all(make, lambda: seen_by_all.read_text() if seen_by_all.is_file() else "nothing")

    def stop_at(self, step: int, why: str | None) -> str | None:
        """Why all stop before this step, or None; `why` is this process's own reason, if it has one."""
        return why if self._watch is None else self._watch.stop_at(step, why)


ALONE = Team()
_own = ALONE


def team() -> Team:
    """The team that this process is in: as much a fact about it as `jax.process_index()`."""
    return _own


@contextlib.contextmanager
def joined(coordinator: str | None, processes: int | None, process_id: int | None, limits: Limits) -> Iterator[None]:
    """This process with its team; from here on, and until it is left, the loss of one is the end of all."""
    global _own
    address = asked_for(coordinator, processes, process_id) or found(processes, limits)
    if address is None or address.processes == 1:
        yield
        return
    # JAX listens at the port itself, the watch at the one before.
    watch = Watch(address.number, address.processes, limits)
    members = watch.join(address.host, address.port - 1)
    try:
        start(address, limits, asked=coordinator is not None)
        watch.reached(CAME)
        try_collective()
        watch.reached(THROUGH)
        if address.number == 0:
            tell(table(members))
        _own = Team(watch)
        yield
        jax.distributed.shutdown()
        watch.leave()
    except (BadInput, Failed, KeyboardInterrupt) as error:
        if isinstance(error, Failed) and isinstance(error.__cause__, (RuntimeError, ValueError)):
            # A save has collectives too: as below.
            watch.wait_for_verdict()
        end_together(watch, error)
        raise
    except Exception as error:
        # Most likely a collective failed because a process is gone: the watch will know which.
        watch.wait_for_verdict()
        end_together(watch, error)
        raise


def asked_for(coordinator: str | None, processes: int | None, process_id: int | None) -> Address | None:
    """What the flags say; none without flags."""
    given = {"--coordinator": coordinator, "--processes": processes, "--process-id": process_id}
    missing = [flag for flag, value in given.items() if value is None]
    if len(missing) == 3 or (processes == 1 and len(missing) == 2):
        return None
    if coordinator is None or processes is None or process_id is None:
        raise BadInput(f"{' and '.join(missing)}: missing; --coordinator, --processes and --process-id go together")
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 1 < int(port) < 2**16:
        raise BadInput(f"--coordinator={coordinator}: must be HOST:PORT, of the machine where process 0 runs")
    if not 0 <= process_id < processes:
        raise BadInput(f"--process-id={process_id}: must be from 0 to {processes - 1}, for --processes={processes}")
    return Address(host.strip("[]"), int(port), processes, process_id)


def found(processes: int | None, limits: Limits) -> Address | None:
    """The processes that a cluster's scheduler has started together: SLURM, a TPU pod, Kubernetes, Open MPI."""
    if processes == 1 or os.environ.get("SLURM_NTASKS") == "1":
        return None
    if "KUBERNETES_SERVICE_HOST" in os.environ and "JOB_COMPLETION_INDEX" not in os.environ:
        return None  # a pod by itself
    from jax._src.clusters import ClusterEnv  # JAX finds them, but only for its own use

    coordinator, count, index, _ = ClusterEnv.auto_detect_unset_distributed_params(
        None, None, None, None, None, int(limits.start)
    )
    if coordinator is None or count is None or index is None:
        return None
    host, _, port = coordinator.rpartition(":")
    return Address(host.strip("[]"), int(port), count, index)


def start(address: Address, limits: Limits, asked: bool) -> None:
    """JAX's own runtime. Whom it misses it tells by an abort, so it is given more time than the watch takes."""
    patience = int(10 * limits.silence) + 100
    jax.config.update("jax_enable_preemption_service", False)  # signals are heard by signals.py
    # A scheduler that started several processes on a machine has divided its accelerators among them; JAX asks it.
    detection = "deactivate" if asked else None
    bind = f"{address.host}:{address.port}" if address.host in ("localhost", "127.0.0.1") else None
    jax.distributed.initialize(
        f"{address.host}:{address.port}",
        address.processes,
        address.number,
        initialization_timeout=patience,
        heartbeat_timeout_seconds=patience,
        shutdown_timeout_seconds=patience,
        coordinator_bind_address=bind,
        cluster_detection_method=detection,
    )


def try_collective() -> None:
    """Adds a one from every device. What does not work among the machines, does not work now."""
    mesh = jax.make_mesh((jax.device_count(),), ("devices",), axis_types=(AxisType.Auto,))
    ones = np.ones(jax.local_device_count(), np.int32)
    everywhere = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("devices")), ones)
    counted = int(jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(everywhere))
    if counted != jax.device_count():
        raise Failed(f"a sum of one from each of {jax.device_count()} devices came out as {counted}")


def table(members: Sequence[Member]) -> str:
    """Which process runs where, and which devices it brings."""
    lines = [f"{len(members)} processes, {jax.device_count()} devices:"]
    for member in members:
        own = [device for device in jax.devices() if device.process_index == member.number]
        numbers = f"{own[0].id}" if len(own) == 1 else f"{own[0].id} to {own[-1].id}"
        lines.append(f"  {member}: device {numbers}, {own[0].device_kind}")
    return "\n".join(lines)


def end_together(watch: Watch, error: BaseException) -> None:
    """Tells the others why this process ends; and lets it end, when it does, without waiting for them."""
    told = (str(error).splitlines() or [""])[0]
    watch.give_up(told if isinstance(error, (BadInput, Failed)) else f"{type(error).__name__}: {told}")
    atexit.register(_exit, 2 if isinstance(error, BadInput) else 1)  # before JAX's own farewell, which waits


def _exit(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
