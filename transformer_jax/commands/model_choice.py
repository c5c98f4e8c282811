"""Arguments of the commands that use a trained model: which run, which of its weights, how it decodes."""

import argparse
import dataclasses
from typing import TYPE_CHECKING

from transformer_jax import schema
from transformer_jax.commands.arguments import add_run, add_weights
from transformer_jax.config import DecodeConfig, why_unused
from transformer_jax.errors import BadInput, ConfigError, did_you_mean
from transformer_jax.files.progress import tell

if TYPE_CHECKING:
    from transformer_jax.translation.load import Run
    from transformer_jax.translation.translate import Translation

OPTIONS = {option.path: option for option in schema.options(DecodeConfig)}
# Options of DecodeConfig that have a flag; the others are set by --config.decode.NAME=VALUE.
FLAGS = ("beam", "n_best", "sample", "temperature", "top_k", "top_p", "seed")
# Those that affect a translation.
SEARCHING = tuple(name for name, option in OPTIONS.items() if option.affects in ("translation", "computation"))


def add_arguments(parser: argparse.ArgumentParser, used: tuple[str, ...] = (*SEARCHING, "n_best")) -> None:
    """Adds the run, its weights, and the decoding options in `used`; all others are errors."""
    add_run(parser, "a run's folder, or an exported folder")
    add_weights(parser)
    for name in (name for name in FLAGS if name in used):
        help = f"{OPTIONS[name].meaning} (default: the run's decode.{name})"
        if OPTIONS[name].kind is bool:
            parser.add_argument(_flag(name), action="store_const", const="true", help=help)
        else:
            parser.add_argument(_flag(name), metavar="NUMBER", help=help)
    parser.set_defaults(overrides=[], decode_used=used)


def load(arguments: argparse.Namespace) -> "tuple[Run, DecodeConfig]":
    """The run, and its decode config with the command line's changes."""
    typed = [(f"--config.{path}", path, text) for path, text in arguments.overrides]
    typed += [(_flag(name), f"decode.{name}", getattr(arguments, name, None)) for name in FLAGS]
    typed = [(flag, path, text) for flag, path, text in typed if text is not None]
    known = {f"decode.{name}": OPTIONS[name] for name in arguments.decode_used}
    changes = {}
    for flag, path, text in typed:
        if path not in known:
            hint = did_you_mean(path, known)
            raise BadInput(f"{flag}: has no effect on {arguments.command}, which uses only decode.*; {hint}")
        changes[known[path].path] = text

    from transformer_jax.processes.compilation import use_cache
    from transformer_jax.translation.load import load_run

    run = load_run(arguments.workdir, arguments.weights)
    use_cache(run.config.train.compile_cache)
    decode = run.decode_config(**changes)
    config = dataclasses.replace(run.config, decode=decode)
    # The run's config may have options without effect, the command line may not.
    if unused := [f"{flag}: {why}" for flag, path, _ in typed if (why := why_unused(path, [config]))]:
        raise ConfigError(unused)
    return run, decode


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def warn(place: str, translation: "Translation", decode: "DecodeConfig") -> None:
    """Warns of a source that was truncated, and of a translation that reached the maximum length."""
    source, best = translation.source, translation.hypotheses[0]
    if (kept := len(source.tokens)) < source.full_length:
        tell(f"warning: {place}: {source.full_length:,} tokens, truncated to {kept:,} (decode.max_source_length)")
    if best.at_limit:
        limits = f"decode.extra_length = {decode.extra_length}, decode.max_length = {decode.max_length or 'none'}"
        tell(f"warning: {place}: its translation was cut off at {len(best.tokens):,} tokens ({limits})")
