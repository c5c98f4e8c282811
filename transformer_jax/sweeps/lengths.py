"""How long the sentences of a run are: exactly, from prepared data, or estimated from the beginning of its text."""

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.corpora import NAMED, open_corpus
from transformer_jax.data.corpora.corpus import Pair
from transformer_jax.data.prepare import LARGEST_SHARE_HELD_OUT
from transformer_jax.data.prepared import MANIFEST, Prepared, TokenPairs
from transformer_jax.data.tokenizer import EOS, Tokenizer, load_tokenizer
from transformer_jax.data.vocabulary import train_sentencepiece, train_symbols
from transformer_jax.data_config import TASKS
from transformer_jax.errors import BadInput
from transformer_jax.experiment import with_vocabulary
from transformer_jax.sweeps.spec import LENGTH

# Pairs that a held-out split is taken to have if the text is not there yet.
HELD_OUT = 2000
# Pairs of a split whose lengths are measured, and the most that batches are made of.
SAMPLE, MOST_PAIRS = 2000, 20_000
# Tokens of a word, if the sample is too little to train the tokenizer: 1.15 were measured with 2,000 on the grammar.
TOKENS_PER_WORD = 1.2
# Text is counted for at most so long.
SECONDS = 3.0
# Of the time to read text, the share that the rest of preparing it adds: measured on the grammar.
REST = 0.15


class Lengths(NamedTuple):
    """Pairs of random tokens with the lengths of each split, and the config with its vocabulary."""

    config: ExperimentConfig
    splits: dict[str, TokenPairs]
    source: Literal["prepared", "sampled", "assumed"]
    preparation: float | None  # seconds to prepare the data; None if its size is not known


def lengths_of(config: ExperimentConfig, place: Path, tests: Sequence[str]) -> Lengths:
    """The lengths of a run whose data is, or will be, prepared in `place`."""
    if (place / MANIFEST).is_file():
        prepared = Prepared.open(place)
        ready = {split: pairs for split in prepared.splits if len(pairs := prepared.pairs(split))}
        return Lengths(with_vocabulary(config, prepared), ready, "prepared", 0.0)
    if config.data.corpus not in NAMED:  # it may have to be downloaded
        return _assumed(config, tests)
    try:
        texts, counts, seconds = _sample(config)
    except BadInput:  # such as a file that is not there yet
        return _assumed(config, tests)
    tokenizer = _tokenizer(config, texts["train"])
    if tokenizer is not None:
        model = dataclasses.replace(config.model, vocab_size=tokenizer.vocab_size)
        config = dataclasses.replace(config, model=model)
    splits = {}
    for split, sample in texts.items():
        sources, targets = (_lengths(side, tokenizer) for side in zip(*sample, strict=True))
        splits[split] = random_pairs(config, sources, targets, min(counts[split], MOST_PAIRS))
    return Lengths(config, splits, "sampled", None if seconds is None else (1 + REST) * seconds)


def _assumed(config: ExperimentConfig, tests: Sequence[str]) -> Lengths:
    """Sentences of `LENGTH` tokens, as in the FLOPs of --dry-run."""
    sizes = {"train": MOST_PAIRS, **dict.fromkeys(("valid", *tests), HELD_OUT)}
    pairs = {split: random_pairs(config, [LENGTH - 1], [LENGTH - 1], size) for split, size in sizes.items()}
    return Lengths(config, pairs, "assumed", None)


def _sample(config: ExperimentConfig) -> tuple[dict[str, list[Pair]], dict[str, int], float | None]:
    """The first pairs of each split, how many it has, and the seconds to read all; None if that was not counted."""
    data, seconds, is_whole = config.data, 0.0, True
    sizes = {split: getattr(data.task, f"{split}_size") for split in ("train", "valid", "test")}
    if is_task := data.corpus in TASKS:  # which generate a whole split at once
        few = {f"{split}_size": min(size, SAMPLE) for split, size in sizes.items()}
        data = dataclasses.replace(data, task=dataclasses.replace(data.task, **few))
    texts: dict[str, list[Pair]] = {}
    counts: dict[str, int] = {}
    corpus = open_corpus(data)
    for split in corpus.splits:
        begin, texts[split], counts[split] = time.monotonic(), [], 0
        for chunk in corpus.chunks(split, SAMPLE):
            texts[split] = texts[split] or chunk.pairs
            counts[split] += len(chunk.pairs)
            if time.monotonic() - begin > SECONDS and not is_task:
                is_whole = False
                break
        taken = time.monotonic() - begin
        if is_task:
            read, counts[split] = max(counts[split], 1), sizes.get(split, sizes["test"])
            taken *= counts[split] / read
        seconds += taken
    if not texts["train"]:
        raise BadInput("data: there are no training pairs")
    for split, size in (("valid", data.valid_size), ("test", data.test_size)):
        if split not in texts and (held := min(size, counts["train"] // LARGEST_SHARE_HELD_OUT)):
            texts[split], counts[split] = texts["train"], held
    return {split: pairs for split, pairs in texts.items() if pairs}, counts, seconds if is_whole else None


def _tokenizer(config: ExperimentConfig, pairs: list[Pair]) -> Tokenizer | None:
    """The given tokenizer, or one of the sample's text; None if that is too little for its vocabulary."""
    data, texts = config.data, [text for pair in pairs for text in pair]
    if data.tokenizer_file is not None:
        return load_tokenizer(Path(data.tokenizer_file))
    if data.tokenizer != "bpe" and data.tokenizer != "unigram":
        return train_symbols(texts, data.tokenizer)
    with contextlib.suppress(BadInput):
        return train_sentencepiece(
            lambda: texts,
            data.tokenizer,
            config.model.vocab_size,
            normalization=data.normalization,
            byte_fallback=data.byte_fallback,
            character_coverage=data.character_coverage,
        )
    return None


def _lengths(texts: Sequence[str], tokenizer: Tokenizer | None) -> list[int]:
    """The number of tokens of each text."""
    if tokenizer is None:
        return [max(1, round(TOKENS_PER_WORD * len(text.split()))) for text in texts]
    return [max(1, len(tokens)) for tokens in tokenizer.encode_batch(list(texts))]


def random_pairs(config: ExperimentConfig, sources: Sequence[int], targets: Sequence[int], count: int) -> TokenPairs:
    """So many pairs of random tokens, with these lengths in turn."""
    arrays = []
    rng = np.random.default_rng(0)
    for given in (sources, targets):
        lengths = np.resize(np.array(given), count)
        arrays += [
            rng.integers(EOS + 1, max(config.model.vocab_size, EOS + 2), lengths.sum(), dtype=np.int32),
            np.concatenate([[0], np.cumsum(lengths)]),
        ]
    return TokenPairs(*arrays)
