"""Types of command-line values, and arguments that several commands have."""

import argparse
import os
from collections.abc import Callable

from transformer_jax.files import paths
from transformer_jax.shipped import PRESET

WEIGHTS = "latest (the default) or best checkpoint, averaged, or an exported folder"


def path(text: str) -> str:
    """A path; an empty one (an unset shell variable) would mean the current directory."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; it must be a path")
    if problem := paths.problem(text):
        raise argparse.ArgumentTypeError(f"{text}: {problem}")
    return paths.expanded(text)


def python_file(text: str) -> str:
    """The path of a config or experiment file, or the name of one that comes with the package."""
    return text if text.startswith(PRESET) else path(text)


def utf8(text: str) -> str:
    """Text, read as UTF-8 whatever the locale."""
    try:
        return os.fsencode(text).decode()
    except UnicodeDecodeError as error:
        byte = f"byte 0x{error.object[error.start]:02x} at {error.start + 1}"
        raise argparse.ArgumentTypeError(f"is not UTF-8: {byte}") from None
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("is not text: it has half of a surrogate pair") from None


def at_least(lowest: int) -> Callable[[str], int]:
    """A whole number with a lower bound."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < lowest:
            raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number of at least {lowest}")
        return int(text)

    return read


def add_run(parser: argparse.ArgumentParser, help: str = "the run's folder", required: bool = True) -> None:
    parser.add_argument("--workdir", type=path, required=required, metavar="RUN", help=help)


def add_weights(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--weights", type=path, default="latest", metavar="WHICH", help=WEIGHTS)


def add_accept_changed_code(parser: argparse._ActionsContainer, act: str) -> None:
    parser.add_argument(
        "--accept-changed-code",
        action="store_true",
        help=f"{act} although a file of custom code (docs/extending.md) was edited since; reports mention it",
    )
