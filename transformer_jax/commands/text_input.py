"""Lines of text from files, or from stdin as soon as they arrive."""

import contextlib
import io
import select
import sys
from collections.abc import Iterator, Sequence
from typing import cast

from transformer_jax.errors import BadInput
from transformer_jax.files.lines import Block, listed, read_blocks, split

LINES_AT_ONCE = 2048
READ_BYTES = 1 << 16


def parallel(source: str, target: str) -> tuple[list[str], list[str]]:
    """The lines of two files, which must have the same number."""
    sources, targets = ([line for block in blocks([path]) for line in block.lines] for path in (source, target))
    if len(sources) != len(targets):
        raise BadInput(f"{source} has {len(sources):,} lines and {target} {len(targets):,}: must have the same number")
    return sources, targets


def blocks(files: Sequence[str]) -> Iterator[Block]:
    """The lines of the files in turn, or of stdin without files. After the lines before an invalid one, raises."""
    for block in (block for path in files for block in read_blocks(path, LINES_AT_ONCE)) if files else _arriving():
        if not block.faults:
            yield block
            continue
        numbers = sorted(block.faults)
        yield Block(block.path, block.first_line, block.lines[: numbers[0]])
        raise BadInput(listed([f"{block.place(n)}: {block.faults[n]}" for n in numbers]))


def _arriving() -> Iterator[Block]:
    """The complete lines of stdin, as soon as there are any."""
    first_line = 1
    for lines in split(iter(_arrived, b""), "stdin"):
        yield Block.decoded("stdin", first_line, lines)
        first_line += len(lines)


def _arrived() -> bytes:
    """What has arrived on stdin, without waiting for more; nothing at its end."""
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    stdin = cast(io.BufferedReader, sys.stdin.buffer)  # typeshed does not know its type
    with contextlib.suppress(OSError, ValueError):  # it has no descriptor
        select.select([stdin], [], [])  # another program may have made it non-blocking
    return stdin.read1(READ_BYTES)
