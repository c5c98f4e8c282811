"""Imports a pretrained model as a run: Marian and opus-mt models, in a folder as Hugging Face stores them.

  transformer-jax import marian opus-mt-en-de --workdir=runs/en-de
  transformer-jax translate --workdir=runs/en-de < in.txt > out.txt
  transformer-jax train --config=configs/text.py --workdir=runs/finer --init-from=runs/en-de ...

The folder needs config.json, model.safetensors, source.spm, target.spm and vocab.json; generation_config.json and
tokenizer_config.json are read if present. An unsupported feature raises an error. Neither torch nor transformers
is needed.
"""

import argparse
from pathlib import Path

from transformer_jax.commands.arguments import add_run, path
from transformer_jax.files.progress import tell
from transformer_jax.files.remote import name_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=["marian"], help="the format of the model")
    parser.add_argument("folder", type=path, metavar="DIR", help="the model's folder")
    add_run(parser, "the folder to write; must not exist")


def run(arguments: argparse.Namespace) -> None:
    from transformer_jax.interop.marian import import_marian
    from transformer_jax.model.size import parameter_counts

    run = import_marian(Path(arguments.folder), Path(arguments.workdir))
    model, tokens = run.config.model, run.tokenizer.pieces(range(run.tokenizer.vocab_size))
    if codes := [token for token in tokens if token.startswith(">>") and token.endswith("<<")]:
        tell(f"a source must begin with the target language: {' '.join(codes)}")
    layers, size = f"{model.num_encoder_layers} + {model.num_decoder_layers}", sum(parameter_counts(model).values())
    print(f"{name_of(arguments.workdir)}: {layers} layers of width {model.d_model}, {size:,} parameters")
