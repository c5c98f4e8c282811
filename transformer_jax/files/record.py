"""Small JSON files that are read with doubt: within limits, whole, and, where they carry a seal, as they were written.

A disk that flips a bit in a number leaves JSON that is as good as before. So what nobody edits by hand is sealed: its
last field is a checksum of all the others.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.errors import BadInput

MEGABYTE = 2**20
# No record of a real model comes near; a larger file is not read into memory.
LARGEST_FILE = 64 * MEGABYTE
SEAL = "crc32"


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same content with its checksum behind it."""
    return {**content, SEAL: _checksum(json.loads(json.dumps(content)))}


def read_bytes(path: Path) -> bytes:
    """A small file, whole."""
    if not path.is_file():
        raise BadInput(f"{path}: there is no such file")
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise BadInput(f"{path}: has {size:,} bytes; at most {LARGEST_FILE:,} would be right")
    return path.read_bytes()


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a small file, which may be anybody's."""
    return parse_object(read_bytes(path), path)


def read_record(path: Path) -> dict[str, Any]:
    """One of ours; refused if it is not what was written. The seal is not part of it."""
    found = read_object(path)
    seal = found.pop(SEAL, None)
    if seal is not None and seal != _checksum(found):
        raise BadInput(f"{path}: is damaged: it is not what was written, by its own {SEAL}")
    return found


def parse_object(content: bytes, path: Path | str) -> dict[str, Any]:
    """One JSON object; a name that it has twice is refused, since readers differ in which of the two they take."""
    try:
        found = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: is no UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise BadInput(f"{path}:{error.lineno}: is no JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError, too
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise BadInput(f"{path}: is no JSON: {reason}") from None
    if not isinstance(found, dict):
        raise BadInput(f"{path}: is a JSON {type(found).__name__}; an object would be right")
    return found


def plain_name(name: Any, path: Path) -> str:
    """The name of a file that a record says lies beside it: no path that leads elsewhere."""
    if not isinstance(name, str) or not name or name in (".", "..") or Path(name).name != name:
        raise BadInput(f"{path}: {str(name)[:80]!r} is not the name of a file in this folder")
    return name


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice[:80]!r} stands there twice")
    return found


def _checksum(content: Mapping[str, Any]) -> int:
    """Of content as it is read back. The order of the fields does not matter."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
