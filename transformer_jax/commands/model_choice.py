"""Arguments of the commands that use a trained model: which run, which of its weights, how it decodes."""

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from transformer_jax import schema
from transformer_jax.commands.arguments import add_run, add_weights
from transformer_jax.config import DecodeConfig, ExperimentConfig, why_unused
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.files.progress import tell

if TYPE_CHECKING:
    from transformer_jax.translation.load import Run
    from transformer_jax.translation.translate import Translation

# Options of DecodeConfig that have a flag; the others are set by --config.decode.NAME=VALUE.
FLAGS = ("beam", "n_best", "sample", "temperature", "top_k", "top_p", "seed")
# Those that affect a translation.
SEARCHING = tuple(
    option.path for option in schema.options(DecodeConfig) if option.affects in ("translation", "computation")
)


def add_arguments(parser: argparse.ArgumentParser, used: tuple[str, ...] = (*SEARCHING, "n_best")) -> None:
    """Adds the run, its weights, and the decoding options in `used`; the command refuses all others."""
    add_run(parser, "a run's folder, or an exported folder")
    add_weights(parser)
    for option in schema.options(DecodeConfig):
        if option.path not in FLAGS or option.path not in used:
            continue
        flag, text = f"--{option.path.replace('_', '-')}", f"{option.meaning} (default: the run's decode.{option.path})"
        if option.kind is bool:
            parser.add_argument(flag, action="store_const", const="true", help=text)
        else:
            parser.add_argument(flag, metavar="NUMBER", help=text)
    parser.set_defaults(overrides=[], decode_used=used)


def load(arguments: argparse.Namespace) -> "tuple[Run, DecodeConfig]":
    """The run, and its decode config with the command line's changes, which are checked before anything is loaded."""
    changes = _changes(arguments)

    from transformer_jax.processes.compilation import use_cache
    from transformer_jax.translation.load import load_run

    run = load_run(arguments.workdir, arguments.weights)
    use_cache(run.config.train.compile_cache)
    decode = run.decode_config(**changes)
    config, problems = dataclasses.replace(run.config, decode=decode), []
    for name in changes:  # the run's config may have options without effect, the command line may not
        if (why := why_unused(f"decode.{name}", [config])) is not None:
            flag = f"--{name.replace('_', '-')}" if getattr(arguments, name, None) else f"--config.decode.{name}"
            problems.append(f"{flag}: {why}")
    if problems:
        raise ConfigError(problems)
    return run, decode


def warn(place: str, translation: "Translation", decode: "DecodeConfig") -> None:
    """Warns of a source that was truncated, and of a translation that reached the maximum length."""
    source, best = translation.source, translation.hypotheses[0]
    if source.full_length > len(source.tokens):
        tell(
            f"warning: {place}: has {source.full_length:,} tokens and was truncated to {len(source.tokens):,}, the "
            "maximum of this model (decode.max_source_length)"
        )
    if best.at_limit:
        tell(
            f"warning: {place}: its translation was cut off at {len(best.tokens):,} tokens (decode.extra_length = "
            f"{decode.extra_length}, decode.max_length = {decode.max_length or 'none'} or learned positions' end)"
        )


def _changes(arguments: argparse.Namespace) -> dict[str, Any]:
    options = {f"decode.{option.path}": option for option in schema.options(DecodeConfig)}
    used = [f"decode.{name}" for name in arguments.decode_used]
    fixed = {option.path for option in schema.options(ExperimentConfig)} - {*options}
    changes = {}
    for path, text in arguments.overrides:
        if path in options and path not in used:
            raise BadInput(f"--config.{path}: has no effect on {arguments.command}")
        if path in fixed:
            raise BadInput(f"--config.{path}: only decode.* can be changed here; a run keeps its {path}")
        if path not in used:
            raise BadInput(f"--config.{path}: only decode.* can be changed here; {schema.nearest(path, used)}")
        changes[options[path].path] = _value(f"--config.{path}", text, options[path])
    for path in used:
        name = options[path].path
        if (text := getattr(arguments, name, None)) is not None:
            changes[name] = _value(f"--{name.replace('_', '-')}", text, options[path])
    return changes


def _value(flag: str, text: str, option: schema.Option) -> Any:
    """The flag's value, checked separately so that an error names the flag."""
    value = schema.parse(text, option.kind, flag)
    try:
        DecodeConfig(**{option.path: value, **({"beam": value} if option.path == "n_best" else {})})
    except ConfigError as error:
        own = [problem for problem in error.problems if problem.startswith(option.path)]
        raise ConfigError([problem.replace(option.path, flag, 1) for problem in own or error.problems]) from None
    return value
