"""Base configs of the experiments in this folder, one for each scale.

- `demo`: the embedded English-German grammar and a model small enough for a sweep of many runs on two CPU cores.
- `small`: the same model on few sentences of the grammar, so that it must generalise, trained until its validation loss
  is flat. For experiments that compare what models converge to; `demo` compares how fast they learn.
- `eight_seeds`: the same model on 16,000 sentences for a fixed number of updates, for few rows and many seeds.
- `multi30k`: the recipe of `configs/multi30k_tiny.py`. Give its files on the command line:
  `--config.data.source=... --config.data.target=...`, and those for validation and test.
- `paper`: `configs/base.py`, WMT 2014 English to German from TFDS. Not run yet.

An experiment loads this file by its path (`load_module`), so that it works from any directory.
"""

from pathlib import Path

from ml_collections import ConfigDict

from transformer_jax.config import default_config
from transformer_jax.errors import BadInput
from transformer_jax.extension import load_module
from transformer_jax.shipped import configs

SCALES = ("demo", "multi30k", "paper")
# Of experiments that need converged models.
CONVERGED_SCALES = ("demo", "small", "eight_seeds", "multi30k", "paper")
CONFIGS = configs()


def base(scale: str) -> ConfigDict:
    """The base config of a scale."""
    if scale not in CONVERGED_SCALES:
        raise BadInput(f"--scale={scale}: there are {', '.join(CONVERGED_SCALES)}")
    return {"demo": demo, "small": small, "eight_seeds": eight_seeds, "multi30k": multi30k, "paper": paper}[scale]()


def demo() -> ConfigDict:
    """The paper's base model made eight times narrower and half as deep, trained for a minute.

    All ratios that Table 3 varies are kept: h = 8, d_ff = 4 d_model, dropout and label smoothing 0.1, and the peak of
    the learning rate by equation 3, (d_model * warmup)^-0.5, so that a wider model gets a lower rate, as in the paper.
    Differences from the paper that save time: the rate decays linearly to zero, because the run would end
    while equation 3's rate is still high; a token is a word, of which the grammar has two thousand, because with BPE
    the same text would be a fifth longer; pairs are packed into rows of one shape, which is compiled once.
    """
    config = default_config()
    config.data.corpus = "grammar"
    config.data.task.valid_size = 500
    config.data.task.test_size = 500
    config.data.tokenizer = "words"
    config.data.batching = "packing"
    config.data.tokens_per_batch = 1024
    config.data.max_length = 40
    config.model.vocab_size = 3000  # more than there are words
    config.model.max_length = 128  # rows of learned positions: the longest test sentence has 60 words
    config.model.num_encoder_layers = 3
    config.model.num_decoder_layers = 3
    config.model.d_model = 64
    config.model.d_ff = 256
    config.model.num_heads = 8
    config.optimizer.schedule = "linear"
    config.optimizer.warmup_steps = 225
    config.train.steps = 450
    config.train.log_every = 50
    config.train.eval_every = 150
    config.train.checkpoint_every = 150
    config.train.keep_latest = 2  # as training together needs
    config.train.keep_best = 0
    config.train.tensorboard = False
    # All test sentences at once, and room enough for any translation: one search is compiled.
    config.decode.tokens_per_batch = 65_536
    config.decode.extra_length = 12
    config.decode.max_source_length = 128  # also of sentences longer than in training
    return config


def small() -> ConfigDict:
    """The model of `demo` on 4,000 pairs, which it sees 40 to 900 times, until its loss is flat.

    With so few pairs a model without dropout or label smoothing overfits, unlike at demo scale; and the task is not
    solved: words must be used in constructions in which they were never seen.
    """
    config = demo()
    config.data.task.train_size = 4000
    config.optimizer.schedule = "inverse_sqrt"  # equation 3; a rate that falls to zero would make any loss flat
    config.optimizer.warmup_steps = 400
    config.train.until_flat = 0.005
    config.train.steps = 30_000  # more than a run needs
    # Validation losses differ by a percent from one to the next: the trend of a fifth of a run needs many.
    config.train.eval_every = 25
    config.train.checkpoint_every = 500
    config.train.log_every = 100
    return config


def eight_seeds() -> ConfigDict:
    """The model of `small` on 16,000 pairs, which it sees about 12 times, for a fixed number of updates.

    The number is from a pilot with another seed: dropout lowers the validation loss from 1,500 updates on.
    """
    config = small()
    config.data.task.train_size = 16_000
    config.train.until_flat = None
    config.train.steps = 2500
    config.train.eval_every = 500
    config.train.checkpoint_every = 500
    return config


def multi30k() -> ConfigDict:
    """Files are given on the command line."""
    config = load_module(str(CONFIGS["multi30k_tiny"])).get_config()
    # Every run is as long as every other: a run that stops early would be compared with one that did not.
    config.train.patience = None
    config.train.steps = 4000
    return config


def paper() -> ConfigDict:
    return load_module(str(CONFIGS["base"])).get_config()


def own(file: str, name: str) -> str:
    """The address of a class or function in an experiment's own file, for `model.parts.*` and for analyses.

    Relative to where the command runs, as if typed there: a run folder then tells nothing of the machine.
    """
    path = Path(file).resolve()
    here = Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{name}"
