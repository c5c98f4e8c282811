"""Turns text into token arrays on disk, once; training reads them by mapping.

  transformer-jax prepare --config=configs/base.py --workdir=RUN
  transformer-jax prepare --config=configs/text.py --workdir=RUN --config.data.source=a.en --config.data.target=a.de

Killed, it goes on where it was; started again, it finds its work done, or says what has changed since.
"""

import argparse
from pathlib import Path

from transformer_jax.commands import configuration
from transformer_jax.data.prepare import prepare
from transformer_jax.data.prepared import Prepared


def add_arguments(parser: argparse.ArgumentParser) -> None:
    configuration.add_arguments(parser)
    parser.add_argument("--workdir", required=True, metavar="RUN", help="the run's directory; data goes to RUN/data")


def run(arguments: argparse.Namespace) -> None:
    experiment = configuration.load(arguments.config, arguments.overrides)
    prepared = prepare(experiment, experiment.data.directory or Path(arguments.workdir) / "data")
    prepared.verify()
    print(summary(prepared))


def summary(prepared: Prepared) -> str:
    """What was prepared, what was left out and why, for a person."""
    lines = [str(prepared.directory)]
    for split in prepared.splits:
        pairs, facts = prepared.pairs(split), prepared.manifest["splits"][split]
        sizes = f"{len(pairs.source_tokens):,} source and {len(pairs.target_tokens):,} target tokens"
        lines.append(f"  {split}: {len(pairs):,} pairs, {sizes}")
        for reason, rejected in facts.get("rejected", {}).items():
            first = ", ".join(rejected["first"][:3])
            lines.append(f"    left out: {rejected['pairs']:,} {reason} (first: {first})")
        for oddity, count in facts.get("oddities", {}).items():
            lines.append(f"    {oddity}: {count:,}")
    sizes = f"{prepared.vocab_size:,}"
    if prepared.target_vocab_size is not None:
        sizes += f" source and {prepared.target_vocab_size:,} target"
    lines.append(f"  vocabulary: {sizes} tokens")
    return "\n".join(lines)
