"""Makes a run of a model that others trained: Marian and opus-mt models, as Hugging Face keeps them in a folder.

  transformer-jax import marian opus-mt-en-de --workdir=runs/en-de
  transformer-jax translate --workdir=runs/en-de < in.txt > out.txt
  transformer-jax train --config=configs/text.py --workdir=runs/finer --init-from=runs/en-de ...

The folder needs config.json, model.safetensors, source.spm, target.spm and vocab.json; generation_config.json and
tokenizer_config.json are read where there are any. What is not supported is refused by name. Neither torch nor
transformers is needed.
"""

import argparse
from pathlib import Path

from transformer_jax.commands.arguments import path
from transformer_jax.files.progress import tell

# How many of the target languages that a model knows are told.
SHOWN_CODES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=["marian"], help="whose model it is")
    parser.add_argument("folder", type=path, metavar="DIR", help="the model's folder")
    parser.add_argument(
        "--workdir", type=path, required=True, metavar="RUN", help="the folder to write; must not exist"
    )


def run(arguments: argparse.Namespace) -> None:
    from transformer_jax.interop.marian import import_marian
    from transformer_jax.model.size import parameter_counts

    found = import_marian(Path(arguments.folder), Path(arguments.workdir))
    model, codes = found.config.model, found.vocabularies.codes
    if codes:
        more = f" ... ({len(codes)} in all)" if len(codes) > SHOWN_CODES else ""
        tell(f"a source begins with the language to translate to: {' '.join(codes[:SHOWN_CODES])}{more}")
    print(
        f"{arguments.workdir}: {model.num_encoder_layers} + {model.num_decoder_layers} layers of width "
        f"{model.d_model}, {sum(parameter_counts(model).values()):,} parameters"
    )
