"""transformer-jax: runs a command and reports its errors.

Exit status 0: done. 2: bad input, a line on stderr for each problem. 1: any other failure.
"""

import argparse
import contextlib
import importlib
import keyword
import os
import re
import signal
import sys
import tempfile
import threading
import traceback
from types import FrameType
from typing import NoReturn

from transformer_jax.commands import configuration, streams
from transformer_jax.commands.parser import Parser
from transformer_jax.errors import BadInput, ConfigError, Failed, visible
from transformer_jax.extension import UserCodeError
from transformer_jax.extras import require
from transformer_jax.schema import nearest
from transformer_jax.version import __version__

# Each is a module of `commands/`: its docstring is the help, and it has add_arguments(parser) and run(arguments).
# Beside it, the extras of the package that it needs.
COMMANDS = {
    "train": ("train",),
    "translate": ("train",),
    "evaluate": ("train",),
    "score": ("train",),
    "average": ("train",),
    "export": ("train",),
    "import": ("train",),
    "sweep": ("train",),
    "report": ("report",),
    "diff": ("data",),
    "prepare": ("data",),
    "inspect": ("train",),
    "plot": ("train", "report"),
}
# A message may end with a list, an indented line for each item. Any other line end in it comes from the input, such as
# the name of a file, and is escaped.
LIST_ITEM = re.compile(r"\n(?=  )")
# Seconds; a callback takes far less.
SOON = 0.05
LESS_MEMORY = "reduce data.tokens_per_batch, increase train.accumulate, or use a smaller model"


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns its exit status; reports errors on stderr."""
    try:
        streams.prepare()
        status = _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
        return status
    except BadInput as problem:
        if isinstance(problem, UserCodeError):
            _report(problem.traceback, end="")
        _report(*(f"error: {line}" for line in _lines(problem)))
        return 2
    except Failed as failure:
        _report("failed: " + "\n".join(_lines(failure)))
    except KeyboardInterrupt:
        _report("interrupted")
    except BrokenPipeError:  # the reader of the output is gone (`| head`)
        streams.discard_output()
    except OSError as error:
        streams.discard_output()
        _report(f"failed: {visible(str(error))}")
    except Exception as error:
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
            reason = visible(str(error).strip().partition("\n")[0][:200] or type(error).__name__)
            _report(f"failed: not enough memory ({reason}); {LESS_MEMORY}")
        else:
            _report(f"error: {type(error).__name__}: {visible(str(error))}")
            _report(f"This is a bug. The traceback is in {_write_traceback()}")
    return 1


def _report(*lines: str, end: str = "\n") -> None:
    with contextlib.suppress(OSError):  # stderr cannot be written; the exit status remains
        print(*lines, sep="\n", end=end, file=sys.stderr)


def _lines(problem: Exception) -> list[str]:
    """The lines of a message, each printable."""
    if isinstance(problem, ConfigError):
        lines = list(problem.problems)
    else:
        message = str(problem)
        lines = message.splitlines() if isinstance(problem, UserCodeError) else LIST_ITEM.split(message)
    return list(map(visible, lines))


def _run(arguments: list[str]) -> int:
    overrides, rest = configuration.split_overrides(arguments)
    for argument in rest:
        if argument.startswith("--") and argument.endswith("=--"):  # some versions of Python make an empty list of it
            raise BadInput(f"{argument}: -- is not a value")
    parser = _parser(rest[0] if rest else None)
    parsed, unknown = parser.parse_known_args(rest)
    if unknown:
        raise parsed.parser.unknown(unknown[0])
    if overrides and not hasattr(parsed, "overrides"):
        raise BadInput(f"--config.{overrides[0][0]}: {parsed.command} takes no --config")
    parsed.overrides = overrides
    require(f"transformer-jax {rest[0]}", *COMMANDS[rest[0]])
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
    for name in [asked_for] if asked_for in COMMANDS else COMMANDS:  # the help of all commands is slow to import
        # A keyword of Python cannot be the name of a module.
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


def _write_traceback() -> str:
    """Writes the traceback of an internal error to a file, away from the line that reports it; returns its path."""
    content = traceback.format_exc().encode(errors="backslashreplace")
    with tempfile.NamedTemporaryFile(prefix="transformer-jax-", suffix=".txt", delete=False) as file:
        file.write(content)
    return file.name


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handles Ctrl-C. Exceptions in JAX's callback of the garbage collector are lost: there it is sent again later."""
    if frame is not None and frame.f_code.co_name == "_xla_gc_callback":
        threading.Timer(SOON, os.kill, [os.getpid(), number]).start()
        return
    raise KeyboardInterrupt


def entry() -> NoReturn:
    """The console script."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore it
        signal.signal(signal.SIGINT, interrupt)
    sys.exit(main())


if __name__ == "__main__":
    entry()
