"""Several processes that train one run, connected by `jax.distributed`, which ends all of them when one is lost."""

import atexit
import contextlib
import dataclasses
import importlib.util
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from transformer_jax.config import MeshConfig
from transformer_jax.errors import BadInput, Failed
from transformer_jax.files import remote
from transformer_jax.files.progress import tell
from transformer_jax.processes.watchdog import watching

T = TypeVar("T")

# Seconds that a network file system may take to show one machine what another has written.
SHARED_WITHIN = 60.0
# Seconds that JAX has to end a process which has waited long enough, for the cluster's answer and then for the others.
# It may miss the moment: an attempt to connect that it makes in the last millisecond has no time limit.
ENDED_WITHIN = 120.0
# Texts are padded to multiples of this number of bytes: each size is a program.
GATHERED = 256


@dataclasses.dataclass(frozen=True)
class Processes:
    """The processes of a run, and which of them this one is."""

    number: int = 0
    count: int = 1

    def __str__(self) -> str:
        return f"process {self.number} of {self.count} ({socket.gethostname()}, pid {os.getpid()})"

    @property
    def is_first(self) -> bool:
        """Whether this process writes what is written once: logs, reports, the lock."""
        return self.number == 0

    def gather(self, text: str) -> list[str]:
        """A text from each process, in all processes."""
        if self.count == 1:
            return [text]
        own = np.frombuffer(text.encode(), np.uint8)
        lengths_P = np.asarray(multihost_utils.process_allgather(np.int32(len(own))))
        width = int(lengths_P.max()) // GATHERED * GATHERED + GATHERED
        rows_PB = np.asarray(multihost_utils.process_allgather(np.pad(own, (0, width - len(own)))))
        return [row_B[:length].tobytes().decode() for row_B, length in zip(rows_PB, lengths_P.tolist(), strict=True)]

    def broadcast(self, value: Any) -> Any:
        """The value of process 0, in all processes. It must be JSON."""
        return value if self.count == 1 else json.loads(self.gather(json.dumps(value if self.is_first else None))[0])

    def on_first_then_on_others(self, make: Callable[[], T], seen_by_all: Path) -> T:
        """Runs `make` in process 0 and then in the others, which must see the same file afterwards."""
        if self.count == 1:
            return make()
        error: BadInput | Failed | None = None
        if self.is_first:
            try:
                made = make()
                remote.push(seen_by_all.parent)
            except (BadInput, Failed) as caught:
                error = caught
        why, content = self.broadcast([None if error is None else str(error), remote.read_text(seen_by_all)])
        if why is not None:
            raise error or Failed(f"process 0 ended: {why}")
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
def joined(coordinator: str | None, count: int | None, number: int | None, mesh: MeshConfig) -> Iterator[None]:
    """Connects the processes of a run, which the flags or the cluster's environment describe.

    JAX ends a process that waits for others longer than `mesh.start_within` seconds, and all of them when one has been
    silent for `mesh.lost_after`. They end themselves when one takes no step for `mesh.stalled_after`.
    """
    global _processes
    if check_flags(coordinator, count, number) or (count != 1 and in_cluster()):
        initialize(coordinator, count, number, mesh)
    if jax.distributed.is_initialized() and jax.process_count() > 1:
        _processes = Processes(jax.process_index(), jax.process_count())
    else:
        yield
        return
    try:
        show_hosts()
        with watching(str(_processes), _processes.number, mesh.stalled_after):
            yield
        jax.distributed.shutdown()
    except (Exception, KeyboardInterrupt) as error:
        atexit.register(_exit, 2 if isinstance(error, BadInput) else 1)  # JAX's own exit handler waits for the others
        if reason := unreachable(error):
            raise Failed(
                f"{_processes} could not reach the others ({reason.splitlines()[0][:200]}): the log of the process "
                "that ended first says why; the same command resumes from the last checkpoint"
            ) from error
        tell(f"{_processes} ends: {(str(error).splitlines() or [type(error).__name__])[0]}")
        raise
    finally:
        _processes = Processes()


def unreachable(error: BaseException | None) -> str | None:
    """JAX's message about the other processes, if they are why `error` was raised."""
    while error is not None:
        if isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error):
            return str(error)
        error = error.__cause__
    return None


def check_flags(coordinator: str | None, count: int | None, number: int | None) -> bool:
    """Whether the flags describe several processes. They go together."""
    flags = (coordinator, count, number)
    if flags.count(None) == 3 or (count == 1 and flags.count(None) == 2):
        return False
    host, _, port = (coordinator or "").rpartition(":")
    if count is None or number is None or not 0 <= number < count or not host or not port.isdecimal():
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


def initialize(coordinator: str | None, count: int | None, number: int | None, mesh: MeshConfig) -> None:
    """Connects this process to the others. What the flags leave out, JAX asks the cluster."""
    who = "this process" if coordinator is None else f"process {number} of {count}"
    place = coordinator or "the address that the cluster gives"
    here = f"({socket.gethostname()}, pid {os.getpid()})"
    tell(f"{who} {here} waits up to {mesh.start_within:g} s for the others at {place}")
    limit, missing = 2 * mesh.start_within + ENDED_WITHIN, f"{who} {here} has not found the others at {place}"
    too_late = threading.Timer(limit, _give_up, [missing])
    too_late.daemon = True
    too_late.start()
    is_loopback = coordinator is not None and coordinator.rpartition(":")[0] in ("localhost", "127.0.0.1")
    try:
        jax.distributed.initialize(
            coordinator,
            count,
            number,
            initialization_timeout=max(int(mesh.start_within), 1),
            heartbeat_timeout_seconds=max(int(mesh.lost_after), 1),
            shutdown_timeout_seconds=max(int(mesh.lost_after), 1),
            coordinator_bind_address=coordinator if is_loopback else None,
            cluster_detection_method=None if coordinator is None else "deactivate",
        )
    except (ValueError, RuntimeError) as error:  # the cluster is not known to JAX, or somebody is missing
        kind = BadInput if isinstance(error, ValueError) else Failed
        raise kind(
            f"{who} could not be connected to {place}: {str(error).splitlines()[0]}; --coordinator, --processes and "
            "--process-id say where the others are, --processes=1 trains with this process alone"
        ) from error
    finally:
        too_late.cancel()


def show_hosts() -> None:
    """Prints where each process runs, with which devices. It is also the first message over the network."""
    kind = f"{jax.local_device_count()} x {jax.local_devices()[0].device_kind}"
    hosts = _processes.gather(f"({socket.gethostname()}, pid {os.getpid()}): {kind}")
    if _processes.is_first:
        lines = [f"  process {number} {host}" for number, host in enumerate(hosts)]
        tell("\n".join([f"{len(hosts)} processes, {jax.device_count()} devices:", *lines]))


def _give_up(why: str) -> None:
    try:
        tell(f"failed: {why}")
    finally:  # stderr may be closed
        os._exit(1)


def _exit(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
