"""Lines of text from plain or gzip files, in blocks, with the faults of each line."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence

from transformer_jax.errors import BadInput, visible
from transformer_jax.files.remote import name_of

READ_BYTES = 1 << 18
LONGEST_LINE_BYTES = 1 << 26
# A block ends after this many bytes, however few lines it has.
BLOCK_BYTES = 1 << 23
MOST_LISTED = 5
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# After the first byte that is not UTF-8.
CONVERT = "if the file is Latin-1: iconv -f latin1 -t utf-8"


@dataclasses.dataclass
class Block:
    """Consecutive lines of a file. An unreadable line is empty, and `faults` says why, by its index."""

    path: str
    first_line: int
    lines: list[str]
    faults: dict[int, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def decoded(cls, path: str, first_line: int, raw: Sequence[bytearray]) -> Block:
        if not raw:
            return cls(path, first_line, [])
        text, faults = b"\n".join(raw), {}
        if first_line == 1 and text.startswith(UTF_16_MARKS):
            raise BadInput(f"{visible(path)}: is UTF-16; it must be UTF-8: iconv -f utf-16 -t utf-8 converts it")
        if first_line == 1:
            text = text.removeprefix(BYTE_ORDER_MARK)
        try:
            lines = text.decode().split("\n")  # all at once; line by line only if that fails
        except UnicodeDecodeError:
            lines = []
            for index, raw_line in enumerate(text.split(b"\n")):
                try:
                    lines.append(raw_line.decode())
                except UnicodeDecodeError as error:
                    lines.append("")
                    byte = f"byte 0x{raw_line[error.start]:02x} at {error.start + 1}"
                    faults[index] = f"is not UTF-8: {byte} ({CONVERT})"
        if b"\0" in text:
            for index, line in enumerate(lines):
                if "\0" in line:
                    lines[index] = ""
                    faults[index] = f"has a NUL character at {line.index(chr(0)) + 1}"
        if b"\r" in text:
            lines = [line.removesuffix("\r") for line in lines]
        return cls(path, first_line, lines, faults)

    def place(self, index: int) -> str:
        return f"{visible(self.path)}:{self.first_line + index}"


def listed(faults: Sequence[str], advice: str = "") -> str:
    """The faults of lines, each with its place, as a message: the first few, and how many there are."""
    advice = f"; {advice}" if advice else ""
    if len(faults) == 1:
        return faults[0] + advice
    count = f"{len(faults):,} lines cannot be used{advice}. The first of them:"
    return "\n  ".join([count, *faults[:MOST_LISTED]])


def require_file(path: str) -> None:
    if os.path.isdir(path):
        raise BadInput(f"{path}: is a directory; must be a text file")
    if not os.access(path, os.R_OK):
        reason = "no permission to read it" if os.path.exists(path) else "there is no such file"
        raise BadInput(f"{name_of(path)}: {reason}")


def read_blocks(path: str, size: int) -> Iterator[Block]:
    """The lines of a file in blocks of `size`, fewer where lines are long or the file ends.

    A line ends only at a line feed: other Unicode separators belong to the sentence. A carriage return before the line
    feed is stripped, as part of a Windows line end.
    """
    return (block for (block,) in read_aligned([path], size))


def read_aligned(paths: Sequence[str], size: int) -> Iterator[tuple[Block, ...]]:
    """The lines of several files in blocks as above. The blocks have the same lines of each file, until it ends."""
    rows = itertools.zip_longest(*(itertools.chain.from_iterable(split(_content(path), path)) for path in paths))
    first_line = 1
    while some := _first_rows(rows, size):
        columns = ([line for line in column if line is not None] for column in zip(*some, strict=True))
        yield tuple(Block.decoded(path, first_line, raw) for path, raw in zip(paths, columns, strict=True))
        first_line += len(some)


def _first_rows(rows: Iterator[tuple[bytearray | None, ...]], size: int) -> list[tuple[bytearray | None, ...]]:
    some, room = [], BLOCK_BYTES
    for row in itertools.islice(rows, size):
        some.append(row)
        room -= sum(len(line) for line in row if line)
        if room <= 0:
            break
    return some


def split(pieces: Iterable[bytes], path: str) -> Iterator[list[bytearray]]:
    """The lines that each piece of a file completes, without line feeds, and an unfinished last line."""
    rest = bytearray()
    for piece in pieces:
        rest += piece
        if b"\n" in piece:
            *lines, rest = rest.split(b"\n")
            yield lines
        if len(rest) > LONGEST_LINE_BYTES:
            raise BadInput(f"{path}: has a line of more than {LONGEST_LINE_BYTES >> 20} MiB; is it text?")
    if rest:
        yield [rest]


def _content(path: str) -> Iterator[bytes]:
    require_file(path)
    try:
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
            while piece := file.read(READ_BYTES):
                yield piece
    except (OSError, EOFError, zlib.error) as error:  # OSError is also what gzip raises for a file that is not one
        raise BadInput(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
