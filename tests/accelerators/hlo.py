"""A compiled program, read from XLA's text (HLO): what it sends and the kernels that it calls.

It reads scheduled programs, as `compiled.as_text()` returns them. Sizes are bytes on one device. Text that it does not
know raises `UnknownHlo`, so that no figure is silently too small.
"""

import collections
import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
LINE = re.compile(r"\s*(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)")
ARRAY = re.compile(r"(\w+)\[([\d,]*)\](\{[^}]*\})?")
BITS = re.compile(r"(?:bf|[fsuc])(\d+)(?:e\d\w*)?")  # of a type: bf16, s32, f8e4m3fn
IOTA = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?")
GROUPS = re.compile(
    r"(?:replica_groups|source_target_pairs)=(.*?)(?:, (?:dimensions|use_global_device_ids|channel_id|to_apply|"
    r"metadata|frontend_attributes|backend_config)=|$)"
)


class UnknownHlo(ValueError):
    """The text of a program has something that this reader does not know."""


class Array(NamedTuple):
    """One array of a result: its type, its shape, and the layout as XLA writes it."""

    dtype: str
    shape: tuple[int, ...]
    layout: str

    @property
    def bits(self) -> int:
        """The size of one element."""
        if not (known := BITS.fullmatch(self.dtype.replace("pred", "u8").replace("token", "u0"))):
            raise UnknownHlo(f"the size of the type {self.dtype!r} is not known")
        return int(known[1])

    @property
    def size(self) -> int:
        """Bytes of its elements, without padding."""
        return math.prod(self.shape) * self.bits // 8


class Instruction(NamedTuple):
    """A line of a computation."""

    name: str
    arrays: tuple[Array, ...]
    kind: str
    operands: tuple[str, ...]
    text: str  # the operands and attributes
    is_root: bool

    def attribute(self, pattern: str) -> str:
        """The first group of a pattern in the attributes; empty if it is not there."""
        found = re.search(pattern, self.text)
        return found[1] if found else ""

    def called(self, attribute: str) -> str:
        """The computation that an attribute names; empty if there is no such attribute."""
        return self.attribute(rf"\b{attribute}=%?([\w.\-]+)")

    @property
    def kernel(self) -> str:
        """The target of a custom call; empty for any other instruction."""
        return self.attribute(r'custom_call_target="([^"]+)"')

    @property
    def collective(self) -> str:
        """The kind of a collective or of its start; empty for any other instruction."""
        kind = self.kind.removesuffix("-start")
        return kind if kind in COLLECTIVES else ""

    @property
    def chain(self) -> str:
        """The identity of a collective that TPUs send in steps, in fusions that each contain all of it; else empty."""
        return self.attribute(r'chain_id="(\d+)"')


Computation = Mapping[str, Instruction]  # by name, in the order of the schedule


class Collective(NamedTuple):
    """A collective: its results on each device, the devices of one group, and how often it runs."""

    kind: str
    arrays: tuple[Array, ...]
    group: tuple[int, ...]
    times: int
    is_asynchronous: bool
    in_loop: bool = False

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [array.shape for array in self.arrays]

    def axes(self, mesh: Mapping[str, int]) -> tuple[str, ...]:
        """The axes of a mesh of these sizes that the group extends over."""
        places = np.unravel_index(self.group, tuple(mesh.values()))
        return tuple(axis for axis, place in zip(mesh, places, strict=True) if len(set(place)) > 1)

    @property
    def sent(self) -> float:
        """Bytes that each device sends in all, if they are sent in a ring."""
        count = len(self.group)
        share = (count - 1) / count
        factor = {"all-reduce": 2 * share, "reduce-scatter": count - 1, "collective-permute": 1}.get(self.kind, share)
        return self.times * sum(array.size for array in self.arrays) * factor


