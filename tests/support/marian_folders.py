"""What the tests of Marian folders share: the folders that Hugging Face wrote, and what it computed with them."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.places import GOLDEN
from transformer_jax.errors import BadInput
from transformer_jax.interop.marian import import_marian

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


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


ONE = "model.encoder.layers.0.fc1.weight"
WEIGHTS, CONFIG, SEARCH = "model.safetensors", "config.json", "generation_config.json"


class Ran:
    """A pickle that would tell if it were opened."""

    ever = False

    def __reduce__(self):
        return (setattr, (Ran, "ever", True))


def arrays_with(change):
    """Rewrites the file, well-formed, with other arrays."""

    def damage(folder):
        from safetensors.numpy import load_file, save_file

        arrays = load_file(folder / WEIGHTS)
        change(arrays)
        save_file(arrays, folder / WEIGHTS)

    return damage


def bytes_with(name, change):
    def damage(folder):
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return damage


def json_with(name, **changes):
    return lambda folder: change_json(folder / name, **changes)


def without(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def give(arrays, name, array):
    arrays[name] = array


def refused(spoil, message, tmp_path):
    """A damaged folder is refused in one line that names the place; nothing is written, and no pickle is opened."""
    folder = unpacked("shared", tmp_path / "folder")
    spoil(folder)
    with pytest.raises(BadInput) as error:
        import_marian(folder, tmp_path / "run")
    line = str(error.value)
    assert line.startswith(str(folder)) and message in line and "\n" not in line
    assert not list(tmp_path.glob("run*"))
    assert not Ran.ever
