"""The version of the package: its number, the commit of its checkout, and a digest of its source."""

import functools
import hashlib
import subprocess
from pathlib import Path

__version__ = "1.0.0"


@functools.cache
def source_digest() -> str:
    """The beginning of a SHA-256 of the package's Python files, which distinguishes builds of the same version."""
    folder, digest = Path(__file__).parent, hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        if "presets" not in file.relative_to(folder).parts:  # copies of configs/ and experiments/, in a wheel
            digest.update(f"{file.relative_to(folder).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@functools.cache
def commit() -> str | None:
    """The commit of the checkout that this package is in, with "-dirty" if files differ from it; None elsewhere."""
    checkout = Path(__file__).parents[1]
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        described = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None
