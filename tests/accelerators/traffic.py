"""What a compiled program reads from and writes to a device's memory, and what it exchanges with the host.

All sizes are bytes on one device. The checks of `make accelerators` hold programs to these figures.
"""

import math
import re

from tests.accelerators.hlo import Array, Computation, Instruction, Program

# They move nothing: names for what is there already, or the end of what was started before.
FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "optimization-barrier", "after-all", "iota")
COPIES = {"copy", "reshape", "transpose"}
SLICES = ("slice", "dynamic-slice", "gather", "bitcast")


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
    """A program with the bytes that each instruction accesses."""

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
