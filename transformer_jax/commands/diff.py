"""Compares two runs: options, code and data that differ, and their metrics side by side. Only reads files.

  transformer-jax diff runs/demo runs/other
  transformer-jax diff runs/table3/runs/base/seed-0 runs/table3/runs/A-h=1/seed-0

Options that have no effect in either run are left out. Scores on test sets are those of `evaluate` and of sweeps; they
compare only if the data is the same.
"""

import argparse
import contextlib
from typing import TYPE_CHECKING, Any

from transformer_jax import schema
from transformer_jax.commands.arguments import path
from transformer_jax.commands.inspect import shown
from transformer_jax.errors import BadInput, visible

if TYPE_CHECKING:
    from transformer_jax.runs.folder import RunFolder

# What versions.json says of the process that trained, besides the packages.
ENVIRONMENT = ("python", "platform", "xla_flags")
METRICS = ("step", "loss", "learning_rate", "target_tokens", "valid_loss", "valid_perplexity", "valid_accuracy", "bleu")
# Hexadecimal digits of a digest that are shown.
SHORT = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="A", type=path, help="a run's folder")
    parser.add_argument("second", metavar="B", type=path, help="another run's folder")


def run(arguments: argparse.Namespace) -> None:
    from transformer_jax.runs.folder import RunFolder, with_plain_addresses

    folders = [RunFolder(place) for place in (arguments.first, arguments.second)]
    configs = [with_plain_addresses(folder.stored_config()) for folder in folders]
    options: list[dict[str, Any]] = [{}, {}]
    for option, *values in schema.differing(*configs):
        for side, value in zip(options, values, strict=True):
            side[option.path] = value
    print(f"A  {visible(arguments.first)}\nB  {visible(arguments.second)}")
    print(f"\noptions\n{table(*options)}")
    print(f"\ncode\n{table(*map(code, folders))}")
    print(f"\ndata\n{table(*map(data, folders))}")
    print(f"\nmetrics\n{table(*map(metrics, folders), all_rows=True)}")
    for folder in folders:
        for note in folder.notes():
            print(f"note: {folder.path}: {visible(note)}")


def table(first: dict[str, Any], second: dict[str, Any], *, all_rows: bool = False) -> str:
    """The values of both runs side by side, where they differ."""
    names = [name for name in {**first, **second} if all_rows or first.get(name) != second.get(name)]
    rows = [("", "A", "B"), *((name, in_words(first.get(name)), in_words(second.get(name))) for name in names)]
    left, middle = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"  {name:<{left}}  {one:<{min(middle, 40)}}  {other}" for name, one, other in rows]
    return "\n".join(lines) if names else "  the same"


def in_words(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else visible(shown(value))


def code(folder: "RunFolder") -> dict[str, Any]:
    """Versions, and digests of the source and of custom code."""
    from transformer_jax.runs.folder import PACKAGES, SOURCE_DIGEST

    versions = folder.versions()
    found = {name: versions[name] for name in (*PACKAGES, *ENVIRONMENT) if name in versions}
    found["source of transformer_jax"] = str(versions.get(SOURCE_DIGEST))[:SHORT]
    return found | {use: f"{code.main} {code.digest[:SHORT]}" for use, code in (folder.code.latest() or {}).items()}


def data(folder: "RunFolder") -> dict[str, Any]:
    """The digests of the splits' arrays and of the vocabularies; empty if the prepared data is gone."""
    from transformer_jax.data.prepared import read_manifest

    try:
        manifest = read_manifest(folder.data(folder.stored_config()))
    except BadInput:
        return {}
    found = {}
    for split, facts in manifest["splits"].items():
        for name, array in facts["arrays"].items():
            found[f"{split} {name}"] = f"{array['count']:,} ({array['sha256'][:SHORT]})"
    for side, facts in manifest["tokenizers"].items():
        found[f"{side} vocabulary"] = f"{facts['vocab_size']:,} ({facts['fingerprint'][:SHORT]})"
    return found


def metrics(folder: "RunFolder") -> dict[str, Any]:
    """The last metrics of training and of validation, and the scores on test sets."""
    from transformer_jax.files.record import read_record
    from transformer_jax.runs.metrics import read_metrics

    found: dict[str, Any] = {}
    for line in read_metrics(folder.metrics):
        found |= {name: line[name] for name in METRICS if line.get(name) is not None}
    for record_path in sorted((folder.path / "translations").glob("*.json")):
        with contextlib.suppress(OSError, BadInput, KeyError):  # some are not of an evaluation
            record = read_record(record_path)
            found[f"{record_path.stem}: sentences"] = record["test_set_sha256"][:SHORT]
            for measure, facts in record["measures"].items():
                found[f"{record_path.stem}: {measure}"] = facts["score"]
    return found
