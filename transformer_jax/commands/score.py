"""Says how probable given translations are: log P of each line of the one file given that of the other.

  transformer-jax score --workdir=runs/demo in.txt out.txt
  transformer-jax score --workdir=runs/demo --json in.txt out.txt

Writes for each pair its log-probability (natural, <eos> included), the number of its tokens, and nothing else; --json
adds every token's own.
"""

import argparse
import json

from transformer_jax.commands import model_choice, text_input
from transformer_jax.commands.arguments import path
from transformer_jax.errors import BadInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=path, metavar="SOURCE", help="text, a sentence a line")
    parser.add_argument("target", type=path, metavar="TARGET", help="its translation, line by line")
    model_choice.add_arguments(parser, used=())
    parser.add_argument("--json", action="store_true", help="write JSON lines with every token's log-probability")


def run(arguments: argparse.Namespace) -> None:
    model, _ = model_choice.load(arguments)
    sources, targets = (
        [line for block in text_input.blocks([path]) for line in block.lines]
        for path in (arguments.source, arguments.target)
    )
    if len(sources) != len(targets):
        raise BadInput(
            f"{arguments.source} has {len(sources):,} lines and {arguments.target} {len(targets):,}: "
            "they must have as many"
        )
    for score in model.score(list(zip(sources, targets, strict=True))):
        if arguments.json:
            tokens = model.target_tokenizer.pieces(score.tokens)
            print(json.dumps({**score._asdict(), "tokens": tokens}, ensure_ascii=False))
        else:
            print(f"{score.log_probability:.4f}\t{len(score.tokens)}")
