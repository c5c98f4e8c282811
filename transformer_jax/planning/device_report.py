"""What a program compiled for accelerators needs on each of them: memory, arithmetic, memory traffic, messages.

Compiled, not measured: times are the data sheet's, for the work that the compiler has scheduled.
"""

import collections
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from transformer_jax.model_config import ModelConfig
from transformer_jax.planning.accelerators import Target
from transformer_jax.planning.compiled import CompiledMemory, memory
from transformer_jax.planning.cost import amount
from transformer_jax.planning.program import Access, Collective, Program

ATTENTION = ("cudnn$fmha", "splash", "flash", "mosaic")
TOP = 10
HIDING_MS = 0.5  # of work: behind as much a message counts as hidden
ROOT = f"{Path(__file__).parents[2]}{os.sep}"  # lines of this library are shown without it


@dataclasses.dataclass(frozen=True)
class Messages:
    """Collectives of one kind along the same axes of the mesh."""

    kind: str
    axes: tuple[str, ...]
    count: int
    sent: float  # bytes of each device
    asynchronous: int  # how many of them
    least_work_ms: float  # scheduled between start and end of an asynchronous one, where it is least
    in_loop: bool  # then it is counted once, unless it is known how often the loop runs

    def __str__(self) -> str:
        hidden = (
            f", {self.asynchronous} asynchronous, with at least {self.least_work_ms:.3g} ms of work meanwhile"
            if self.asynchronous
            else ", synchronous"
        )
        where = " in a loop" if self.in_loop else ""
        return f"{self.count} x {self.kind}{where} along {' and '.join(self.axes)}: {amount(self.sent)}{hidden}"


class Hidden(NamedTuple):
    """The shares of the gradients' bytes that are sent behind at least `HIDING_MS` of work, or of arithmetic alone."""

    work: float
    arithmetic: float


@dataclasses.dataclass(frozen=True)
class DeviceReport:
    """Of one device."""

    target: str
    device: str
    devices: int
    mesh: dict[str, int]
    memory: CompiledMemory
    capacity: float  # bytes
    flops: float  # of all matrix products
    accessed: int  # bytes read from and written to memory
    compiler_flops: float | None  # as the compiler reports them, with the bodies of loops counted once
    compiler_accessed: float | None
    flops_type: str
    flops_ms: float | None  # at the data sheet's rate
    accessed_ms: float
    messages: tuple[Messages, ...]
    hidden_gradients: Hidden | None  # if there are any to send
    copied_in_loops: int  # bytes of the largest array that a loop copies into another layout, such as a search's logits
    host_transfers: int  # instructions by which the program waits for the host
    attention_kernels: dict[str, int]  # hand-written ones; without any, attention is ordinary products
    top: tuple[Access, ...]

    def to_json(self) -> dict[str, Any]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {
            "memory": self.memory._asdict(),
            "hidden_gradients": self.hidden_gradients and self.hidden_gradients._asdict(),
            "messages": [dataclasses.asdict(each) for each in self.messages],
            "top": [each._asdict() for each in self.top],
        }

    def __str__(self) -> str:
        mesh = " x ".join(f"{axis} {size}" for axis, size in self.mesh.items())
        fits = "" if self.memory.peak <= self.capacity else ": it does not fit"
        products = f"{self.flops / 1e12:.4g} TFLOP of matrix products"
        if self.flops_ms is not None:
            products += f", {self.flops_ms:.3g} ms at the peak of {self.flops_type}"
        lines = [
            f"Compiled, not run, for {self.target}: {self.devices} x {self.device}, {mesh}. On each device:",
            f"  memory      {amount(self.memory.peak)} of {amount(self.capacity)}{fits}: {amount(self.memory.state)} "
            f"of state and batch, {amount(self.memory.temporary)} temporary",
            f"  arithmetic  {products}",
            f"  traffic     {amount(self.accessed)} read and written, {self.accessed_ms:.3g} ms by the data sheet",
            f"  bound by    {self.binds}",
        ]
        if self.compiler_flops is not None and self.compiler_accessed is not None:
            lines.append(
                f"              (the compiler reports {self.compiler_flops / 1e12:.4g} TFLOP and "
                f"{amount(self.compiler_accessed)}: it counts a loop once, and a slice as its whole array)"
            )
        lines += ["  messages    " + (str(self.messages[0]) if self.messages else "none")]
        lines += [f"              {each}" for each in self.messages[1:]]
        if self.hidden_gradients:
            work, arithmetic = self.hidden_gradients
            lines.append(
                f"              of the gradients' bytes {work:.0%} are sent behind at least {HIDING_MS:g} ms of work, "
                f"{arithmetic:.0%} behind as much arithmetic"
            )
        kernels = ", ".join(f"{count} x {name}" for name, count in self.attention_kernels.items())
        lines.append(f"  attention   {kernels or 'plain matrix products'}")
        if self.copied_in_loops:
            lines.append(f"  loops       copy arrays of up to {amount(self.copied_in_loops)} into another layout")
        if self.host_transfers:
            lines.append(f"  host        {self.host_transfers} transfers between the device and its host")
        lines.append("  The instructions with the most traffic:")
        lines += [f"  {amount(each.bytes):>10}  {each.name:<36} {each.source}" for each in self.top]
        return "\n".join(lines)

    @property
    def binds(self) -> str:
        """Which of the two takes longer at the data sheet's rates."""
        if self.flops_ms is None:
            return f"unknown: the data sheet has no figure for {self.flops_type}"
        return "arithmetic" if self.flops_ms >= self.accessed_ms else "memory traffic"


