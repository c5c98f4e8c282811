"""`--config=FILE.py` with `--config.group.name=value`: reads a config file and applies the changes."""

import argparse
import inspect
import re
from collections.abc import Mapping
from typing import Any

from transformer_jax import config as configuration
from transformer_jax import extension, schema, shipped
from transformer_jax.commands.arguments import python_file
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.shipped import PRESET

# The path may have colons, too.
WITH_ARGUMENT = re.compile(rf"(?P<file>{PRESET}[^:]*|.*?\.py|[^:]*)(:(?P<argument>.*))?", re.DOTALL)


def add_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    about = "a Python file with get_config(), as in configs/, which are also available by name from any directory: "
    about += ", ".join(f"{PRESET}{name}" for name in shipped.configs())
    about += ". --config.group.name=value sets any option (transformer-jax inspect --options lists them)"
    parser.add_argument("--config", type=python_file, required=required, metavar="FILE.py[:ARGUMENT]", help=about)
    parser.set_defaults(overrides=[])


def load(
    file: str, overrides: list[tuple[str, str]], replaced: Mapping[str, Mapping[str, Any]] | None = None
) -> ExperimentConfig:
    """The experiment of a config file with the command line's changes, or a `ConfigError` with all its problems.

    `file` is a path or preset:NAME, perhaps with :ARGUMENT for its get_config().
    `replaced`: options, by group, that replace the file's, but not the command line's.
    """
    parts = WITH_ARGUMENT.fullmatch(file)
    assert parts is not None  # its last form is any text
    path, argument = shipped.resolve(parts["file"], shipped.configs(), "config file"), parts["argument"]
    module = extension.load_module(path, "config file")
    values: Any = None
    with extension.running(path):
        if hasattr(module, "get_config"):
            given = [argument] if argument else []
            try:
                inspect.signature(module.get_config).bind(*given)
            except TypeError:
                needed = "takes no argument" if given else f"needs an argument, as in --config={path}:ARGUMENT"
                raise BadInput(f"--config={file}: its get_config() {needed}") from None
            values = module.get_config(*given)
    values = values.to_dict() if hasattr(values, "to_dict") else values
    if not isinstance(values, dict):
        raise BadInput(f"{path}: must have a function get_config() that returns a ConfigDict")
    for group, options in (replaced or {}).items():
        values[group] = {**(values.get(group) or {}), **options}
    problems = [f"--config.{problem}" for problem in schema.lay_over(ExperimentConfig, values, overrides)]
    typed = [path for path, _ in overrides]
    try:
        experiment = configuration.from_config_dict(values)
        problems = problems or configuration.unused_options(typed, [experiment])
    except ConfigError as error:
        problems += configuration.placed(error.problems, typed, file)
    if problems:
        raise ConfigError(problems)
    return experiment


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
