"""Small JSON files, read with limits on their size and, for records, with a checksum.

A flipped bit in a number leaves valid JSON. So the last field of a record, which nobody edits by hand, is a checksum of
all others.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.errors import BadInput

# A larger file is neither written nor read into memory.
LARGEST_FILE = 128 * 2**20
SEAL = "crc32"


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


def parse_object(content: bytes, path: Path | str) -> dict[str, Any]:
    """The JSON object in this content."""
    try:
        found = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadInput(f"{path}: is a JSON {type(found).__name__}; must be an object")
    return found


def plain_name(name: Any, path: Path) -> str:
    """The name of a file beside a record. Raises BadInput for a path to elsewhere."""
    if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name:
        raise BadInput(f"{path}: {str(name)[:80]!r} is not the name of a file in this folder")
    return name


def _checksum(content: Mapping[str, Any]) -> int:
    """The checksum of content as read back, independent of the order of the fields."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
