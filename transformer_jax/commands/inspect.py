"""Shows what a config means before anything runs: every option, and the model it describes.

transformer-jax inspect --config=configs/base.py
transformer-jax inspect --config=configs/base.py --config.model.num_heads=16
transformer-jax inspect --options
"""

import argparse

from transformer_jax import schema
from transformer_jax.commands import configuration
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import BadInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    configuration.add_arguments(parser, required=False)
    parser.add_argument("--options", action="store_true", help="list every option there is, with default and meaning")


def run(arguments: argparse.Namespace) -> None:
    if arguments.options:
        print(options_table())
        return
    if arguments.config is None:
        raise BadInput("inspect needs --config=FILE.py or --options")
    experiment = configuration.load(arguments.config, arguments.overrides)
    print(resolved(experiment))


def options_table() -> str:
    """Every option as a Markdown table: what docs/options.md holds."""
    rows = ["| option | default | what it may be | meaning |", "|---|---|---|---|"]
    for option in schema.options(ExperimentConfig):
        limits = " and ".join(f"{word} {limit:g}" for word, limit in option.limits.items())
        kind = option.type_name.replace("|", "\\|") + (f", {limits}" if limits else "")
        rows.append(f"| `{option.path}` | `{_shown(option.default)}` | {kind} | {option.meaning} |")
    return "\n".join(rows)


def resolved(experiment: ExperimentConfig) -> str:
    """The whole config, one option a line; what differs from the defaults is marked."""
    lines = []
    for option in schema.options(ExperimentConfig):
        value = schema.value_at(experiment, option.path)
        mark, note = ("*", f"   (default {_shown(option.default)})") if value != option.default else (" ", "")
        lines.append(f"{mark} {option.path:<38} {_shown(value)}{note}")
    return "\n".join(lines)


def _shown(value: object) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)
