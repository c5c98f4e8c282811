"""The errors that a user can cause or meet, hints for their messages, and text made safe to print."""

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence

# The exit status of a command that was stopped and has saved its work (EX_TEMPFAIL of sysexits.h).
EXIT_UNFINISHED = 75
# How Python represents a byte of an argument or file name that is not UTF-8.
STRAY_BYTE = re.compile("[\udc80-\udcff]")

# The longest choice of names that is shown in full.
SHOWN_NAMES = 50


class BadInput(ValueError):
    """A file, key, flag or value that cannot be used.

    The message names the place, what was found and what is expected. Commands print it without a traceback and exit
    with status 2.
    """


class ConfigError(BadInput):
    """All problems of a configuration at once."""

    def __init__(self, problems: Sequence[str]):
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def visible(text: str) -> str:
    """The text as one printable line: line ends, terminal escapes and stray bytes of a file name appear as escapes."""
    text = STRAY_BYTE.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", text)
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def terminal_width(text: str) -> int:
    """How many columns of a terminal a text takes: letters of Chinese, Japanese and Korean take two."""
    letters = (letter for letter in text if unicodedata.category(letter) not in ("Mn", "Me"))
    return sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in letters)


def padded(text: str, width: int, right: bool = False) -> str:
    """The text with spaces up to a width in a terminal, before it if it is aligned right."""
    spaces = " " * (width - terminal_width(text))
    return spaces + text if right else text + spaces


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that an unknown one was probably meant to be, if any is close.

    Of paths the last names are compared; where several are equal, the same group counts, then the first.
    """
    by_end: dict[str, str] = {}
    for other in sorted(known, key=lambda other: _group(other) != _group(name)):
        by_end.setdefault(other.rpartition(".")[2], other)
    return next((by_end[end] for end in difflib.get_close_matches(name.rpartition(".")[2], by_end, n=1)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The hint for an unknown name: the closest known one (`num_heads`: model.num_heads), or which there are."""
    known = list(known)
    inside = [other for other in known if _group(other) == name]  # of a group, whose options were perhaps meant
    if not inside and (close := closest(name, known)):
        return f"did you mean {close}?"
    known = inside or [other for other in known if _group(other) == _group(name) != ""] or known
    more = f" ... ({len(known):,} in all)" if len(known) > SHOWN_NAMES else ""
    return f"there are: {', '.join(known[:SHOWN_NAMES])}{more}"


def _group(path: str) -> str:
    return path.rpartition(".")[0]


class Failed(Exception):
    """Work that could not be finished although the input is valid, such as on a full disk.

    The message says what happened, what is safe, and what to do. Commands print it and exit with status 1.
    """


def is_of_memory(error: BaseException) -> bool:
    """Whether memory, of this machine or of a device, was too small."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in ("RESOURCE_EXHAUSTED", "Out of memory"))


class Diverged(Failed):
    """Training diverged. The same run would diverge again, whereas other failures may not repeat."""
