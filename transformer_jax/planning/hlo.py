"""The lines of XLA's text format (HLO): instructions, the arrays that they return, and groups of devices."""

import math
import re
from typing import NamedTuple

import numpy as np

BITS = {
    "pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "bf16": 16, "f16": 16, "s32": 32, "u32": 32,
    "f32": 32, "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128, "f8e4m3fn": 8, "f8e5m2": 8,
}  # fmt: skip


class Array(NamedTuple):
    """One array of a result: its type, its shape, and the layout as XLA writes it."""

    dtype: str
    shape: tuple[int, ...]
    layout: str

    @property
    def size(self) -> int:
        """Bytes of its elements, wherever they are."""
        return math.prod(self.shape) * BITS.get(self.dtype, 0) // 8

    @property
    def bytes(self) -> int:
        """In the memory of the device, with the padding of the layout's tiles; 0 if it is in faster memory."""
        if re.search(r"S\([1-9]", self.layout):
            return 0
        shape = list(self.shape)
        if tiled := re.match(r"\{([\d,]+):T\(([\d,]+)\)", self.layout):
            order = [int(axis) for axis in tiled[1].split(",")]  # the fastest axis first
            for axis, tile in zip(order, reversed([int(size) for size in tiled[2].split(",")]), strict=False):
                shape[axis] = -(-shape[axis] // tile) * tile
        return math.prod(shape) * BITS.get(self.dtype, 0) // 8


class Instruction(NamedTuple):
    """A line of the program."""

    name: str
    arrays: tuple[Array, ...]
    kind: str
    operands: tuple[str, ...]
    text: str  # of the operands and attributes
    is_root: bool

    @property
    def bytes(self) -> int:
        return sum(array.bytes for array in self.arrays)

    def called(self, attribute: str) -> str:
        """The computation that an attribute names; empty if it has no such attribute."""
        found = re.search(rf"\b{attribute}=%?([\w.\-]+)", self.text)
        return found[1] if found else ""

    def branches(self) -> list[str]:
        """The computations of a conditional."""
        listed = re.search(r"branch_computations=\{([^}]*)\}", self.text)
        two = [self.called("true_computation"), self.called("false_computation")]
        return re.findall(r"%?([\w.\-]+)", listed[1]) if listed else two


LINE = re.compile(r"\s*(ROOT )?%?([\w.\-]+) = (.*)")
ARRAY = re.compile(r"(\w+)\[([\d,]*)\](\{[^}]*\})?")


def parse_instruction(line: str) -> Instruction | None:
    """A line of a computation; None if it is none."""
    matched = LINE.match(line)
    if not matched:
        return None
    rest = re.sub(r"/\*.*?\*/", "", matched[3])
    end = _closing(rest) + 1 if rest.startswith("(") else rest.index(" ")
    result, rest = rest[:end], rest[end:].lstrip()
    kind, _, rest = rest.partition("(")
    end = _closing("(" + rest)
    arrays = tuple(
        Array(dtype, tuple(int(size) for size in shape.split(",") if size), layout)
        for dtype, shape, layout in ARRAY.findall(result)
    )
    operands = tuple(re.findall(r"%([\w.\-]+)", rest[: end - 1]))
    return Instruction(matched[2], arrays, kind, operands, rest, bool(matched[1]))


def _closing(text: str) -> int:
    """Where the bracket closes that `text` begins with."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return position
    return len(text)


def first_group(line: str) -> tuple[int, ...]:
    """The numbers of the devices of one group, in each of the ways in which HLO writes them."""
    ends = "dimensions|use_global_device_ids|channel_id|to_apply|metadata|frontend_attributes|backend_config"
    groups = re.search(rf"(?:replica_groups|source_target_pairs)=(.*?)(?:, (?:{ends})=|$)", line)
    if not groups:
        return ()
    text = groups[1]
    if text.startswith("{{"):
        listed = re.findall(r"\{([\d,]+)\}", text[: text.index("}}") + 1])
        numbered = (tuple(int(number) for number in group.split(",")) for group in listed)
        return next((group for group in numbered if len(set(group)) > 1), ())  # a permutation may leave some in place
    if text.startswith("mesh"):
        sizes = [(name, int(size)) for name, size in re.findall(r"'(\w+)'=(\d+)", text)]
        chosen = re.findall(r"'(\w+)'", text[text.rindex("{") :])
        ids = re.search(r"device_ids=\((.*?)\)( |$)", text)
        numbers = _iota(ids[1]) if ids else np.arange(math.prod(size for _, size in sizes))
        numbers = numbers.reshape([size for _, size in sizes])
        return tuple(numbers[tuple(slice(None) if name in chosen else 0 for name, _ in sizes)].reshape(-1).tolist())
    shape, _, iota = text.partition("<=")
    return tuple(_iota(iota).reshape([int(size) for size in shape.strip("[]").split(",")])[0].tolist())


def _iota(text: str) -> np.ndarray:
    """[4,2]T(1,0): counted, as a table of 4 x 2, transposed."""
    found = re.search(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    assert found is not None, text
    shape = [int(size) for size in found[1].split(",")]
    numbers = np.arange(math.prod(shape)).reshape(shape)
    return (numbers.transpose([int(axis) for axis in found[2].split(",")]) if found[2] else numbers).reshape(-1)
