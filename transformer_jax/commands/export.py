"""Exports a run's weights as safetensors, with config and tokenizer, into a self-contained folder.

  transformer-jax export --workdir=runs/base --output=model
  transformer-jax export --workdir=runs/base --output=model --step=10000
  transformer-jax export --workdir=runs/base --output=model --weights=averaged --format=marian

In Python, safetensors.numpy.load_file("model/model.safetensors") reads the weights. --format=marian writes a folder for
Hugging Face's MarianMTModel and CTranslate2's converter, if Marian's format can describe the model.
"""

import argparse
from pathlib import Path

from transformer_jax.commands.arguments import add_run, add_weights, path
from transformer_jax.files.progress import tell
from transformer_jax.files.remote import name_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "a run's folder, or an exported folder")
    parser.add_argument(
        "--output", type=path, required=True, metavar="DIR", help="the folder to write; it must not exist"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, help="the checkpoint of this step instead of the newest")
    add_weights(which)
    parser.add_argument("--format", choices=["own", "marian"], default="own", help="own (the default) or marian")


def run(arguments: argparse.Namespace) -> None:
    from transformer_jax.data.tokenizer import load_tokenizer
    from transformer_jax.interop.marian import export_marian
    from transformer_jax.runs.export import write_export
    from transformer_jax.translation.load import read_weights

    output = Path(arguments.output)
    found = read_weights(arguments.workdir, arguments.weights, arguments.step)
    if arguments.format == "own":
        write_export(output, found)
    else:
        tokenizers = {side: load_tokenizer(path) for side, path in found.tokenizers.items()}
        target = tokenizers.get("target", tokenizers["source"])
        for difference in export_marian(output, found.config, found.params, tokenizers["source"], target):
            tell(f"note: {difference}")
    print(f"{name_of(arguments.output)}: the weights of step {', '.join(map(str, found.steps))}")
