"""What a program compiled for accelerators needs on each of them: memory, arithmetic, collectives and kernels.

Compiled, not measured: times are the data sheet's, for the work that the compiler has scheduled.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from transformer_jax.model_config import ModelConfig
from transformer_jax.planning.accelerators import Target
from transformer_jax.planning.compiled import CompiledMemory, amount, memory
from transformer_jax.planning.hlo import Collective, Program, UnknownHlo

ATTENTION = ("cudnn$fmha", "splash", "flash", "mosaic")


@dataclasses.dataclass(frozen=True)
class Collectives:
    """Collectives of one kind over the same axes of the mesh."""

    kind: str
    axes: tuple[str, ...]
    count: int
    sent: float  # bytes of each device
    asynchronous: int  # how many of them
    in_loop: bool  # then each counts once, unless the length of the loop is known

    def __str__(self) -> str:
        how = f"{self.asynchronous} asynchronous" if self.asynchronous else "synchronous"
        where = " in a loop" if self.in_loop else ""
        return f"{self.count} x {self.kind}{where} over {' and '.join(self.axes)}: {amount(self.sent)}, {how}"


@dataclasses.dataclass(frozen=True)
class DeviceReport:
    """The figures of one device."""

    target: str
    device: str
    devices: int
    mesh: dict[str, int]
    memory: CompiledMemory
    capacity: float  # bytes
    flops: float | None  # of all matrix products; None if they cannot be counted
    flops_type: str
    flops_ms: float | None  # at the data sheet's rate
    collectives: tuple[Collectives, ...]
    attention_kernels: dict[str, int]  # without any, attention is ordinary products

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"memory": self.memory._asdict()}

    def __str__(self) -> str:
        mesh = " x ".join(f"{axis} {size}" for axis, size in self.mesh.items())
        fits = "" if self.memory.peak <= self.capacity else ": it does not fit"
        products = "unknown" if self.flops is None else f"{self.flops / 1e12:.4g} TFLOP of matrix products"
        if self.flops_ms is not None:
            products += f", {self.flops_ms:.3g} ms at the peak of {self.flops_type}"
        kernels = ", ".join(f"{count} x {name}" for name, count in self.attention_kernels.items())
        first, *others = map(str, self.collectives) if self.collectives else ["none"]
        lines = [
            f"Compiled, not run, for {self.target}: {self.devices} x {self.device}, {mesh}. On each device:",
            f"  memory       {amount(self.memory.peak)} of {amount(self.capacity)}{fits}: {amount(self.memory.state)} "
            f"of state and batch, {amount(self.memory.temporary)} temporary",
            f"  arithmetic   {products}",
            f"  attention    {kernels or 'plain matrix products'}",
            f"  collectives  {first}",
            *(f"               {line}" for line in others),
        ]
        return "\n".join(lines)


def examine(compiled: jax.stages.Compiled, target: Target, mesh: Mesh, model: ModelConfig) -> DeviceReport:
    """The figures of a program that was compiled for the target."""
    program = Program(str(compiled.as_text()))
    peak, flops_type = target.chip.flops(model)
    sizes = {str(axis): size for axis, size in mesh.shape.items()}
    try:
        flops = program.flops()
    except UnknownHlo as unknown:
        flops, flops_type = None, str(unknown)
    return DeviceReport(
        target=target.name,
        device=target.chip.kind,
        devices=mesh.size,
        mesh=sizes,
        memory=memory(compiled),
        capacity=target.chip.memory,
        flops=flops,
        flops_type=flops_type,
        flops_ms=flops / peak * 1000 if flops is not None and peak else None,
        collectives=tuple(_by_kind(program.collectives(), sizes)),
        attention_kernels={
            name: count for name, count in program.kernels().items() if any(word in name for word in ATTENTION)
        },
    )


def _by_kind(collected: Sequence[Collective], mesh: Mapping[str, int]) -> list[Collectives]:
    """The collectives of one kind over the same axes together."""
    alike = collections.defaultdict(list)
    for collective in collected:
        alike[collective.kind, collective.axes(mesh), collective.in_loop].append(collective)
    return [
        Collectives(
            kind,
            axes,
            sum(one.times for one in ones),
            sum(one.sent for one in ones),
            sum(one.times for one in ones if one.is_asynchronous),
            in_loop,
        )
        for (kind, axes, in_loop), ones in alike.items()
    ]
