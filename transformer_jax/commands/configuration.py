"""What every command that takes --config shares: reading a config file and laying `--config.key=value` over it."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax import config as configuration
from transformer_jax import extension, schema, shipped
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.files import paths
from transformer_jax.shipped import PRESET


def add_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE.py[:ARGUMENT]",
        type=python_file,
        required=required,
        help="a Python file with get_config(), as in configs/, which are also there by name, from wherever one is, as "
        f"{PRESET}NAME: {', '.join(shipped.configs())}; any option is then set by --config.group.name=value (all of "
        "them: transformer-jax inspect --options)",
    )
    parser.set_defaults(overrides=[])


def add_accept_changed_code(parser: argparse._ActionsContainer, act: str) -> None:
    parser.add_argument(
        "--accept-changed-code",
        action="store_true",
        help=f"{act} although a file of custom code (docs/extending.md) was edited since; reports mention it",
    )


def path(text: str) -> str:
    """A path as a flag's value: an empty one (an unset shell variable) would mean the current directory."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; a path would be right")
    if problem := paths.problem(text):
        raise argparse.ArgumentTypeError(f"{text}: {problem}")
    return paths.expanded(text)


def python_file(text: str) -> str:
    """The path of a config or experiment file, or the name of one that comes with the package."""
    return text if text.startswith(PRESET) else path(text)


def text(text: str) -> str:
    """Text as a flag's value, read as UTF-8 whatever the locale."""
    try:
        return os.fsencode(text).decode()
    except UnicodeDecodeError as error:
        byte = f"byte 0x{error.object[error.start]:02x} at {error.start + 1}"
        raise argparse.ArgumentTypeError(f"is not UTF-8: {byte}") from None
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("is not text: it has half of a surrogate pair") from None


def load(
    file: str, overrides: list[tuple[str, str]], in_place: Mapping[str, Mapping[str, Any]] | None = None
) -> ExperimentConfig:
    """The validated experiment of a config file, with the command line's changes; everything wrong is told at once.

    `in_place`: options, by group, that come in place of what the file says of them, but not of the command line.
    """
    values = _values_of(file)
    for group, options in (in_place or {}).items():
        values[group] = {**(values.get(group) or {}), **options}
    problems = [f"--config.{problem}" for problem in schema.lay_over(ExperimentConfig, values, overrides)]
    try:
        experiment = configuration.from_config_dict(values)
    except ConfigError as error:
        typed = {path for path, _ in overrides}
        problems += [_placed(problem, file, typed) for problem in error.problems]
    if overrides and not problems:
        problems = configuration.unused_options([path for path, _ in overrides], [experiment])
    if problems:
        raise ConfigError(problems)
    return experiment


def _placed(problem: str, file: str, typed: set[str]) -> str:
    """Says where the user wrote what is wrong: in the file, or on the command line."""
    path = problem.partition(" ")[0].rstrip(":")
    return f"--config.{problem}" if path in typed else f"{file}: {problem}"


def _values_of(file: str) -> dict[str, Any]:
    """What get_config() of the file, or of the preset, returns.

    A text behind its name is get_config's argument: `file.py:argument`, `preset:name:argument`.
    """
    path, argument = _path_and_argument(file)
    module = extension.load_module(path, "config file")
    if not callable(getattr(module, "get_config", None)):
        raise BadInput(f"{path}: has no function get_config()")
    with extension.running(path):
        values = module.get_config(argument) if argument else module.get_config()
    if hasattr(values, "to_dict"):
        values = values.to_dict()
    if not isinstance(values, dict):
        raise BadInput(f"{path}: get_config() returned {type(values).__name__}; a ConfigDict would be right")
    return values


def _path_and_argument(file: str) -> tuple[str, str]:
    name, _, argument = file.removeprefix(PRESET).partition(":")
    known = shipped.configs()
    if not file.startswith(PRESET):
        if Path(name).stem in known and not Path(name).exists():
            raise BadInput(f"{name}: no such config file; {PRESET}{Path(name).stem} is there by name")
        return name, argument
    if name not in known:
        raise BadInput(f"--config={file}: there is no such preset; there are: {', '.join(known)}")
    return str(known[name]), argument


def split_overrides(arguments: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Takes `--config.a.b=value` and `--config.a.b value` out of a command line: (path, text) pairs and the rest."""
    overrides, rest = [], []
    remaining = iter(arguments)
    for argument in remaining:
        if not argument.startswith("--config."):
            rest.append(argument)
            continue
        path, separator, text = argument.removeprefix("--config.").partition("=")
        if not separator:
            text = next(remaining, "--")
            if text.startswith("--"):
                raise BadInput(f"{argument}: needs a value, as in {argument}=VALUE")
        overrides.append((path, text))
    return overrides, rest
