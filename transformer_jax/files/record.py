"""Small JSON files, read with limits on their size and, for records, with a checksum and the types of their fields.

A flipped bit in a number leaves valid JSON. So the last field of a record, which nobody edits by hand, is a checksum of
all others. A record may be of another person: a `TypedDict` says what its readers rely on.
"""

import functools
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, NotRequired, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

from transformer_jax.errors import BadInput

T = TypeVar("T")

# A larger file is neither written nor read into memory.
LARGEST_FILE = 128 * 2**20
SEAL = "crc32"
# A number of more digits is not one of ours, and has no float.
LARGEST_INTEGER = 1 << 100


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with its checksum as the last field."""
    return {**content, SEAL: _checksum(json.loads(json.dumps(content)))}


def read_bytes(path: Path) -> bytes:
    """The content of a small file."""
    if not path.is_file():
        raise BadInput(f"{path}: there is no such file")
    if (size := path.stat().st_size) > LARGEST_FILE:
        raise BadInput(f"{path}: has {size:,} bytes; must be at most {LARGEST_FILE:,}")
    return path.read_bytes()


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a small file."""
    return parse_object(read_bytes(path), path)


def read_record(path: Path) -> dict[str, Any]:
    """The content of a record without its checksum, which is verified."""
    found = read_object(path)
    seal = found.pop(SEAL, None)
    if seal is not None and seal != _checksum(found):
        raise BadInput(f"{path}: is damaged: it does not match its {SEAL}")
    return found


def read_typed(path: Path, kind: type[T]) -> T:
    """The content of a record whose fields have the types of `kind`."""
    return typed(read_record(path), kind, path)


def read_if_sound(path: Path, kind: Any) -> dict[str, Any] | None:
    """The content of a record as above; None if it is missing or damaged."""
    try:
        return read_typed(path, kind)
    except (OSError, BadInput):
        return None


def typed(found: Any, kind: type[T], path: Path) -> T:
    """The content of a JSON file, if it has the types of `kind`."""
    for place, problem in misfits(found, kind):
        raise BadInput(f"{path}: is damaged: {place or 'it'} {problem}")
    return found


def misfits(value: Any, kind: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """The places in a value of a JSON file that have another type, with what is wrong there."""
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return
    if origin is NotRequired:
        yield from misfits(value, arguments[0], place)
    elif origin is UnionType:
        if not any(next(misfits(value, each), None) is None for each in arguments):
            yield from misfits(value, arguments[0], place)
    else:
        yield from _misfits_of_one(value, kind, place)


def _misfits_of_one(value: Any, kind: Any, place: str) -> Iterator[tuple[str, str]]:
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    expected: Any = dict if is_typeddict(kind) else (int, float) if kind is float else origin
    is_other_number = isinstance(value, bool) and kind is not bool
    if not isinstance(value, expected) or is_other_number or (isinstance(value, int) and abs(value) > LARGEST_INTEGER):
        kinds = " or ".join(each.__name__ for each in (expected if isinstance(expected, tuple) else (expected,)))
        yield place, f"is {repr(value)[:40]}; must be of type {kinds}"
    elif is_typeddict(kind):
        for name, inner in _fields(kind).items():
            if name in value:
                yield from misfits(value[name], inner, f"{place}.{name}".lstrip("."))
            elif kind.__total__ and get_origin(inner) is not NotRequired:
                yield place, f"has no {name}"
    elif origin in (dict, list) and arguments and arguments[-1] is not Any:  # a record may have millions
        for key in value if origin is dict else range(len(value)):
            yield from misfits(value[key], arguments[-1], f"{place}.{str(key)[:40]}".lstrip("."))


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)  # `__required_keys__` is wrong where annotations are strings


def parse_object(content: bytes, path: Path | str) -> dict[str, Any]:
    try:
        found = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadInput(f"{path}: is a JSON {type(found).__name__}; must be an object")
    return found


def _checksum(content: Mapping[str, Any]) -> int:
    """The checksum of content as read back, independent of the order of the fields."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
