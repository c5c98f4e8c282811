"""Records: whatever happens to the bytes of a sealed one, it is read as it was written or not at all."""

import json
import re
from typing import NotRequired, TypedDict

import pytest

from transformer_jax.errors import BadInput
from transformer_jax.files.atomic import write_record
from transformer_jax.files.record import LARGEST_FILE, read_record, read_typed

CONTENT = {
    "steps": [1, 20],
    "name": 'ä"b',
    "loss": 0.1 + 0.2,
    "none": None,
    "inner": {"b": True, "a": (1, 2)},
    "7": "x",
}


def test_what_was_written_comes_back(tmp_path):
    write_record(tmp_path / "record.json", {**CONTENT, 8: "a number as a name"})
    assert read_record(tmp_path / "record.json") == json.loads(json.dumps({**CONTENT, 8: "a number as a name"}))


def test_no_bit_can_flip_and_no_byte_can_be_lost_in_silence(tmp_path):
    path = tmp_path / "record.json"
    write_record(path, CONTENT)
    whole, wanted = path.read_bytes(), read_record(path)
    spoilt = [whole[:length] for length in range(len(whole) - 1)]
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        spoilt.append(bytes(flipped))
    refused = 0
    for content in spoilt:
        path.write_bytes(content)
        try:
            found = read_record(path)
        except BadInput:
            refused += 1
        else:  # white space, or the name of the seal
            assert {name: found[name] for name in wanted} == wanted
    assert refused > 0.9 * len(spoilt)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"[" * 100_000, "is not JSON"), (b"\xff{}", "is not JSON"), (b"7", "must be an object"), (b"", "is not JSON")],
    ids=["lists", "bytes", "number", "empty"],
)
def test_what_is_no_record_is_refused_in_a_line(tmp_path, content, message):
    (tmp_path / "record.json").write_bytes(content)
    with pytest.raises(BadInput) as caught:
        read_record(tmp_path / "record.json")
    told = str(caught.value)
    assert message in told and told.startswith(str(tmp_path)) and "\n" not in told


def test_a_file_too_large_is_not_read(tmp_path):
    with open(tmp_path / "record.json", "wb") as file:
        file.truncate(LARGEST_FILE + 1)  # of holes: it takes no room
    with pytest.raises(BadInput, match=f"has {LARGEST_FILE + 1:,} bytes"):
        read_record(tmp_path / "record.json")


def test_what_is_too_large_to_be_read_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("transformer_jax.files.atomic.LARGEST_FILE", 100)
    write_record(tmp_path / "small", {"numbers": [1]})
    with pytest.raises(BadInput, match=r"would have .* bytes; at most 100 can be read back"):
        write_record(tmp_path / "large", {"numbers": [1] * 50})
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


class Inner(TypedDict):
    steps: list[int]
    name: NotRequired[str | None]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"steps": [1, 2]}, None),
        ({"steps": [], "name": None, "other": [{}]}, None),
        ({"steps": [1, "2"]}, "steps.1 is '2'; must be of type int"),
        ({"steps": [True]}, "steps.0 is True; must be of type int"),
        ({"steps": [10**40]}, "steps.0 is 1000000"),
        ({"steps": [], "name": 3}, "name is 3; must be of type str"),
        ({}, "it has no steps"),
    ],
    ids=str,
)
def test_the_types_of_fields(tmp_path, content, problem):
    write_record(tmp_path / "record.json", content)
    if problem is None:
        assert read_typed(tmp_path / "record.json", Inner) == content
        return
    with pytest.raises(BadInput, match=re.escape(f"record.json: is damaged: {problem}")):
        read_typed(tmp_path / "record.json", Inner)
