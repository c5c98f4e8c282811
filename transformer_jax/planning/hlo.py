"""A compiled program, read from XLA's text (HLO): its collectives, its kernels and its matrix products.

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
BITS = {
    "pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "bf16": 16, "f16": 16, "s32": 32, "u32": 32,
    "f32": 32, "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128, "f8e4m3fn": 8, "f8e5m2": 8, "token": 0,
}  # fmt: skip
COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
LINE = re.compile(r"\s*(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)")
ARRAY = re.compile(r"(\w+)\[([\d,]*)\](\{[^}]*\})?")
IOTA = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?")
GROUPS = re.compile(
    r"(?:replica_groups|source_target_pairs)=(.*?)(?:, (?:dimensions|use_global_device_ids|channel_id|to_apply|"
    r"metadata|frontend_attributes|backend_config)=|$)"
)
# Kernels of libraries that multiply matrices, as in __cublas$gemm and __onednn$matmul.
PRODUCT_KERNEL = re.compile(r"gemm|matmul|conv|tpu_custom_call|triton", re.IGNORECASE)


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
        if self.dtype not in BITS:
            raise UnknownHlo(f"the size of the type {self.dtype!r} is not known")
        return BITS[self.dtype]

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
    def chain(self) -> str:
        """The identity of a collective that TPUs send in steps, in fusions that each contain all of it; else empty."""
        return self.attribute(r'chain_id="(\d+)"')


class Collective(NamedTuple):
    """A collective: its results on each device, the devices of one group, and how often it runs."""

    kind: str
    arrays: tuple[Array, ...]
    group: tuple[int, ...]
    times: int
    is_asynchronous: bool
    in_loop: bool = False

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
        self.computations: dict[str, list[Instruction]] = {}
        header, entry = text.partition("\n")[0], ""
        self.devices = math.prod(map(int, re.findall(r"(?:replica_count|num_partitions)=(\d+)", header)))
        for line in text.splitlines():
            if matched := COMPUTATION.match(line):
                name = matched[2]
                self.computations[name] = []
                entry = name if matched[1] else entry
            elif self.computations and (instruction := parse_instruction(line)):
                self.computations[name].append(instruction)
        self.times: collections.Counter[str] = collections.Counter()
        self.repeated: set[str] = set()  # the computations that run in loops
        self._count(entry, 1, False)

    def _count(self, name: str, times: int, in_loop: bool) -> None:
        self.times[name] += times
        self.repeated.update([name] if in_loop else [])
        for instruction in self.computations[name]:
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
            listed = re.findall(r"[\w.\-]+", instruction.attribute(r"branch_computations=\{([^}]*)\}"))
            two = [instruction.called("true_computation"), instruction.called("false_computation")]
            yield from ((name, 1) for name in listed or two)

    def _trips(self, loop: Instruction) -> int:
        """How often a loop runs, if it counts up to a constant; otherwise 1."""
        if known := loop.attribute(r'known_trip_count":\{"n":"(\d+)"'):
            return int(known)
        condition = {instruction.name: instruction for instruction in self.computations[loop.called("condition")]}
        root = next(instruction for instruction in condition.values() if instruction.is_root)
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

    def inside(self, instruction: Instruction) -> list[Instruction]:
        """The instructions that a fusion or an asynchronous call wraps; otherwise the instruction itself."""
        # A TPU's SparseCore runs what `call-start` calls, beside what the TensorCore runs.
        attribute = "to_apply" if instruction.kind == "call-start" else "calls"
        return self.computations.get(instruction.called(attribute), [instruction])

    def kernels(self) -> dict[str, int]:
        """The calls of hand-written kernels, such as cuDNN's, by target."""
        counts: collections.Counter[str] = collections.Counter()
        for instruction, times, _ in self.scheduled():
            if instruction.kernel:
                counts[instruction.kernel] += times
        return dict(counts)

    def flops(self) -> float:
        """The FLOPs of all matrix products."""
        return sum(times * self.flops_of(instruction, by_name) for instruction, times, by_name in self.scheduled())

    def flops_of(self, instruction: Instruction, by_name: Mapping[str, Instruction]) -> float:
        """The FLOPs of the matrix products in one instruction, without those of the loops that it runs."""
        fused = self.computations.get(instruction.called("calls"))
        if fused is None:
            return product_flops(instruction, by_name)
        fused_by_name = {inner.name: inner for inner in fused}
        return sum(product_flops(inner, fused_by_name) for inner in fused)

    def collectives(self) -> list[Collective]:
        """The collectives in the order of the program, without those within one device."""
        found = []
        for name, start, message in self.messages():
            instructions, kind = self.computations[name], message.kind.removesuffix("-start")
            result = message
            if message.kind.endswith("-start"):  # its own result also has operands
                ends = (
                    one for one in instructions[start:] if one.kind == f"{kind}-done" and message.name in one.operands
                )
                result = next(ends, message)
            is_asynchronous = bool(message.chain) or instructions[start].kind.endswith("-start")
            group, times = first_group(message.text, self.devices), self.times[name]
            found.append(Collective(kind, result.arrays, group, times, is_asynchronous, name in self.repeated))
        return found

    def messages(self) -> Iterator[tuple[str, int, Instruction]]:
        """Each collective once: its computation, where it starts there, and its instruction."""
        for name in self.times:
            begun: set[str] = set()
            for start, instruction in enumerate(self.computations[name]):
                for message in self.inside(instruction):
                    is_sent = is_collective(message) and len(first_group(message.text, self.devices)) > 1
                    if is_sent and message.chain not in begun:
                        begun.update([message.chain] if message.chain else [])
                        yield name, start, message


