"""Marian and opus-mt models in the format of Hugging Face: imported as a run, and exported from one.

    model = from_marian("opus-mt-en-de")
    model.translate(["This is a test."])

docs/marian.md says what is supported. Neither torch nor transformers is needed.
"""

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from transformer_jax.config import DataConfig, DecodeConfig, ExperimentConfig
from transformer_jax.data.tokenizer import EOS, Tokenizer
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.files.atomic import write_atomically
from transformer_jax.interop import marian_config, marian_vocabulary, marian_weights
from transformer_jax.interop.marian_weights import WEIGHTS, Ids
from transformer_jax.model_config import ModelConfig
from transformer_jax.runs.export import Weights, flat, new_folder, write_export
from transformer_jax.translation.load import Run

# Rows of the position table of a model whose positions have no limit.
ROWS = 512


class MarianModel(NamedTuple):
    """The weights of a Marian folder as parameters of this library, without its tokenizers.

    config, params, ids = read_marian_model("opus-mt-en-de")[:3]
    source, target = ids.our_source(input_ids), ids.our_target(decoder_input_ids)
    logits = ids.marian_logits(Transformer(config).apply({"params": params}, source, target))
    """

    config: ModelConfig
    params: Any
    ids: Ids  # our id of each Marian token
    tokens: marian_vocabulary.Tokens
    decode: DecodeConfig


def read_marian_model(directory: str | Path) -> MarianModel:
    """The model in a Marian folder, checked for consistency; its SentencePiece files need not be there."""
    directory = Path(directory)
    if not (directory / WEIGHTS).is_file():
        why = f"it has no {WEIGHTS}; docs/marian.md shows how to convert pytorch_model.bin, a pickle"
        raise BadInput(f"{directory}: is not a Marian folder: {why}")
    marian = marian_config.read_config(directory)
    tokens = marian_vocabulary.read_tokens(directory, marian)
    arrays = marian_weights.read_weights(directory, marian.model, tokens.ids, marian.rows)
    changes: dict[str, Any] = {}
    if tokens.source != tokens.target:
        changes["target_vocab_size"] = marian.target_tokens + 1
    if "encoder/positions_0/table" in arrays:
        changes |= {"positions": "learned", "sinusoids": "interleaved", "max_length": marian.rows}
    model = dataclasses.replace(marian.model, **changes)
    return MarianModel(model, traverse_util.unflatten_dict(arrays, sep="/"), tokens.ids, tokens, marian.decode)


def from_marian(directory: str | Path) -> Run:
    """The model in a Marian folder, ready to translate and to score."""
    found = read_marian_model(directory)
    languages, longest = found.tokens.languages, found.tokens.longest
    data = DataConfig(max_length=longest, source_language=languages[0], target_language=languages[1])
    config = ExperimentConfig(model=found.config, data=data, decode=found.decode)
    return Run(config, found.params, *marian_vocabulary.read_tokenizers(Path(directory), found.tokens), [0])


def import_marian(directory: Path, workdir: Path) -> Run:
    """Converts a Marian folder to an exported folder of this library."""
    run = from_marian(directory)
    with tempfile.TemporaryDirectory() as folder:
        files = {"source": Path(folder) / "tokenizer.json"}
        run.tokenizer.save(files["source"])
        if run.target_tokenizer.serialized() != run.tokenizer.serialized():
            files["target"] = Path(folder) / "target_tokenizer.json"
            run.target_tokenizer.save(files["target"])
        write_export(workdir, Weights(run.config, run.params, files, [0]))
    return run


def export_marian(
    directory: Path, config: ExperimentConfig, params: Any, tokenizer: Tokenizer, target_tokenizer: Tokenizer
) -> list[str]:
    """Writes a model as a Marian folder; returns what will differ there, a line each.

    Raises ConfigError with all reasons if Marian has no such architecture.
    """
    from safetensors.numpy import save

    model = config.model
    if reasons := marian_config.unsupported(model):
        raise ConfigError([f"cannot be a Marian model: {reason}" for reason in reasons])
    files, ids, tokens = marian_vocabulary.vocabularies_of(tokenizer, target_tokenizer)
    translation = config.decode.max_length or config.data.max_length + config.decode.extra_length
    longest = max(config.data.max_length, translation + 1)
    rows = model.max_length if model.positions == "learned" else max(ROWS, longest)
    weights, begins_from_zeros = marian_weights.write_weights(flat(jax.device_get(params)), model, ids, rows)
    pad, eos = tokens.index("<pad>"), int(np.argmax(ids.source == EOS))
    # If the row of <pad> was changed, its logit is meaningless: it must not get probability.
    decode = dataclasses.replace(config.decode, renormalize=config.decode.renormalize or not begins_from_zeros)
    separate = marian_vocabulary.LISTS["target"] in files
    languages = config.data.source_language, config.data.target_language
    limit = min(config.data.max_length, rows)
    objects = {
        marian_config.CONFIG: marian_config.config_json(model, len(ids.source), len(ids.target), rows, pad, eos),
        marian_config.GENERATION: marian_config.generation_json(decode, rows, pad, eos),
        marian_vocabulary.TOKENIZER_CONFIG: marian_vocabulary.tokenizer_json(separate, languages, limit),
    }
    content = {name: (json.dumps(value, indent=2) + "\n").encode() for name, value in objects.items()}
    with new_folder(directory) as unfinished:
        for name, data in {**files, **content, WEIGHTS: save(weights, {"format": "pt"})}.items():
            write_atomically(unfinished / name, data)
    return marian_config.differences(model, config.decode, rows, marian_weights.POSITIONS["decoder"] in weights)
