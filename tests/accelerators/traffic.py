"""What a compiled program reads from and writes to a device's memory, and what it computes while it sends.

All sizes are bytes on one device. The checks of `make accelerators` hold programs to these figures.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tests.accelerators.products import product_flops
from transformer_jax.planning.hlo import Array, Collective, Computation, Instruction, Program

# They move nothing: names for what is there already, or the end of what was started before.
FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "optimization-barrier", "after-all", "iota")
COPIES = {"copy", "reshape", "transpose"}
# They pass on what they are given, under another name.
NAMES = ("tuple", "get-tuple-element", "bitcast")
SLICES = ("slice", "dynamic-slice", "gather", "bitcast")
HIDING_MS = 0.5  # of work: behind as much a collective counts as hidden


class Sent(NamedTuple):
    """A collective, and the seconds of what is scheduled between its start and its end."""

    collective: Collective
    seconds: float


def in_memory(array: Array) -> int:
    """Bytes in the device's memory, with the padding of the layout's tiles; 0 if the array is in faster memory."""
    if re.search(r"S\([1-9]", array.layout):
        return 0
    shape = list(array.shape)
    if tiled := re.match(r"\{([\d,]+):T\(([\d,]+)\)", array.layout):
        order = [int(axis) for axis in tiled[1].split(",")]  # the fastest axis first
        for axis, tile in zip(order, reversed([int(size) for size in tiled[2].split(",")]), strict=False):
            shape[axis] = -(-shape[axis] // tile) * tile
    return math.prod(shape) * array.bits // 8


def all_in_memory(instruction: Instruction) -> int:
    return sum(map(in_memory, instruction.arrays))


class Traffic(Program):
    """A program with the bytes that each instruction accesses, and the products that it computes."""

    def flops(self) -> float:
        """The FLOPs of all matrix products."""
        return sum(times * self.flops_of(each, computation) for each, times, computation in self.scheduled())

    def flops_of(self, instruction: Instruction, computation: Computation) -> float:
        """The FLOPs of the matrix products in one instruction, without those of the loops that it runs."""
        inside = self.inside(instruction)
        return sum(product_flops(each, computation if each is instruction else inside) for each in inside.values())

    def accesses(self) -> dict[str, int]:
        """The bytes that each instruction reads and writes in the device's memory, in all its runs.

        A fusion or a transfer that uses only a slice of an operand is counted with the slice, and one that updates a
        part of its result in place with that part.
        """
        return {
            instruction.name: size * times
            for instruction, times, computation in self.scheduled()
            if (size := self._accessed(instruction, computation))
        }

    def _accessed(self, instruction: Instruction, computation: Computation) -> int:
        kind = instruction.kind
        if kind in FREE or kind in ("while", "conditional", "call") or kind.endswith("-done"):
            return 0
        if kind == "custom-call" and re.search(r'target="(AllocateBuffer|ConcatBitcast)"', instruction.text):
            return 0  # room that is not written, and parts that lie side by side already
        operands = [computation[name] for name in instruction.operands if name in computation]
        if kind in ("slice-start", "copy-start"):  # (the operand, the result, a flag), or the result first
            source, *others = instruction.arrays
            moved = others[0] if kind == "slice-start" else source
            ends = (operands[0].arrays[0], moved)
            return sum(moved.size for end in ends if in_memory(end))
        if kind == "fusion":
            inside = self.inside(instruction)
            return _written(inside, instruction) + sum(
                _read(inside, number, all_in_memory(operand)) for number, operand in enumerate(operands)
            )
        if kind == "dynamic-update-slice":
            return 2 * all_in_memory(operands[1])
        if kind in SLICES:
            return 2 * all_in_memory(instruction)
        return all_in_memory(instruction) + sum(map(all_in_memory, operands))

    def copies(self) -> list[Array]:
        """The arrays that loops copy into another layout, the largest first; moves between memories are none."""
        found = [
            array
            for name in self.repeated
            for instruction in self.computations[name].values()
            if (kinds := {each.kind for each in self.inside(instruction).values()}) & COPIES
            and kinds <= COPIES | {"parameter", "bitcast"}
            for array in instruction.arrays
        ]
        return sorted(found, key=lambda array: -array.size)

    def host_transfers(self) -> int:
        """How many instructions exchange data with the host, callbacks into Python among them."""
        kinds = [instruction.kind for instruction, *_ in self.scheduled()]
        callbacks = [count for name, count in self.kernels().items() if "callback" in name]
        return sum(kinds.count(kind) for kind in ("infeed", "outfeed", "send", "recv")) + sum(callbacks)

    def sent(self, seconds: Callable[[float, float], float]) -> list[Sent]:
        """The collectives with what is scheduled meanwhile; `seconds` is the time for so many bytes and FLOPs."""
        work = {name: self._work(name, seconds) for name in self.times}
        found = []
        for collective in self.collectives():
            names = list(self.computations[collective.computation])
            meanwhile = names[names.index(collective.start) + 1 : names.index(self._end(collective))]
            found.append(Sent(collective, sum(work[collective.computation][name] for name in meanwhile)))
        return found

    def _end(self, collective: Collective) -> str:
        """The last step of a collective sent in steps, or the instruction that waits for it."""
        computation, name = self.computations[collective.computation], collective.start
        if chain := max(inner.chain for inner in self.inside(computation[name]).values()):
            steps = [
                step.name
                for step in computation.values()
                if any(inner.chain == chain for inner in self.inside(step).values())
            ]
            return steps[-1]
        for instruction in computation.values():
            if name in instruction.operands:
                if instruction.kind.endswith("-done"):
                    return instruction.name
                if instruction.kind.endswith("-update") or instruction.kind in NAMES:
                    name = instruction.name
        return collective.start

    def _work(self, name: str, seconds: Callable[[float, float], float]) -> dict[str, float]:
        """Seconds of each instruction of a computation, with those of the loops and calls that it makes.

        A collective is no work: another cannot hide behind it.
        """
        computation, work = self.computations[name], {}
        for each in computation.values():
            flops = self.flops_of(each, computation)
            is_work = flops or not any(part.collective for part in self.inside(each).values())
            own = seconds(self._accessed(each, computation), flops) if is_work else 0.0
            called = (times * sum(self._work(inner, seconds).values()) for inner, times in self.calls(each))
            work[each.name] = own + sum(called)
        return work


def _read(inside: Computation, number: int, size: int) -> int:
    """What a fusion reads of an operand of this size: no more than its slices, if it uses nothing else."""
    parameter = next(
        (each for each in inside.values() if each.kind == "parameter" and each.text.startswith(f"{number})")), None
    )
    names, slices = {parameter.name} if parameter else set(), 0
    for each in inside.values():
        if not names.intersection(each.operands):
            continue
        if each.kind == "bitcast":
            names.add(each.name)
        elif each.kind in SLICES and each.operands[0] in names:
            slices += sum(array.size for array in each.arrays)
        elif each.kind == "dynamic-update-slice" and each.operands[0] in names:
            continue  # updated in place
        else:
            return size
    return min(size, slices)


def _written(inside: Computation, fusion: Instruction) -> int:
    """What a fusion writes: of a result that is updated in place, the update."""
    root = next(each for each in inside.values() if each.is_root)
    roots = [inside[name] for name in root.operands] if root.kind == "tuple" else [root]
    size = 0
    for array, result in zip(fusion.arrays, roots, strict=False):
        while result.kind == "bitcast" and result.operands[0] in inside:
            result = inside[result.operands[0]]
        if result.kind == "dynamic-update-slice" and in_memory(array):
            size += inside[result.operands[1]].arrays[0].size
        else:
            size += in_memory(array)
    return size


def hidden(sent: Sequence[Sent], mesh: Mapping[str, int]) -> float | None:
    """The share of the gradients' bytes that is sent behind at least `HIDING_MS` of work.

    What is summed over the devices that share the batch is gradients, but for a few numbers.
    """
    kinds = ("all-reduce", "reduce-scatter", "all-to-all")
    gradients = [one for one in sent if one.collective.kind in kinds and "tensor" not in one.collective.axes(mesh)]
    if not gradients:
        return None
    early = [one for one in gradients if one.collective.is_asynchronous and one.seconds >= HIDING_MS / 1000]
    return sum(one.collective.sent for one in early) / sum(one.collective.sent for one in gradients)
