"""Weights that are damaged or meant to harm are refused before any array is read."""

import json
import pickle
import struct

import numpy as np
import pytest

from tests.support.marian_folders import (
    ONE,
    WEIGHTS,
    Ran,
    arrays_with,
    bytes_with,
    give,
    header_of,
    refused,
    write_with_header,
)

HUGE = {"dtype": "F32", "shape": [2**40, 2**40]}
FULL = {"dtype": "F32", "shape": [24, 16], "data_offsets": [0, 1536]}


def header_with(**changes):
    """Changes what the header says of one array; None takes the array out of it."""

    def damage(folder):
        header, numbers = header_of(folder / WEIGHTS)
        if changes:
            header[ONE] |= changes
        else:
            del header[ONE]
        write_with_header(folder / WEIGHTS, header, numbers)

    return damage


def pickled(folder):
    (folder / WEIGHTS).write_bytes(pickle.dumps(Ran()))


def index_of(places):
    def damage(folder):
        (folder / WEIGHTS).rename(folder / "part.safetensors")
        (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": places}))

    return damage


DAMAGES = {
    "another type": (
        arrays_with(lambda a: give(a, ONE, a[ONE].astype(np.int8))),
        f"{ONE}: has the type I8; must be F32, F16, BF16",
    ),
    "a pickle under another name": (pickled, "model.safetensors: is a pickle under another name"),
    "a truncated file": (
        bytes_with(WEIGHTS, lambda b: b[:-100]),
        "model.safetensors: is not a valid safetensors file: Error while deserializing header: incomplete metadata",
    ),
    "a truncated header": (
        bytes_with(WEIGHTS, lambda b: b[:100]),
        "model.safetensors: is not a valid safetensors file: ",
    ),
    "an empty file": (bytes_with(WEIGHTS, lambda b: b""), "model.safetensors: is not a valid safetensors file: "),
    "a huge header": (
        bytes_with(WEIGHTS, lambda b: struct.pack("<Q", 2**62) + b[8:]),
        "is not a valid safetensors file: Error while deserializing header: header too large",
    ),
    "a huge shape": (header_with(**HUGE), "model.safetensors: is not a valid safetensors file: "),
    "an array beyond the end": (
        header_with(shape=[2**20, 2**20], data_offsets=[0, 2**42]),
        "is not a valid safetensors file: Error while deserializing header: invalid",
    ),
    "a negative shape": (header_with(shape=[-24, -16]), "invalid value: integer `-24`, expected usize"),
    "arrays in one place": (
        header_with(**FULL),
        "is not a valid safetensors file: Error while deserializing header: invalid",
    ),
    "an array left out": (header_with(), "is not a valid safetensors file: Error while deserializing header: invalid"),
    "a path in the index": (
        index_of({ONE: "../../../etc/passwd"}),
        "'../../../etc/passwd' is not the name of a file in this",
    ),
    "an absolute path in the index": (index_of({ONE: "/tmp/x.safetensors"}), "is not the name of a file"),
    "an index of nothing": (index_of({"x": "part.safetensors"}), "which is not so"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_weights_that_cannot_be_right_are_refused(damage, tmp_path):
    spoil, message = DAMAGES[damage]
    refused(spoil, message, tmp_path)
