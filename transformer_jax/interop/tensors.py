"""Arrays in safetensors files. The headers are read and doubted first; only then is there anything to load.

A file is a length, a JSON header (name, type, shape, place of each array) and the numbers: nothing in it can run. What
a header says is believed only where it agrees with the size of the file.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from transformer_jax.errors import BadInput
from transformer_jax.files.record import MEGABYTE, parse_object, read_object

WEIGHTS = "model.safetensors"
INDEX = WEIGHTS + ".index.json"  # says which of several files holds which array
LARGEST_HEADER = 16 * MEGABYTE
TYPES: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
PICKLES = (b"\x80", b"PK\x03\x04")  # a bare one, and one that torch has zipped


class Stored(NamedTuple):
    """Where an array is, and what it is said to be."""

    file: Path
    type: str
    shape: tuple[int, ...]
    begin: int  # counted from the start of the file
    bytes: int


def stored_arrays(directory: Path) -> dict[str, Stored]:
    """Every array in a folder's weights, by its name."""
    if (directory / WEIGHTS).is_file():
        return _header(directory / WEIGHTS)
    if not (directory / INDEX).is_file():
        raise BadInput(f"{directory}: has no {WEIGHTS}")
    index = directory / INDEX
    places = read_object(index).get("weight_map")
    if not isinstance(places, dict):
        raise BadInput(f"{index}: has no weight_map")
    for name in places.values():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise BadInput(f"{index}: {str(name)[:80]!r} is not the name of a safetensors file in this folder")
    files = {name: _header(directory / name) for name in sorted(set(places.values()))}
    found = {name: (file, stored) for file, header in files.items() for name, stored in header.items()}
    for name in {**found, **places}:
        if name not in found or places.get(name) != found[name][0]:
            raise BadInput(f"{index}: says that {name[:80]} is in {places.get(name, 'no file')}, which is not so")
    return {name: stored for name, (_, stored) in found.items()}


def read_array(name: str, stored: Stored) -> np.ndarray:
    """One array, as float32."""
    with open(stored.file, "rb") as file:
        file.seek(stored.begin)
        content = file.read(stored.bytes)
    array = np.frombuffer(content, TYPES[stored.type]).reshape(stored.shape).astype(np.float32)
    if not np.isfinite(array).all():
        raise BadInput(f"{stored.file}: {name} has numbers that are not finite")
    return array


def _header(path: Path) -> dict[str, Stored]:
    if not path.is_file():
        raise BadInput(f"{path}: there is no such file")
    size = path.stat().st_size
    with open(path, "rb") as file:
        first = file.read(8)
        if first.startswith(PICKLES):
            raise BadInput(f"{path}: is a pickle under another name, which could run anything: it is not opened")
        length = int.from_bytes(first, "little")
        if len(first) < 8 or length > min(size - 8, LARGEST_HEADER):
            raise BadInput(f"{path}: is no safetensors file, or the beginning of one")
        header = parse_object(file.read(length), path)
    header.pop("__metadata__", None)
    arrays = {name: _stored(path, name, facts, 8 + length) for name, facts in header.items()}
    _check_places(path, arrays.values(), 8 + length, size)
    return arrays


def _stored(path: Path, name: str, facts: Any, start: int) -> Stored:
    """What the header says of one array, if it can be so."""
    where = f"{path}: {name[:80]}"
    try:
        kind, shape, (begin, end) = facts["dtype"], tuple(facts["shape"]), facts["data_offsets"]
        well_formed = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
        well_formed = well_formed and isinstance(kind, str) and len(shape) <= 8
    except (TypeError, KeyError, ValueError):
        well_formed = False
    if not well_formed:
        raise BadInput(f"{where}: is not described as safetensors describes an array")
    if kind not in TYPES:
        raise BadInput(f"{where}: is of type {kind[:20]}; {', '.join(TYPES)} would be right")
    needed = math.prod(shape) * np.dtype(TYPES[kind]).itemsize
    if end - begin != needed:
        raise BadInput(f"{where}: {kind} {list(shape)} takes {needed:,} bytes, but has {end - begin:,}")
    return Stored(path, kind, shape, start + begin, needed)


def _check_places(path: Path, arrays: Iterable[Stored], start: int, size: int) -> None:
    """The arrays fill the file, one behind the other: no two share a byte, and none lies beyond the end."""
    end = start
    for stored in sorted(arrays, key=lambda stored: (stored.begin, stored.bytes)):
        if stored.begin != end:
            raise BadInput(f"{path}: its arrays overlap or have gaps between them")
        end += stored.bytes
    if end != size:
        raise BadInput(f"{path}: has {size:,} bytes, but its arrays end at {end:,}: is it cut short?")
