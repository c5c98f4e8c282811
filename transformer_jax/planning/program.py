"""A compiled program, read from XLA's text: what it sends, and what it reads from and writes to a device's memory.

Only scheduled programs are understood: those of `compiled.as_text()`, whose order of instructions is the order in which
they run. All sizes are bytes on one device.
"""

import collections
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from transformer_jax.planning.hlo import Array, Instruction, first_group, parse_instruction

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# They move nothing: names for what is there already, or the end of what was started before.
FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "optimization-barrier", "after-all", "iota")
COPIES = {"copy", "reshape", "transpose"}
SLICES = ("slice", "dynamic-slice", "gather", "bitcast")


class Collective(NamedTuple):
    """A message among devices: its results on each, the devices of the first group, and how often it is sent."""

    kind: str
    arrays: tuple[Array, ...]
    group: tuple[int, ...]
    times: int
    is_asynchronous: bool
    work: float  # seconds of what is scheduled between its start and its end
    flops: float  # of the matrix products among that
    in_loop: bool = False

    @property
    def bytes(self) -> int:
        return sum(array.size for array in self.arrays)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [array.shape for array in self.arrays]

    def axes(self, mesh: Mapping[str, int]) -> tuple[str, ...]:
        """The axes of a mesh of these sizes along which it is sent."""
        places = np.unravel_index(self.group, tuple(mesh.values()))
        return tuple(axis for axis, place in zip(mesh, places, strict=True) if len(set(place)) > 1)

    @property
    def sent(self) -> float:
        """Bytes that each device sends in all, in a ring."""
        count = len(self.group)
        share = (count - 1) / count
        factor = {"all-reduce": 2 * share, "reduce-scatter": count - 1, "collective-permute": 1}.get(self.kind, share)
        return self.times * self.bytes * factor


class Access(NamedTuple):
    """What an instruction reads and writes in all its runs, and the line of Python that it comes from."""

    name: str
    bytes: int
    source: str


