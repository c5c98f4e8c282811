"""Lines of text: where a line ends, what is wrong with it, and no more memory than it takes."""

import gzip
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.errors import BadInput
from transformer_jax.files import lines
from transformer_jax.files.lines import read_aligned, read_blocks


def test_a_last_line_without_an_end_counts(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"one\n\nthree")
    assert [block.lines for block in read_blocks(str(path), 10)] == [["one", "", "three"]]


@settings(max_examples=50, deadline=None)
@given(
    text=st.lists(st.text(st.sampled_from("ab \r\t\u2028\x0b\x0c\x1c\x85é")), max_size=30),
    size=st.integers(1, 10),
)
def test_a_line_ends_at_a_line_feed_and_nowhere_else(text, size, tmp_path_factory):
    path = tmp_path_factory.mktemp("lines") / "text"
    path.write_bytes("".join(line + "\n" for line in text).encode())
    blocks = list(read_blocks(str(path), size))
    assert [line for block in blocks for line in block.lines] == [line.removesuffix("\r") for line in text]
    assert all(len(block.lines) == size for block in blocks[:-1])
    assert [block.first_line for block in blocks] == [1 + size * k for k in range(len(blocks))]


def test_an_unreadable_line_is_reported_with_its_number(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"one\n" * 100 + b"ba\xffd\n" + b"two\n" * 50 + b"nu\0l\n")
    faults = {b.place(i): fault for b in read_blocks(str(path), 30) for i, fault in b.faults.items()}
    assert faults == {
        f"{path}:101": "is not UTF-8: byte 0xff at 3 (if the file is Latin-1: iconv -f latin1 -t utf-8)",
        f"{path}:152": "has a NUL character at 3",
    }


def test_a_block_of_long_lines_has_fewer_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 100)
    long, short = tmp_path / "long.gz", tmp_path / "short"
    with gzip.open(long, "wb") as file:
        file.write(b"".join(b"x" * 40 + b"\n" for _ in range(7)))
    short.write_bytes(b"y\n" * 4)
    assert [len(block.lines) for block in read_blocks(str(long), 5)] == [3, 3, 1]
    blocks = list(read_aligned([str(long), str(short)], 5))
    assert [(len(left.lines), len(right.lines), left.first_line) for left, right in blocks] == [
        (3, 3, 1),
        (3, 1, 4),
        (1, 0, 7),
    ]


def test_a_very_long_line_is_one_line(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"short\n" + b"x" * 5_000_000 + b"\nshort\n")
    assert [len(line) for block in read_blocks(str(path), 2) for line in block.lines] == [5, 5_000_000, 5]


def test_a_small_file_that_unpacks_to_much_is_read_a_little_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST_LINE_BYTES", 8 << 20)
    zeros = bytes(1 << 20)
    with gzip.open(tmp_path / "a.gz", "wb", compresslevel=1) as file:
        for _ in range(64):
            file.write(zeros)
    tracemalloc.start()
    with pytest.raises(BadInput, match="has a line of more than 8 MiB; is it text"):
        list(read_blocks(str(tmp_path / "a.gz"), 1000))
    assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    tracemalloc.stop()
