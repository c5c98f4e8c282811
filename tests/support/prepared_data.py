"""A small parallel text, the options that prepare it, and reading the result back."""

import itertools
from pathlib import Path

from transformer_jax.config import DataConfig, ExperimentConfig, ModelConfig
from transformer_jax.data.prepared import Prepared

NOUNS = ("tower", "garden", "engine", "river", "teacher", "window", "bridge")
VERBS = ("waits", "turned", "sings", "grows", "sleeps")
PAIRS = [
    (f"the {noun} {verb} {number} times", f"{number} mal {verb[::-1]} {noun[::-1]}, über alles ")
    for number in range(20)
    for noun in NOUNS
    for verb in VERBS
]


def write_text(directory: Path, name: str, pairs: list[tuple[str, str]]) -> tuple[str, str]:
    paths = directory / f"{name}.en", directory / f"{name}.de"
    for side, path in enumerate(paths):
        path.write_bytes("".join(pair[side] + "\n" for pair in pairs).encode())
    return str(paths[0]), str(paths[1])


def experiment(directory: Path, pairs=PAIRS, *, vocab_size=400, target_vocab_size=None, **data) -> ExperimentConfig:
    source, target = write_text(directory, "train", pairs)
    tie = "all" if target_vocab_size is None else "none"
    return ExperimentConfig(
        model=ModelConfig(vocab_size=vocab_size, target_vocab_size=target_vocab_size, tie_embeddings=tie),
        data=DataConfig(**{"source": (source,), "target": (target,), "valid_size": 30, "test_size": 20, **data}),
    )


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def decoded(prepared: Prepared, split: str) -> list[tuple[str, str]]:
    pairs = prepared.pairs(split)
    sides = [
        (prepared.tokenizer, pairs.source_tokens, pairs.source_offsets),
        (prepared.target_tokenizer, pairs.target_tokens, pairs.target_offsets),
    ]
    texts = [
        [tokenizer.decode(tokens[start:end].tolist()) for start, end in itertools.pairwise(offsets)]
        for tokenizer, tokens, offsets in sides
    ]
    return list(zip(*texts, strict=True))
