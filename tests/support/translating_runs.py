"""What the tests of translating share: a run of a tiny model with random weights, made without training it."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import jax
import numpy as np

from transformer_jax import Transformer
from transformer_jax.config import from_config_dict
from transformer_jax.data.prepare import prepare
from transformer_jax.experiment import with_vocabulary
from transformer_jax.runs.export import Weights, write_export
from transformer_jax.runs.folder import RunFolder

WORDS = ("the", "a", "big", "small", "old", "red", "dog", "cat", "house", "tree", "sees", "likes", "near", "and")


def sentence(number: int) -> str:
    """Of 1 to 4 words, the same for the same number."""
    return " ".join(np.random.default_rng(number).choice(WORDS, size=1 + number % 4))


def make_run(folder: Path, seed: int = 0, test_size: int = 13, **model) -> Path:
    """A run folder with prepared data and averaged weights. Subwords with bytes, so that any text can be spelled."""
    folder.mkdir()
    for name, count in (("train", 120), ("test", test_size)):
        for side in ("source", "target"):
            lines = [sentence(number + (side == "target")) + "\n" for number in range(count)]
            (folder / f"{name}.{side}").write_text("".join(lines))
    size = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2}
    data = {f"{side}": (str(folder / f"train.{side}"),) for side in ("source", "target")}
    data |= {f"test_{side}": (str(folder / f"test.{side}"),) for side in ("source", "target")}
    config = from_config_dict(
        {
            "seed": seed,
            "model": {"vocab_size": 300, **size, **model},
            "data": {**data, "max_length": 40},
            "train": {"compile_cache": None},
            "decode": {"extra_length": 6, "tokens_per_batch": 64},
        }
    )
    run = RunFolder(folder)
    prepared = prepare(config, run.data(config))
    config = with_vocabulary(config, prepared)
    run.record(config)
    tokens = jax.numpy.ones((1, 2), int)
    params = jax.jit(Transformer(config.model).init)(jax.random.key(seed), tokens, tokens)["params"]
    # Logits of a new model are nearly equal, and rounding would decide; these are far apart.
    params = jax.tree.map(lambda leaf: 2.5 * leaf if leaf.ndim > 1 else leaf, params)
    write_export(run.averaged, Weights(config, jax.device_get(params), prepared.tokenizer_files, [7], run.code))
    return folder


@functools.cache
def made_run() -> Path:
    """The run of `make_run`, made once in a process. Only evaluations are written into it."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    return make_run(folder / "run")
