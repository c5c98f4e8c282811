"""Lines from stdin are read as those of a file."""

import io
import os
import sys
import threading

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transformer_jax.commands import text_input
from transformer_jax.errors import BadInput


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("bytes") / "text"


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
@example(b"\xef\xbb\xbf")
@example(b"\xef\xbb\xbfa\r\n\0\n\xff\n\r")
def test_stdin_is_read_as_a_file_is(file, content):
    """The same lines, the same faults."""
    file.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        found = []
        for files in ([], [str(file)]):
            lines, fault = [], ""
            try:
                for block in text_input.blocks(files):
                    lines += block.lines
            except BadInput as problem:
                # An unfinished last line arrives later, and may not be listed.
                first, *several = str(problem).replace(str(file), "stdin").split("\n  ")
                fault = several[0] if several else first
            found.append((lines, fault))
    assert found[0] == found[1]


def test_stdin_that_another_program_has_made_non_blocking_is_read_to_its_end(monkeypatch):
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    monkeypatch.setattr("sys.stdin", os.fdopen(reading))
    blocks = text_input.blocks([])
    for line in ("first", "second"):
        threading.Timer(0.2, os.write, (writing, f"{line}\n".encode())).start()
        assert next(blocks).lines == [line]
    threading.Timer(0.2, os.close, (writing,)).start()
    assert list(blocks) == []
    sys.stdin.close()


def test_a_line_of_stdin_has_a_limit(monkeypatch):
    monkeypatch.setattr("transformer_jax.files.lines.LONGEST_LINE_BYTES", 1 << 20)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\n" + b"x" * (1 << 21))))
    blocks = text_input.blocks([])
    assert next(blocks).lines == ["a"]
    with pytest.raises(BadInput, match="stdin: has a line of more than 1 MiB"):
        next(blocks)


def test_parallel_texts_have_as_many_lines(tmp_path):
    one, other = str(tmp_path / "a"), str(tmp_path / "b")
    (tmp_path / "a").write_text("1\n2\n")
    (tmp_path / "b").write_text("3\n4\n")
    assert text_input.parallel(one, other) == (["1", "2"], ["3", "4"])
    (tmp_path / "b").write_text("3\n")
    with pytest.raises(BadInput, match="2 lines"):
        text_input.parallel(one, other)