def is_collective(instruction: Instruction) -> bool:
    return instruction.kind.removesuffix("-start") in COLLECTIVES


def product_flops(product: Instruction, by_name: Mapping[str, Instruction]) -> float:
    """2 x the size of the result x the number of terms in each sum, for a matrix product or those in a kernel."""
    if product.kernel.startswith("__cudnn$fmha"):
        queries_BTHK, keys_BSHK = (by_name[name].arrays[0].shape for name in product.operands[:2])
        # T x S x K for each head: scores and values; backward the scores again and four more. All keys count.
        count = 5 if "Backward" in product.kernel else 2
        return 2.0 * count * math.prod(queries_BTHK) * keys_BSHK[1]
    if PRODUCT_KERNEL.search(product.kernel):
        raise UnknownHlo(f"the kernel {product.kernel!r} may multiply matrices, which cannot be counted")
    if product.kind not in ("dot", "convolution"):
        return 0.0
    size = math.prod(product.arrays[0].shape)
    right = by_name[product.operands[1]].arrays[0].shape
    if product.kind == "dot":
        summed = _numbers(product.attribute(r"rhs_contracting_dims=\{([\d,]*)\}"))
        return 2.0 * size * math.prod(right[axis] for axis in summed)
    labels = product.attribute(r"dim_labels=\w+_(\w+)->")
    dilated = product.attribute(r"lhs_dilate=([\dx]+)") or "1"  # above 1 it is a batch of products
    batch = math.prod(map(int, dilated.split("x")))
    return 2.0 * size * math.prod(right) / right[labels.index("o")] / batch


def parse_instruction(line: str) -> Instruction | None:
    """The instruction of a line; None for any other line."""
    matched = LINE.match(re.sub(r"/\*.*?\*/", "", line))
    if not matched:
        return None
    root, name, result, kind, rest = matched.groups()
    arrays = tuple(Array(dtype, _numbers(shape), layout) for dtype, shape, layout in ARRAY.findall(result))
    operands = re.findall(r"%([\w.\-]+)", re.split(r"\)(?:, |$)", rest)[0])
    return Instruction(name, arrays, kind, tuple(operands), rest, bool(root))


def _numbers(text: str) -> tuple[int, ...]:
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
        numbered = map(_numbers, re.findall(r"\{([\d,]+)\}", text[: text.index("}}") + 1]))
        return next((group for group in numbered if len(set(group)) > 1), ())  # a permutation may leave some in place
    if text.startswith("mesh"):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", text)}
        chosen = re.findall(r"'(\w+)'", text[text.rindex("{") :])
        ids = re.search(r"device_ids=\((.*?)\)( |$)", text)
        numbers = _iota(ids[1]) if ids else np.arange(math.prod(sizes.values()))
        grid = numbers.reshape(list(sizes.values()))
        return tuple(grid[tuple(slice(None) if name in chosen else 0 for name in sizes)].reshape(-1).tolist())
    if re.match(r"\[[\d,]+\]<=\[", text):
        shape, _, iota = text.partition("<=")
        return tuple(_iota(iota).reshape(_numbers(shape.strip("[]")))[0].tolist())
    raise UnknownHlo(f"groups of devices are written in an unknown way: {text[:80]}")


def _iota(text: str) -> np.ndarray:
    """[4,2]T(1,0): counted, as a table of 4 x 2, transposed."""
    ((shape, axes),) = IOTA.findall(text)
    numbers = np.arange(math.prod(_numbers(shape))).reshape(_numbers(shape))
    return (numbers.transpose(_numbers(axes)) if axes else numbers).reshape(-1)
