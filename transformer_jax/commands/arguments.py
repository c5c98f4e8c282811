"""The command line: its parser, types of values, and arguments that several commands have."""

import argparse
import os
from collections.abc import Callable
from typing import NoReturn

from transformer_jax import schema
from transformer_jax.config import DecodeConfig, ExperimentConfig
from transformer_jax.errors import BadInput, closest
from transformer_jax.files import output, paths, remote
from transformer_jax.files.paths import BUCKETS
from transformer_jax.shipped import PRESET

WEIGHTS = "latest (the default) or best checkpoint, averaged, ema (optimizer.ema), or an exported folder"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are `BadInput`, and suggest what a mistyped argument was meant to be."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message} (see {self.prog} --help)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Ends after --help or --version."""
        output.check_results()
        super().exit(status, message)

    def unknown(self, word: str) -> BadInput:
        """The error about an argument that this command does not have, with the nearest flag or option."""
        flag, separator, value = word.partition("=")
        meanings: dict[str, str] = {}
        for path in self._options():  # --num_heads=8 must mean --config.model.num_heads=8
            for name in (path, path.rpartition(".")[2]):
                meanings.setdefault(_plain(name), f"--config.{path}{separator}{value}")
        flags = {_plain(name): name for name in self._option_string_actions}
        meanings |= flags
        close = closest(_plain(flag), meanings) if word.startswith("-") else None
        if f"{_plain(flag)}s" in flags:  # --seed of a sweep means its --seeds, whatever options there are
            close = f"{_plain(flag)}s"
        hint = f"did you mean {meanings[close]}?" if close else f"{self.prog} --help lists them"
        return BadInput(f"{word}: {self.prog.partition(' ')[2]} has no such argument; {hint}")

    def _options(self) -> list[str]:
        """The options that --config.PATH=VALUE can set in this command."""
        if self.get_default("overrides") is None:
            return []
        if (used := self.get_default("decode_used")) is not None:
            return [f"decode.{option.path}" for option in schema.options(DecodeConfig) if option.path in used]
        return [option.path for option in schema.options(ExperimentConfig)]


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


def path(text: str) -> str:
    """A path; an empty one (an unset shell variable) would mean the current directory. Buckets have a copy here."""
    problem = paths.problem(text) if text.strip() else "is empty; it must be a path"
    if is_remote := remote.is_remote(text):
        names_folder = text.removeprefix(BUCKETS).strip("/") and not text.startswith(f"{BUCKETS}/")
        problem = "" if names_folder else f"must be {BUCKETS}BUCKET/FOLDER"
    if problem:
        raise argparse.ArgumentTypeError(f"{text}: {problem}")
    try:
        return remote.mirrored(text) if is_remote else paths.expanded(text)
    except BadInput as missing:  # a package is missing, which argparse would not say
        raise argparse.ArgumentTypeError(str(missing)) from None


def python_file(text: str) -> str:
    """The path of a config or experiment file, or the name of one that comes with the package."""
    return text if text.startswith(PRESET) else path(text)


def utf8(text: str) -> str:
    """Text, read as UTF-8 whatever the locale."""
    return os.fsencode(text).decode()


def at_least(lowest: int) -> Callable[[str], int]:
    """A whole number with a lower bound."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < lowest:
            raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number of at least {lowest}")
        return int(text)

    return read


def refuse_alone(arguments: argparse.Namespace, needed: str, *flags: str) -> None:
    """Raises BadInput for a flag that has no effect because another one is not given."""
    for flag in flags:
        if getattr(arguments, flag) and not getattr(arguments, needed):
            named, other = (name.replace("_", "-") for name in (flag, needed))
            raise BadInput(f"--{named}: has no effect without --{other}")


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