class Program:
    """The instructions of a program, by computation."""

    def __init__(self, text: str):
        self.text = text
        self.computations: dict[str, list[Instruction]] = {}
        self.entry = ""
        for line in text.splitlines():
            if matched := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line):
                name = matched[2]
                self.computations[name] = []
                self.entry = name if matched[1] else self.entry
            elif self.computations and (instruction := parse_instruction(line)):
                self.computations[name].append(instruction)

    @functools.cached_property
    def times(self) -> dict[str, int]:
        """The computations that are scheduled, and how often each runs: bodies of loops as often as is known."""
        found: collections.Counter[str] = collections.Counter()

        def run(name: str, times: int) -> None:
            found[name] += times
            for instruction in self.computations[name]:
                for called, repeated in self._calls(instruction):
                    run(called, times * repeated)

        run(self.entry, 1)
        return dict(found)

    @functools.cached_property
    def repeated(self) -> set[str]:
        """The computations that run in loops."""
        found: set[str] = set()

        def run(name: str, in_loop: bool) -> None:
            found.update([name] if in_loop else [])
            for instruction in self.computations[name]:
                for called, _ in self._calls(instruction):
                    run(called, in_loop or instruction.kind == "while")

        run(self.entry, False)
        return found

    def copies(self) -> list[Array]:
        """The arrays that loops copy into another layout, the largest first; moves between memories are none."""
        found = [
            array
            for name in self.repeated
            for instruction in self.computations[name]
            if (kinds := {each.kind for each in self._inside(instruction)}) & COPIES
            and kinds <= COPIES | {"parameter", "bitcast"}
            for array in instruction.arrays
        ]
        return sorted(found, key=lambda array: -array.size)

    def _calls(self, instruction: Instruction) -> Iterator[tuple[str, int]]:
        """The computations that an instruction runs, and how often; of a conditional each, as if it were the one."""
        if instruction.kind == "while":
            yield instruction.called("condition"), 1
            yield instruction.called("body"), self._trips(instruction)
        elif instruction.kind == "call":
            yield instruction.called("to_apply"), 1
        elif instruction.kind == "conditional":
            yield from ((branch, 1) for branch in instruction.branches())

    def _trips(self, loop: Instruction) -> int:
        """How often a loop runs, if it counts up to a constant; otherwise 1, as that is not known here."""
        if known := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.text):
            return int(known[1])
        condition = {each.name: each for each in self.computations[loop.called("condition")]}
        root = next(each for each in condition.values() if each.is_root)
        if root.kind == "compare" and "direction=LT" in root.text and root.operands[-1] in condition:
            limit = re.match(r"(\d+)\)", condition[root.operands[-1]].text)
            return int(limit[1]) if limit else 1
        return 1

    def scheduled(self) -> Iterator[tuple[Instruction, int, Mapping[str, Instruction]]]:
        """Every instruction that runs, how often, and the instructions of its computation by name."""
        for name, times in self.times.items():
            by_name = {instruction.name: instruction for instruction in self.computations[name]}
            for instruction in self.computations[name]:
                yield instruction, times, by_name

    def kernels(self) -> dict[str, int]:
        """The calls of hand-written kernels, such as cuDNN's, by target; in all computations."""
        found: collections.Counter[str] = collections.Counter()
        for name, times in self.times.items():
            for instruction in self.computations[name]:
                if target := re.search(r'custom_call_target="([^"]+)"', instruction.text):
                    found[target[1]] += times
        return dict(found)

    def accesses(self) -> list[Access]:
        """What each instruction reads and writes in the device's memory, the most first.

        A fusion or a transfer that uses only a slice of an operand is counted with the slice, and one that updates a
        part of its result in place with that part.
        """
        found = [
            Access(instruction.name, size * times, self.source(instruction))
            for instruction, times, by_name in self.scheduled()
            if (size := self._accessed(instruction, by_name))
        ]
        return sorted(found, key=lambda access: -access.bytes)

    def _accessed(self, instruction: Instruction, by_name: Mapping[str, Instruction]) -> int:
        kind = instruction.kind
        if kind in FREE or kind in ("while", "conditional", "call") or kind.endswith("-done"):
            return 0
        if kind == "custom-call" and re.search(r'target="(AllocateBuffer|ConcatBitcast)"', instruction.text):
            return 0  # room that is not written, and parts that lie side by side already
        operands = [by_name[name] for name in instruction.operands if name in by_name]
        if kind in ("slice-start", "copy-start"):  # (the operand, the result, a flag), or the result first
            source, *others = instruction.arrays
            moved = others[0] if kind == "slice-start" else source
            ends = (operands[0].arrays[0], moved)
            return sum(moved.size for end in ends if end.bytes)
        called = instruction.called("calls")
        if kind == "fusion" and called in self.computations:
            inside = self.computations[called]
            return _written(inside, instruction) + sum(
                _read(inside, number, operand.bytes) for number, operand in enumerate(operands)
            )
        if kind == "dynamic-update-slice":
            return 2 * operands[1].bytes
        if kind in SLICES:
            return 2 * instruction.bytes
        return instruction.bytes + sum(operand.bytes for operand in operands)

    def flops(self, instruction: Instruction, by_name: Mapping[str, Instruction]) -> float:
        """Of the matrix products in an instruction of these; those of loops and calls in it are not counted."""
        inside = self.computations.get(instruction.called("calls"))
        if inside is None:
            return _product_flops(instruction, by_name)
        fused = {each.name: each for each in inside}
        return sum(_product_flops(each, fused) for each in inside)

    def host_transfers(self) -> int:
        """How many instructions exchange data with the host, callbacks into Python among them."""
        kinds = [instruction.kind for instruction, *_ in self.scheduled()]
        callbacks = [count for name, count in self.kernels().items() if "callback" in name]
        return sum(kinds.count(kind) for kind in ("infeed", "outfeed", "send", "recv")) + sum(callbacks)

    def collectives(self, seconds: Callable[[float, float], float] = lambda *work: 0.0) -> list[Collective]:
        """The messages among devices in the order of the program; those within one device are left out.

        `seconds` is the time that is needed for so many bytes and FLOPs.
        """
        found = []
        for name, times in self.times.items():
            instructions = self.computations[name]
            last = {chain: place for place, each in enumerate(instructions) for chain in self._chains(each)}
            begun: set[str] = set()
            in_loop = name in self.repeated
            work = self._work(name, seconds)
            for start, instruction in enumerate(instructions):
                for message in self._inside(instruction):
                    group, chain = first_group(message.text), _chain(message)
                    if not _is_message(message) or len(group) < 2 or chain in begun:
                        continue
                    begun.add(chain or message.name)
                    end = last[chain] if chain else _end(instructions, start)
                    meanwhile, flops = work[start + 1 : end].sum(0).tolist()
                    arrays = (instructions[end] if message is instruction else message).arrays
                    is_asynchronous = bool(chain) or instruction.kind.endswith("-start")
                    kind = message.kind.removesuffix("-start")
                    found.append(Collective(kind, arrays, group, times, is_asynchronous, meanwhile, flops, in_loop))
        return found

    def _work(self, name: str, seconds: Callable[[float, float], float]) -> np.ndarray:
        """Seconds and FLOPs of each instruction of a computation, with those of the loops and calls that it makes.

        A message is no work: another cannot hide behind it.
        """
        by_name = {each.name: each for each in self.computations[name]}
        work = np.zeros((len(by_name), 2))
        for row, each in zip(work, by_name.values(), strict=True):
            flops = self.flops(each, by_name)
            if flops or not any(_is_message(part) for part in self._inside(each)):
                row[:] = seconds(self._accessed(each, by_name), flops), flops
            for called, times in self._calls(each):
                row += times * self._work(called, seconds).sum(axis=0)
        return work

    def _inside(self, instruction: Instruction) -> list[Instruction]:
        """The instructions that one wraps, in a fusion or an asynchronous call; otherwise itself."""
        # A TPU's SparseCore runs what `call-start` calls, beside what the TensorCore runs.
        attribute = "to_apply" if instruction.kind == "call-start" else "calls"
        return self.computations.get(instruction.called(attribute), [instruction])

    def _chains(self, instruction: Instruction) -> set[str]:
        return {_chain(each) for each in self._inside(instruction)}

    def source(self, instruction: Instruction) -> str:
        """The innermost line of Python outside of libraries that an instruction comes from."""
        frame = re.search(r"stack_frame_id=(\d+)", instruction.text)
        for place in self._stack(frame[1]) if frame else ():
            if "site-packages" not in place and "dist-packages" not in place:
                return place
        operation = re.search(r'op_name="([^"]*)"', instruction.text)
        return operation[1] if operation else instruction.kind

    def _stack(self, frame: str) -> Iterator[str]:
        """The lines of a stack frame, the innermost first."""
        files, locations, frames = self._tables
        seen = set()
        while frame in frames and frame not in seen:
            seen.add(frame)
            fields = dict(re.findall(r"(\w+)=(\d+)", frames[frame]))
            place = dict(re.findall(r"(\w+)=(\d+)", locations[fields["file_location_id"]]))
            yield f"{files[place['file_name_id']].strip(chr(34))}:{place['line']}"
            frame = fields.get("parent_frame_id", "")

    @functools.cached_property
    def _tables(self) -> list[dict[str, str]]:
        """The names of files, the places in them, and the stack frames, each by number."""
        tables = []
        for name in ("FileNames", "FileLocations", "StackFrames"):
            rows = re.search(rf"^{name}\n((?:\d+ .*\n)*)", self.text, re.MULTILINE)
            tables.append(dict(row.split(" ", 1) for row in rows[1].splitlines()) if rows else {})
        return tables


