"""transformer-jax: the commands, and how they fail.

Exit status 0: done. 2: bad input, told in a line on stderr for each thing that is wrong. 1: everything else, for
one output that could not be written.
"""

import argparse
import importlib
import keyword
import os
import re
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

from transformer_jax.commands import configuration, streams
from transformer_jax.commands.parser import Parser
from transformer_jax.errors import BadInput, ConfigError, Failed, visible
from transformer_jax.extension import UserCodeError
from transformer_jax.schema import nearest
from transformer_jax.version import __version__

# One module of `commands/` each. Its docstring is its help; add_arguments(parser) and run(arguments) are the command.
COMMANDS = (
    "train",
    "translate",
    "evaluate",
    "score",
    "average",
    "export",
    "import",
    "sweep",
    "report",
    "prepare",
    "inspect",
    "plot",
)
# A message may end with a list, an indented line for each entry. Any other line end in it comes from what was given,
# such as the name of a file, and is shown as an escape.
LISTED = re.compile(r"\n(?=  )")
# Seconds; a callback takes far less.
SOON = 0.05
# What takes less memory.
SMALLER = "less data.tokens_per_batch, or more train.accumulate, or a smaller model takes less"


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    with streams.ready():
        status = _status(lambda: _run(sys.argv[1:] if arguments is None else arguments))
        unwritten = _status(streams.finish)
        return status or unwritten


def _status(work: Callable[[], int | None]) -> int:
    """Does the work and returns the exit status; what went wrong is reported on stderr."""
    try:
        return work() or 0
    except BadInput as problem:
        if isinstance(problem, UserCodeError):
            print(problem.traceback, end="", file=sys.stderr)
        print(*(f"error: {visible(line)}" for line in _problems(problem)), sep="\n", file=sys.stderr)
        return 2
    except Failed as failure:
        print(f"failed: {_listed(str(failure))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 1
    except streams.NobodyReads:
        return 1
    except Exception as error:
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
            told = visible(_first_line(error))
            print(f"failed: there is not enough memory for this ({told}); {SMALLER}", file=sys.stderr)
            return 1
        print(f"error: {type(error).__name__}: {visible(str(error))}", file=sys.stderr)
        print(f"This should not happen. The whole story is in {_report()}", file=sys.stderr)
        return 1


def _problems(problem: BadInput) -> Sequence[str]:
    """One line each."""
    if isinstance(problem, ConfigError):
        return problem.problems
    return str(problem).splitlines() if isinstance(problem, UserCodeError) else LISTED.split(str(problem))


def _listed(message: str) -> str:
    return "\n".join(map(visible, LISTED.split(message)))


def _run(arguments: list[str]) -> int:
    streams.require_stdout()
    overrides, rest = configuration.split_overrides(arguments)
    for argument in rest:
        if argument.startswith("--") and argument.endswith("=--"):  # some Pythons make an empty list of it
            raise BadInput(f"{argument}: -- is no value")
    parser = _parser(rest[0] if rest else None)
    parsed, unknown = parser.parse_known_args(rest)
    if unknown:
        raise parsed.parser.unknown(unknown[0])
    if overrides and not hasattr(parsed, "overrides"):
        raise BadInput(f"--config.{overrides[0][0]}: {parsed.command} takes no --config")
    parsed.overrides = overrides
    return parsed.run(parsed) or 0


def _parser(asked_for: str | None) -> Parser:
    parser = Parser(
        prog="transformer-jax",
        description='The Transformer of "Attention Is All You Need": train it, take it apart, use its parts.',
        epilog="Start with `make demo`, or: transformer-jax inspect --config=configs/base.py",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    if asked_for is not None and not asked_for.startswith("-") and asked_for not in COMMANDS:
        raise BadInput(f"{asked_for}: no such command; {nearest(asked_for, list(COMMANDS))}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name in COMMANDS:
        # A word of Python's cannot be the name of a module.
        file = f"{name}_" if keyword.iskeyword(name) else name
        module = importlib.import_module(f"transformer_jax.commands.{file}")
        summary, _, description = (module.__doc__ or "").partition("\n")
        command = subparsers.add_parser(
            name,
            help=summary,
            description=summary + "\n" + description.rstrip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run, parser=command)
    return parser


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


def _report() -> str:
    """Where the traceback of an error of our own was written: out of the way of the line that tells of it."""
    content = traceback.format_exc().encode(errors="backslashreplace")
    with tempfile.NamedTemporaryFile(prefix="transformer-jax-", suffix=".txt", delete=False) as file:
        file.write(content)
    return file.name


def interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C. What is raised in jax's callback of the garbage collector is swallowed: so it is sent again, after it."""
    if frame is not None and frame.f_code.co_name == "_xla_gc_callback":
        threading.Timer(SOON, os.kill, [os.getpid(), number]).start()
        return
    raise KeyboardInterrupt


def entry() -> NoReturn:
    """The console script."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # in a shell's background it is not heard at all
        signal.signal(signal.SIGINT, interrupt)
    sys.exit(main())


if __name__ == "__main__":
    entry()
