"""SHA-256 digests, in hexadecimal."""

import hashlib
import json
from pathlib import Path
from typing import Any


def sha256(content: bytes | str) -> str:
    """The digest of bytes, or of a text in UTF-8."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def file_sha256(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_sha256(value: Any) -> str:
    """The digest of a value as JSON, whatever the order of its keys."""
    return sha256(json.dumps(value, sort_keys=True))
