"""A random parallel corpus, and the options to train on it: for benchmarks of whole training runs."""

from pathlib import Path

import numpy as np

SPECIAL = 4  # pad, bos, eos, unk


def write(directory: Path, words: int, pairs: int = 20_000, shortest: int = 5, longest: int = 60) -> list[str]:
    """Writes source and target; returns the options that name them, with a vocabulary of exactly these words."""
    random = np.random.default_rng(0)
    ordinary = words - SPECIAL
    for side in ("source", "target"):
        lengths = random.integers(shortest, longest, pairs, endpoint=True)
        drawn = np.concatenate([np.arange(ordinary), random.integers(ordinary, size=max(0, lengths.sum() - ordinary))])
        cuts = np.split(drawn[: lengths.sum()], np.cumsum(lengths)[:-1])
        (directory / side).write_text("".join(" ".join(f"w{word}" for word in line) + "\n" for line in cuts))
    return [
        f"--config.data.source={directory / 'source'}",
        f"--config.data.target={directory / 'target'}",
        "--config.data.tokenizer=words",
        f"--config.data.directory={directory / 'prepared'}",
        f"--config.model.vocab_size={words}",
    ]
