"""Compares two runs: options, code and data that differ, and their metrics side by side. Only reads files.

  transformer-jax diff runs/demo runs/other
  transformer-jax diff runs/table3/runs/base/seed-0 runs/table3/runs/A-h=1/seed-0

Options that have no effect in either run are left out. Scores on test sets are from `evaluate` and from sweeps; they
can be compared only if the data is the same.
"""

import argparse
import contextlib
from typing import TYPE_CHECKING, Any

from transformer_jax import schema
from transformer_jax.commands.arguments import path
from transformer_jax.commands.inspect import shown
from transformer_jax.errors import BadInput, visible
from transformer_jax.metric_names import TAKEN, TRANSLATIONS, VALIDATION

if TYPE_CHECKING:
    from transformer_jax.runs.folder import RunFolder

# The facts in versions.json about the process that trained, besides the packages.
ENVIRONMENT = ("python", "platform", "xla_flags", "cpu", "devices", "commit")
METRICS = ("step", "loss", "learning_rate", "target_tokens", *VALIDATION, *TRANSLATIONS)
# Hexadecimal digits of a digest that are shown.
SHORT = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="A", type=path, help="a run's folder")
    parser.add_argument("second", metavar="B", type=path, help="another run's folder")


def run(arguments: argparse.Namespace) -> None:
    from transformer_jax.runs.folder import RunFolder, with_plain_addresses

    folders = [RunFolder(place) for place in (arguments.first, arguments.second)]
    configs = [with_plain_addresses(folder.stored_config()) for folder in folders]
    sections = {"options": [(option.path, *values) for option, *values in schema.differing(*configs)]}
    for facts in (code, data, metrics):
        first, second = map(facts, folders)
        rows = [(name, first.get(name), second.get(name)) for name in {**first, **second}]
        sections[facts.__name__] = [row for row in rows if facts is metrics or row[1] != row[2]]
    print(f"A  {visible(arguments.first)}\nB  {visible(arguments.second)}")
    for title, rows in sections.items():
        print(f"\n{title}\n{table(rows)}")
    for folder in folders:
        for note in folder.notes():
            print(f"note: {folder.path}: {visible(note)}")


def table(rows: list[tuple[str, Any, Any]]) -> str:
    words = [("", "A", "B"), *((name, in_words(one), in_words(other)) for name, one, other in rows)]
    left, middle = (max(len(row[column]) for row in words) for column in (0, 1))
    lines = [f"  {name:<{left}}  {one:<{min(middle, 40)}}  {other}" for name, one, other in words]
    return "\n".join(lines) if rows else "  the same"


def in_words(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else visible(shown(value))


def code(folder: "RunFolder") -> dict[str, Any]:
    """Versions, the machine, and digests of the source and of custom code."""
    from transformer_jax.runs.folder import PACKAGES, SOURCE_DIGEST

    names = (*PACKAGES, *ENVIRONMENT, SOURCE_DIGEST)
    versions = {name: value for name, value in folder.versions().items() if name in names}
    return versions | {use: f"{code.main} {code.digest[:SHORT]}" for use, code in (folder.code.latest() or {}).items()}


def data(folder: "RunFolder") -> dict[str, Any]:
    """The pairs of each split and a digest of all; empty if the prepared data is gone."""
    from transformer_jax.data.prepared import Prepared

    with contextlib.suppress(BadInput):
        prepared = Prepared.open(folder.data(folder.stored_config()))
        pairs = {f"pairs of {split}": len(prepared.pairs(split)) for split in prepared.splits}
        return {**pairs, "vocabulary": prepared.vocab_size, "digest": prepared.fingerprint[:SHORT]}
    return {}


def metrics(folder: "RunFolder") -> dict[str, Any]:
    """The last metrics of training and of validation, and the scores on test sets."""
    from transformer_jax.files.record import read_typed
    from transformer_jax.runs.metrics import metrics_lines
    from transformer_jax.runs.records import Record

    found: dict[str, Any] = {}
    for line in metrics_lines(folder.metrics):
        # A name that is not taken is a custom metric's.
        found |= {n: x for n, x in line.items() if (n in METRICS or n not in TAKEN) and x is not None}
    for record_path in sorted((folder.path / "translations").glob("*.json")):
        with contextlib.suppress(OSError, BadInput):  # some are not of an evaluation
            record = read_typed(record_path, Record)
            scores: dict[str, Any] = {measure: facts["score"] for measure, facts in record["measures"].items()}
            scores["perplexity"] = record["perplexity"].get("per_token")
            scores["step"] = ", ".join(map(str, record["steps"]))
            scores["sentences"] = record["test_set_sha256"][:SHORT]
            found |= {f"{record_path.stem}: {name}": value for name, value in scores.items()}
    return found