def examine(
    compiled: jax.stages.Compiled, target: Target, mesh: Mesh, model: ModelConfig, trains: bool = True
) -> DeviceReport:
    """The figures of a program that was compiled for the target."""
    program = Program(str(compiled.as_text()))
    peak, name = target.chip.flops(model)
    sizes = {str(axis): size for axis, size in mesh.shape.items()}
    accesses = program.accesses()
    accessed = sum(each.bytes for each in accesses)
    flops = sum(program.flops(each, by_name) * times for each, times, by_name in program.scheduled())

    def seconds(bytes_accessed: float, flops: float) -> float:
        return max(bytes_accessed / target.chip.bandwidth, flops / peak if peak else 0.0)

    reported: dict[str, float] = compiled.cost_analysis() or {}  # compilers for GPUs report nothing
    collectives = program.collectives(seconds)
    kernels = {name: count for name, count in program.kernels().items() if any(word in name for word in ATTENTION)}
    return DeviceReport(
        target=target.name,
        device=target.chip.kind,
        devices=mesh.size,
        mesh=sizes,
        memory=memory(compiled),
        capacity=target.chip.memory,
        flops=flops,
        accessed=accessed,
        compiler_flops=reported.get("flops"),
        compiler_accessed=reported.get("bytes accessed"),
        flops_type=name,
        flops_ms=flops / peak * 1000 if peak else None,
        accessed_ms=accessed / target.chip.bandwidth * 1000,
        messages=tuple(_messages(collectives, sizes)),
        hidden_gradients=hidden(collectives, sizes, peak) if trains else None,
        copied_in_loops=max((array.size for array in program.copies()), default=0),
        host_transfers=program.host_transfers(),
        attention_kernels=kernels,
        top=tuple(each._replace(source=each.source.removeprefix(ROOT)) for each in accesses[:TOP]),
    )


def _messages(collectives: Sequence[Collective], mesh: Mapping[str, int]) -> list[Messages]:
    """The collectives, those of one kind along the same axes together."""
    by_kind = collections.defaultdict(list)
    for collective in collectives:
        by_kind[collective.kind, collective.axes(mesh), collective.in_loop].append(collective)
    return [
        Messages(
            kind,
            axes,
            sum(each.times for each in found),
            sum(each.sent for each in found),
            sum(each.times for each in found if each.is_asynchronous),
            1000 * min((each.work for each in found if each.is_asynchronous), default=0.0),
            in_loop,
        )
        for (kind, axes, in_loop), found in by_kind.items()
    ]


def hidden(collectives: Sequence[Collective], mesh: Mapping[str, int], peak: float | None) -> Hidden | None:
    """What is summed over the devices that share the batch is gradients, but for a few numbers."""
    gradients = [
        each
        for each in collectives
        if each.kind in ("all-reduce", "reduce-scatter", "all-to-all") and "tensor" not in each.axes(mesh)
    ]
    if not gradients:
        return None
    whole, least = sum(each.sent for each in gradients), HIDING_MS / 1000
    behind_work = sum(each.sent for each in gradients if each.is_asynchronous and each.work >= least)
    behind_products = sum(
        each.sent for each in gradients if each.is_asynchronous and peak and each.flops / peak >= least
    )
    return Hidden(behind_work / whole, behind_products / whole)
