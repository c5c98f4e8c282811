"""Arrays in safetensors files, which contain no code: the library checks the header against the size of the file."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer_jax.errors import BadInput
from transformer_jax.files.record import plain_name, read_object

WEIGHTS = "model.safetensors"
INDEX = WEIGHTS + ".index.json"  # says which of several files holds which array
TYPES = ("F32", "F16", "BF16")
PICKLES = (b"\x80", b"PK\x03\x04")  # a bare pickle, and one zipped by torch


class Stored(NamedTuple):
    """An array in a file, not yet read."""

    file: Path
    shape: tuple[int, ...]


def stored_arrays(directory: Path) -> dict[str, Stored]:
    """Every array in a folder's weights, by its name."""
    if (directory / WEIGHTS).is_file():
        return _header(directory / WEIGHTS)
    index = directory / INDEX
    files = read_object(index).get("weight_map")
    if not isinstance(files, dict):
        raise BadInput(f"{index}: has no weight_map")
    headers = {name: _header(directory / plain_name(name, index)) for name in files.values()}
    found = {name: (file, stored) for file, header in headers.items() for name, stored in header.items()}
    for name in {**found, **files}:
        if name not in found or files.get(name) != found[name][0]:
            raise BadInput(f"{index}: says that {name[:80]} is in {files.get(name, 'no file')}, which is not so")
    return {name: stored for name, (_, stored) in found.items()}


def read_array(name: str, stored: Stored) -> np.ndarray:
    """One array, as float32."""
    from safetensors import safe_open

    with safe_open(stored.file, "np") as file:
        array = file.get_tensor(name).astype(np.float32)
    if not np.isfinite(array).all():
        raise BadInput(f"{stored.file}: {name} has non-finite numbers")
    return array


def _header(path: Path) -> dict[str, Stored]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise BadInput(f"{path}: there is no such file")
    with open(path, "rb") as opened:
        if opened.read(8).startswith(PICKLES):
            raise BadInput(f"{path}: is a pickle under another name, which could run code: it is not opened")
    try:
        with safe_open(path, "np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            kinds = {name: (array.get_dtype(), tuple(array.get_shape())) for name, array in slices.items()}
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{path}: is not a valid safetensors file: {error}") from None
    for name, (kind, _) in kinds.items():
        if kind not in TYPES:
            raise BadInput(f"{path}: {name[:80]}: has the type {kind}; must be {', '.join(TYPES)}")
    return {name: Stored(path, shape) for name, (_, shape) in kinds.items()}
