"""transformer-jax: runs a command and reports its errors.

Exit status 0: done. 2: bad input, a line on stderr for each problem. 75: stopped, saved and unfinished. 1: any other
failure.
"""

import argparse
import importlib
import keyword
import os
import re
import signal
import sys
import threading
import traceback
from types import FrameType
from typing import NoReturn

from transformer_jax.commands.arguments import Parser
from transformer_jax.commands.configuration import split_overrides
from transformer_jax.errors import BadInput, ConfigError, Failed, did_you_mean, is_of_memory, visible
from transformer_jax.extension import UserCodeError, custom_files
from transformer_jax.extras import require
from transformer_jax.files import output, paths, remote
from transformer_jax.version import __version__

# Each is a module of `commands/`: its docstring is the help, and it has add_arguments(parser) and run(arguments).
# Beside it, the extras of the package that it needs.
COMMANDS = {
    **dict.fromkeys(("train", "translate", "evaluate", "score", "average", "export", "import", "sweep"), ("train",)),
    "report": ("report",),
    "diff": ("data",),
    "status": (),
    "prepare": ("data",),
    "inspect": ("train",),
    "plot": ("train", "report"),
}
# A message may end with a list, an indented line for each item. Any other line end in it comes from the input, such as
# the name of a file, and is escaped.
LIST_ITEM = re.compile(r"\n(?=  )")
LESS_MEMORY = "increase train.accumulate (when decoding, reduce decode.tokens_per_batch), or use a smaller model"


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns its exit status; reports errors on stderr."""
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except BadInput as problem:
        if isinstance(problem, UserCodeError):
            _report(problem.traceback.rstrip("\n"))
        problems = problem.problems if isinstance(problem, ConfigError) else [str(problem)]
        _report(*(f"error: {visible(line)}" for text in problems for line in LIST_ITEM.split(text)))
        return 2
    except Failed as failure:
        _report("failed: " + "\n".join(map(visible, LIST_ITEM.split(str(failure)))))
    except KeyboardInterrupt:
        _report("interrupted")
    except OSError as error:
        _report(f"failed: {visible(str(error))}")
    except Exception as error:
        if is_of_memory(error):
            _report(f"failed: not enough memory ({visible(str(error)[:200])}); {LESS_MEMORY}")
        elif "JAX_PLATFORMS" in os.environ and _is_of_backends(error):
            platforms = os.environ["JAX_PLATFORMS"]
            _report(f"error: JAX_PLATFORMS={platforms}: JAX finds no such devices; is the plugin of JAX installed?")
            return 2
        elif files := custom_files(error):
            custom = UserCodeError(files, error)
            _report(custom.traceback.rstrip("\n"), f"error: {visible(str(custom))}")
            return 2
        else:
            _report(*map(visible, traceback.format_exc().splitlines()))
            _report(f"error: {type(error).__name__}: {visible(str(error))}. This is a bug")
    return 1


def _is_of_backends(error: Exception) -> bool:
    """Whether JAX raised this error because a backend could not be initialized."""
    return traceback.extract_tb(error.__traceback__)[-1].filename.endswith("xla_bridge.py")


def _report(*lines: str) -> None:
    print(*map(paths.as_typed, lines), sep="\n", file=sys.stderr)


def _run(arguments: list[str]) -> int:
    overrides, rest = split_overrides(arguments)
    try:
        parsed, unknown = _parser(rest[0] if rest else "").parse_known_args(rest)
        if unknown:
            raise parsed.parser.unknown(unknown[0])
        if overrides and not hasattr(parsed, "overrides"):
            raise BadInput(f"--config.{overrides[0][0]}: {parsed.command} takes no --config")
        parsed.overrides = [*getattr(parsed, "overrides", ()), *overrides]
        require(f"transformer-jax {rest[0]}", *COMMANDS[rest[0]])
        status = parsed.run(parsed) or 0
    finally:
        remote.close()
    if getattr(parsed, "prints_results", True):
        output.check_results()
    return status


def _parser(asked_for: str) -> Parser:
    """The parser of one command, or of all for the general help, which is slow to import."""
    parser = Parser(
        prog="transformer-jax",
        description='The Transformer of "Attention Is All You Need": train it, take it apart, use its parts.',
        epilog="Start with `make demo`, or: transformer-jax inspect --config=configs/base.py",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    if asked_for and not asked_for.startswith("-") and asked_for not in COMMANDS:
        raise BadInput(f"{asked_for}: no such command; {did_you_mean(asked_for, list(COMMANDS))}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name in [asked_for] if asked_for in COMMANDS else COMMANDS:
        # A keyword of Python cannot be the name of a module.
        module = importlib.import_module(f"transformer_jax.commands.{name}{'_' * keyword.iskeyword(name)}")
        command = subparsers.add_parser(
            name,
            help=str(module.__doc__).partition("\n")[0],
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run, parser=command)
    return parser


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handles Ctrl-C. Exceptions in JAX's callback of the garbage collector are lost: there it is sent again later."""
    if frame is not None and frame.f_code.co_name == "_xla_gc_callback":
        threading.Timer(0.05, os.kill, [os.getpid(), number]).start()
        return
    raise KeyboardInterrupt


def entry() -> NoReturn:
    """The console script."""
    output.use_in_this_command()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore it
        signal.signal(signal.SIGINT, interrupt)
    if os.getpid() == 1:  # in a container, where the kernel ignores a signal without a handler
        signal.signal(signal.SIGTERM, interrupt)
    sys.exit(main())


if __name__ == "__main__":
    entry()
