"""Scores given translations: prints the log-probability of each line of TARGET, given the same line of SOURCE.

  transformer-jax score --workdir=runs/demo in.txt out.txt
  transformer-jax score --workdir=runs/demo --json in.txt out.txt

The logarithm is natural, and <eos> counts. The number of tokens follows after a tab. --json also has every token's
log-probability.
"""

import argparse
import json

from transformer_jax.commands import model_choice, text_input
from transformer_jax.commands.arguments import path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=path, metavar="SOURCE", help="text, one sentence per line")
    parser.add_argument("target", type=path, metavar="TARGET", help="its translation, line by line")
    model_choice.add_arguments(parser, used=("tokens_per_batch",))
    parser.add_argument("--json", action="store_true", help="write JSON lines with every token's log-probability")


def run(arguments: argparse.Namespace) -> None:
    sources, targets = text_input.parallel(arguments.source, arguments.target)
    model, _ = model_choice.load(arguments)
    for score in model.score(list(zip(sources, targets, strict=True))):
        if arguments.json:
            tokens = model.target_tokenizer.pieces(score.tokens)
            print(json.dumps({**score._asdict(), "tokens": tokens}, ensure_ascii=False))
        else:
            print(f"{score.log_probability:.4f}\t{len(score.tokens)}")
