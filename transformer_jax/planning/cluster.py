"""The predicted time of an update on a cluster, and the best mesh for it.

Nothing is measured. Computation is the model's FLOPs (model/size.py) at an assumed share of the peak, communication is
bytes (cost.py) over bandwidth, and the two are assumed not to overlap.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

from transformer_jax.errors import BadInput
from transformer_jax.model.size import training_flops
from transformer_jax.model_config import ModelConfig
from transformer_jax.planning.cost import Bytes, Memory, MeshSize, Work, bytes_sent, memory
from transformer_jax.processes.hardware import PEAKS, Peak
from transformer_jax.schema import nearest


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Accelerators and their links. Rates are per device, bandwidths in one direction."""

    devices: int
    flops: float  # peak FLOP/s
    memory: float  # bytes
    bandwidth: float  # bytes/s to another device of its group
    group: int  # devices connected by such links: those of a machine, or of a TPU pod
    between: float  # bytes/s to a device of another group
    utilisation: float = 0.4  # the share of the peak that one device reaches
    platform: str = "gpu"  # as in planning/cost.py
    # The data sheet whose bfloat16 peak `flops` is; none if the user gave it.
    sheet: Peak | None = dataclasses.field(default=None, compare=False)

    def ring(self, size: int, inner: int) -> float:
        """Bytes/s of rings along an axis of this size, whose neighbours are `inner` devices apart.

        Rings that leave a group use the links of all its devices on the axis at the same time.
        """
        if size * inner <= self.group:
            return self.bandwidth
        return min(self.bandwidth, self.between * max(1, self.group // inner))

    def seconds(self, sent: Bytes, mesh: MeshSize) -> float:
        """The time to send, one axis after the other. Neighbours along tensor are closest, then along fsdp."""
        rates = (
            self.ring(mesh.data, mesh.fsdp * mesh.tensor),
            self.ring(mesh.fsdp, mesh.tensor),
            self.ring(mesh.tensor, 1),
        )
        return sum(size / rate for size, rate in zip(sent, rates, strict=True))


# From the vendors' data sheets; `between` is the buyer's choice: for GPUs, 400 Gbit/s each.
SHEETS = {"H100": PEAKS["NVIDIA H100 80GB HBM3"], "TPUv5p": PEAKS["TPU v5p"]}
KNOWN = {
    "H100": {"memory": 80e9, "bandwidth": 450e9, "group": 8, "between": 50e9},
    "TPUv5p": {"memory": 102e9, "bandwidth": 200e9, "group": 8960, "between": 6.25e9},
}
KEYS = tuple(field.name for field in dataclasses.fields(Cluster) if field.name not in ("devices", "platform", "sheet"))
MAX_DEVICES = 1_000_000


def parse_cluster(text: str) -> Cluster:
    """The cluster described as 64xH100, 64xH100,utilisation=0.3 or, for other devices, 64,flops=...,memory=... ."""
    first, *pairs = text.split(",")
    number, _, name = first.partition("x")
    if not number.isdecimal() or len(number) > len(str(MAX_DEVICES)) or not 1 <= int(number) <= MAX_DEVICES:
        raise BadInput(
            f"--cluster={text}: must begin with how many devices there are, from 1 to {MAX_DEVICES:,}, as 64xH100"
        )
    if name and name not in KNOWN:
        raise BadInput(f"--cluster={text}: {name!r} is not known here; {nearest(name, list(KNOWN))}")
    values: dict[str, float] = dict(KNOWN.get(name, {}))
    sheet = SHEETS.get(name)
    if sheet is not None and sheet.bfloat16 is not None:
        values["flops"] = sheet.bfloat16 * 1e12
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in KEYS:
            raise BadInput(f"--cluster={text}: {key!r} is not a key; {nearest(key, list(KEYS))}")
        try:
            values[key] = _number(key, value)
        except ValueError as problem:
            raise BadInput(f"--cluster={text}: {key} = {value!r} {problem}") from None
    missing = [key for key in KEYS if key not in values and key != "utilisation"]
    if missing:
        raise BadInput(f"--cluster={text}: {', '.join(missing)} missing; or name a known device: {', '.join(KNOWN)}")
    if any(pair.startswith("flops=") for pair in pairs):
        sheet = None
    platform = "tpu" if name.startswith("TPU") else "gpu"
    return Cluster(int(number), **values, platform=platform, sheet=sheet)  # type: ignore[arg-type]


def _number(key: str, text: str) -> float:
    """The value of a key; raises ValueError with the reason."""
    try:
        number = int(text) if key == "group" else float(text)
    except ValueError:
        raise ValueError("is not an integer" if key == "group" else "is not a number") from None
    if not 0 < number < math.inf:
        raise ValueError("must be above 0, and finite")
    if key == "utilisation" and number > 1:
        raise ValueError("is a share: it must be at most 1")
    return number


class MeshPlan(NamedTuple):
    """The predicted update on one mesh."""

    mesh: MeshSize
    work: Work
    memory: Memory
    sent: Bytes
    computing: float  # seconds
    sending: float

    @property
    def seconds(self) -> float:
        return self.computing + self.sending

    @property
    def efficiency(self) -> float:
        """The share of the time spent computing: the speed-up over one device, divided by the devices."""
        return self.computing / self.seconds


def plan(config: ModelConfig, work: Work, cluster: Cluster, mesh: MeshSize, moments: float = 2.0) -> MeshPlan:
    """The update on a mesh, in as few parts as fit into memory; in parts of one row if none fit."""
    parts, rows = 1, work._replace(parts=1).on(mesh).rows
    while (
        memory(config, work._replace(parts=parts), mesh, moments, cluster.platform).total > cluster.memory
        and parts < rows
    ):
        parts = min(2 * parts, rows)
    work = work._replace(parts=parts)
    local = work.on(mesh)
    # Empty rows pad what does not divide evenly.
    flops = training_flops(config, work.source, work.target).of(local.source_tokens, local.target_tokens) * parts
    sent = bytes_sent(config, work, mesh, cluster.platform)
    computing = flops / mesh.tensor / (cluster.flops * cluster.utilisation)
    needed = memory(config, work, mesh, moments, cluster.platform)
    return MeshPlan(mesh, work, needed, sent, computing, cluster.seconds(sent, mesh))


def plans(config: ModelConfig, work: Work, cluster: Cluster, moments: float = 2.0) -> list[MeshPlan]:
    """The plans for every mesh of the cluster, the fastest first; those that do not fit into memory come last."""
    found = [plan(config, work, cluster, mesh, moments) for mesh in meshes(config, cluster)]
    return sorted(found, key=lambda plan: (plan.memory.total > cluster.memory, plan.seconds))


def meshes(config: ModelConfig, cluster: Cluster) -> Iterator[MeshSize]:
    """The meshes whose axes divide the model evenly; tensor, which sends most, stays within a group."""
    for tensor in _divisors(math.gcd(cluster.devices, cluster.group, config.key_value_heads, config.inner_width)):
        for fsdp in _divisors(math.gcd(cluster.devices // tensor, config.d_model)):
            yield MeshSize(cluster.devices // (tensor * fsdp), fsdp, tensor)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