class Program:
    """The instructions of a program, by computation, and how often each scheduled computation runs.

    A loop of unknown length counts once, and so does every branch of a conditional.
    """

    def __init__(self, text: str):
        self.computations: dict[str, dict[str, Instruction]] = {}
        header, entry = text.partition("\n")[0], ""
        self.devices = math.prod(map(int, re.findall(r"(?:replica_count|num_partitions)=(\d+)", header)))
        for line in text.splitlines():
            if matched := COMPUTATION.match(line):
                name = matched[2]
                self.computations[name] = {}
                entry = name if matched[1] else entry
            elif self.computations and (instruction := parse_instruction(line)):
                self.computations[name][instruction.name] = instruction
        self.times: collections.Counter[str] = collections.Counter()
        self.repeated: set[str] = set()  # the computations that run in loops
        self._count(entry, 1, False)

    def _count(self, name: str, times: int, in_loop: bool) -> None:
        self.times[name] += times
        self.repeated.update([name] if in_loop else [])
        for instruction in self.computations[name].values():
            for called, repeated in self.calls(instruction):
                self._count(called, times * repeated, in_loop or instruction.kind == "while")

    def calls(self, instruction: Instruction) -> Iterator[tuple[str, int]]:
        """The computations that an instruction runs, and how often."""
        if instruction.kind == "while":
            yield instruction.called("condition"), 1
            yield instruction.called("body"), self._trips(instruction)
        elif instruction.kind == "call":
            yield instruction.called("to_apply"), 1
        elif instruction.kind == "conditional":
            branches = re.findall(r"[\w.\-]+", instruction.attribute(r"branch_computations=\{([^}]*)\}"))
            for name in branches or map(instruction.called, ("true_computation", "false_computation")):
                yield name, 1

    def _trips(self, loop: Instruction) -> int:
        """How often a loop runs, if it counts up to a constant; otherwise 1."""
        if known := loop.attribute(r'known_trip_count":\{"n":"(\d+)"'):
            return int(known)
        condition = self.computations[loop.called("condition")]
        root = next(instruction for instruction in condition.values() if instruction.is_root)
        if root.kind == "compare" and "direction=LT" in root.text and root.operands[-1] in condition:
            return int(condition[root.operands[-1]].attribute(r"^(\d+)\)") or 1)
        return 1

    def scheduled(self) -> Iterator[tuple[Instruction, int, Computation]]:
        """Every instruction that runs, how often, and its computation."""
        for name, times in self.times.items():
            for instruction in self.computations[name].values():
                yield instruction, times, self.computations[name]

    def inside(self, instruction: Instruction) -> Computation:
        """The instructions that a fusion or an asynchronous call wraps; otherwise the instruction itself."""
        # A TPU's SparseCore runs what `call-start` calls, beside what the TensorCore runs.
        attribute = "to_apply" if instruction.kind == "call-start" else "calls"
        return self.computations.get(instruction.called(attribute), {instruction.name: instruction})

    def kernels(self) -> dict[str, int]:
        """The calls of hand-written kernels, such as cuDNN's, by target."""
        counts: collections.Counter[str] = collections.Counter()
        for instruction, times, _ in self.scheduled():
            if instruction.kernel:
                counts[instruction.kernel] += times
        return dict(counts)

    def collectives(self) -> list[Collective]:
        """The collectives in the order of the program, each once, without those within one device."""
        found = []
        for name, times in self.times.items():
            computation, chains = self.computations[name], set()
            for start in computation.values():
                for one in self.inside(start).values():
                    group = first_group(one.text, self.devices) if one.collective else ()
                    if len(group) < 2 or one.chain in chains:
                        continue
                    chains.update({one.chain} - {""})
                    # A start's own result also has the operands; its end has the results.
                    ends = (each for each in computation.values() if each.kind.endswith("-done"))
                    end = next((end for end in ends if one.kind.endswith("-start") and one.name in end.operands), one)
                    is_asynchronous = bool(one.chain) or start.kind.endswith("-start")
                    in_loop = name in self.repeated
                    found.append(Collective(one.collective, end.arrays, group, times, is_asynchronous, in_loop))
        return found


def parse_instruction(line: str) -> Instruction | None:
    """The instruction of a line; None for any other line."""
    matched = LINE.match(re.sub(r"/\*.*?\*/", "", line))
    if not matched:
        return None
    root, name, result, kind, rest = matched.groups()
    arrays = tuple(Array(dtype, numbers(shape), layout) for dtype, shape, layout in ARRAY.findall(result))
    operands = re.findall(r"%([\w.\-]+)", re.split(r"\)(?:, |$)", rest)[0])
    return Instruction(name, arrays, kind, tuple(operands), rest, bool(root))


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def first_group(line: str, devices: int) -> tuple[int, ...]:
    """The numbers of the devices of one group, in each of the ways in which HLO writes them."""
    groups = GROUPS.search(line)
    if not groups:
        return ()
    text = groups[1]
    if text.startswith("{}"):  # all devices are one group
        return tuple(range(devices))
    if text.startswith("{{"):
        numbered = map(numbers, re.findall(r"\{([\d,]+)\}", text[: text.index("}}") + 1]))
        return next((group for group in numbered if len(set(group)) > 1), ())  # a permutation may leave some in place
    if text.startswith("mesh"):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", text)}
        chosen = re.findall(r"'(\w+)'", text[text.rindex("{") :])
        ids = re.search(r"device_ids=\((.*?)\)( |$)", text)
        grid = (_iota(ids[1]) if ids else np.arange(math.prod(sizes.values()))).reshape(list(sizes.values()))
        return tuple(grid[tuple(slice(None) if name in chosen else 0 for name in sizes)].reshape(-1).tolist())
    if re.match(r"\[[\d,]+\]<=\[", text):
        shape, _, iota = text.partition("<=")
        return tuple(_iota(iota).reshape(numbers(shape.strip("[]")))[0].tolist())
    raise UnknownHlo(f"groups of devices are written in an unknown way: {text[:80]}")


def _iota(text: str) -> np.ndarray:
    """[4,2]T(1,0): counted, as a table of 4 x 2, transposed."""
    ((shape, axes),) = IOTA.findall(text)
    counted = np.arange(math.prod(numbers(shape))).reshape(numbers(shape))
    return (counted.transpose(numbers(axes)) if axes else counted).reshape(-1)
