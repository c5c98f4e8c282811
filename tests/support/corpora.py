"""Pairs that are easily spoilt, and reading a corpus whole."""

from transformer_jax.config import DataConfig
from transformer_jax.data.corpora import open_corpus

PAIRS = [(f"sentence {i} one\u2028two  {'x' * (i % 7)}", f"Satz {i} é ") for i in range(101)]


def read(config: DataConfig, split: str = "train", size: int = 17) -> list[tuple[str, str]]:
    return [pair for chunk in open_corpus(config).chunks(split, size) for pair in chunk.pairs]