def _read(inside: Sequence[Instruction], number: int, size: int) -> int:
    """What a fusion reads of an operand of this size: no more than its slices, if it uses nothing else."""
    parameter = next((each for each in inside if each.kind == "parameter" and each.text.startswith(f"{number})")), None)
    names, slices = {parameter.name} if parameter else set(), 0
    for each in inside:
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


def _written(inside: Sequence[Instruction], fusion: Instruction) -> int:
    """What a fusion writes: of a result that is updated in place, the update."""
    by_name = {each.name: each for each in inside}
    root = next(each for each in inside if each.is_root)
    roots = [by_name[name] for name in root.operands] if root.kind == "tuple" else [root]
    size = 0
    for array, result in zip(fusion.arrays, roots, strict=False):
        while result.kind == "bitcast" and result.operands[0] in by_name:
            result = by_name[result.operands[0]]
        if result.kind == "dynamic-update-slice" and array.bytes:
            size += by_name[result.operands[1]].arrays[0].size
        else:
            size += array.bytes
    return size


def _product_flops(product: Instruction, by_name: Mapping[str, Instruction]) -> float:
    """2 x the size of the result x the number of terms in each sum, of a matrix product or of those in a kernel."""
    if "__cudnn$fmha" in product.text and len(product.operands) > 1:
        queries_BTHK, keys_BSHK = (by_name[name].arrays[0].shape for name in product.operands[:2])
        # T x S x K for each head: scores and values; backward the scores again and four more. All keys count.
        count = 5 if "Backward" in product.text.partition("metadata")[0] else 2
        return 2.0 * count * math.prod(queries_BTHK) * keys_BSHK[1]
    if product.kind not in ("dot", "convolution") or product.operands[1] not in by_name:
        return 0.0
    size = math.prod(product.arrays[0].shape)
    right = by_name[product.operands[1]].arrays[0].shape
    if product.kind == "dot":
        summed = re.search(r"rhs_contracting_dims=\{([\d,]*)\}", product.text)
        return 2.0 * size * math.prod(right[int(axis)] for axis in summed[1].split(",") if axis) if summed else 0.0
    labels = re.search(r"dim_labels=\w+_(\w+)->", product.text)
    if not labels:
        return 0.0
    terms = math.prod(right) / right[labels[1].index("o")]
    dilated = re.search(r"lhs_dilate=([\dx]+)", product.text)  # then it is a batch of products
    batch = math.prod(int(factor) for factor in dilated[1].split("x")) if dilated else 1
    return 2.0 * size * terms / batch


def _is_message(instruction: Instruction) -> bool:
    return instruction.kind.removesuffix("-start") in COLLECTIVES


def _chain(message: Instruction) -> str:
    """Which message this is a part of, if of any: TPUs send one in steps, in fusions that each contain all of it."""
    found = re.search(r'chain_id="\d+"', message.text)
    return found[0] if found else ""


def _end(instructions: Sequence[Instruction], start: int) -> int:
    """The position of the instruction that waits for the one at `start`."""
    name = instructions[start].name
    for position in range(start + 1, len(instructions)):
        each = instructions[position]
        if name in each.operands:
            if each.kind.endswith("-done"):
                return position
            if each.kind.endswith("-update") or each.kind in FREE:
                name = each.name
    return start
