"""What the tests of Marian folders share: the folders that Hugging Face wrote, and what it computed with them."""

import json
import struct
from pathlib import Path

import numpy as np

from tests.support.places import GOLDEN

RECORDED = np.load(GOLDEN / "marian.npz")
CASES = ("shared", "separate", "untied")


def unpacked(name: str, folder: Path) -> Path:
    """One of the folders, as it was written."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in RECORDED:
        if path.startswith(f"{name}/files/"):
            (folder / path.rpartition("/")[2]).write_bytes(RECORDED[path].tobytes())
    return folder


def golden(name: str, what: str) -> np.ndarray:
    return RECORDED[f"{name}/{what}"]


def texts_of(name: str, what: str) -> list[str]:
    return json.loads(str(RECORDED[f"{name}/{what}"]))


def change_json(path: Path, **changes) -> None:
    """Sets fields; a value of ... takes one away."""
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not ...}))


def header_of(path: Path) -> tuple[dict, bytes]:
    """A safetensors file's header and the numbers behind it."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write_with_header(path: Path, header: dict, numbers: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + numbers)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
