"""The options of the data, from text to batches. Part of the schema, which is `config.py`."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from transformer_jax.schema import Condition, FilePath, Section, group, is_meant_as_address, option

# Random keys are made of 32 bits: larger seeds would repeat smaller ones.
MAX_SEED = 2**32 - 1
# The corpora made from rules. Those of symbols have options of their own.
TOY_TASKS = ("copy", "reverse", "sort")
TASKS = (*TOY_TASKS, "grammar")


# When options have an effect that depends on others.
OF_TASKS = Condition(
    lambda config: config.data.corpus in TASKS, f"data.corpus = {', '.join(TASKS[:-1])} or {TASKS[-1]}"
)
OF_TOY_TASKS = Condition(
    lambda config: config.data.corpus in TOY_TASKS, f"data.corpus = {', '.join(TOY_TASKS[:-1])} or {TOY_TASKS[-1]}"
)
OF_FILES = Condition(
    lambda config: not config.data.corpus, "text files (data.source), not a data.corpus, which has splits of its own"
)
OF_TFDS = Condition(
    lambda config: config.data.corpus not in ("", *TASKS) and not is_meant_as_address(config.data.corpus),
    "the name of a TFDS data set as data.corpus",
)
NO_TOKENIZER_FILE = Condition(lambda config: config.data.tokenizer_file is None, "data.tokenizer_file = none")
TRAINED_TOKENIZER = Condition(
    lambda config: config.data.trains_tokenizer,
    "a tokenizer that is trained: data.tokenizer = bpe or unigram, without a data.tokenizer_file",
)


def _held_out(split: str, name: str) -> Condition:
    """Pairs are held out of the training text for a split that the corpus does not have."""

    def holds(config: Any) -> bool:
        data = config.data
        return not (getattr(data.task, f"{split}_size") if data.corpus in TASKS else getattr(data, f"{split}_source"))

    return Condition(holds, f"a corpus without {name} data")


@dataclasses.dataclass(frozen=True)
class TaskConfig(Section, affects="corpus"):
    """The corpora made from rules (data.corpus = copy, reverse, sort or grammar)."""

    train_size: int = option(50_000, "pairs to train on", at_least=1, condition=OF_TASKS)
    valid_size: int = option(1_000, "pairs to validate on", at_least=0, condition=OF_TASKS)
    test_size: int = option(1_000, "pairs of each test split", at_least=0, condition=OF_TASKS)
    seed: int = option(0, "which sentences are made", at_least=0, at_most=MAX_SEED, condition=OF_TASKS)
    alphabet: int = option(
        26, "how many different symbols copy, reverse and sort use", at_least=2, at_most=10_000, condition=OF_TOY_TASKS
    )
    min_length: int = option(
        4, "symbols of the shortest sequence of copy, reverse and sort", at_least=1, condition=OF_TOY_TASKS
    )
    max_length: int = option(
        16, "symbols of the longest sequence of copy, reverse and sort", at_least=1, condition=OF_TOY_TASKS
    )

    def contradictions(self) -> list[str]:
        if self.min_length > self.max_length:
            return [f"min_length = {self.min_length} is more than max_length = {self.max_length}"]
        return []


@dataclasses.dataclass(frozen=True)
class CleaningConfig(Section, affects="data"):
    """Which pairs are left out of training. What is left out is counted by reason; validation and test stay whole."""

    unreadable: Literal["refuse", "drop"] = option(
        "refuse", "a line that is no UTF-8, has a NUL or the wrong columns: stop and name it, or leave it out"
    )
    drop_empty: bool = option(True, "leave out pairs with an empty or blank side")
    max_characters: int | None = option(10_000, "leave out pairs with a longer side; none = no limit", at_least=1)
    max_ratio: float | None = option(None, "leave out pairs with one side more than so many times longer", at_least=1)
    drop_copies: bool = option(False, "leave out pairs whose target is the source itself")
    drop_duplicates: bool = option(False, "leave out all but the first of equal pairs")


@dataclasses.dataclass(frozen=True)
class DataConfig(Section, affects="data"):
    """From text to batches. The defaults ask for two text files and do with them what the paper did."""

    # Where the text comes from.
    source: tuple[FilePath, ...] = option(
        (), "training text: lines, .tsv (both columns) or .jsonl; .gz and .zst too", affects="corpus"
    )
    target: tuple[FilePath, ...] = option(
        (), "its translation, line by line; left out for .tsv and .jsonl", affects="corpus"
    )
    valid_source: tuple[FilePath, ...] = option(
        (), "validation text; left out: pairs are held out of the training text", affects="corpus", condition=OF_FILES
    )
    valid_target: tuple[FilePath, ...] = option((), "its translation", affects="corpus", condition=OF_FILES)
    test_source: tuple[FilePath, ...] = option(
        (), "test text; left out: pairs are held out of the training text", affects="corpus", condition=OF_FILES
    )
    test_target: tuple[FilePath, ...] = option((), "its translation", affects="corpus", condition=OF_FILES)
    valid_size: int = option(
        1_000,
        "pairs to hold out for validation; at most a tenth of all",
        at_least=0,
        condition=_held_out("valid", "validation"),
    )
    test_size: int = option(
        1_000,
        "pairs to hold out for testing; at most a tenth of all",
        at_least=0,
        condition=_held_out("test", "test"),
    )
    corpus: str = option(
        "",
        "in place of files: copy, reverse, sort, grammar, a TFDS name (wmt14_translate/de-en), or path/to/file.py:Name",
        affects="corpus",
    )
    source_language: str = option(
        "", "which language of a TFDS pair, or which key of a .jsonl line, is the source", affects="corpus"
    )
    target_language: str = option("", "and which is the target", affects="corpus")
    tfds_data_dir: FilePath | None = option(
        None, "where TFDS data sets lie; none = TFDS's own place", affects="environment", condition=OF_TFDS
    )
    task: TaskConfig = group(TaskConfig)
    cleaning: CleaningConfig = group(CleaningConfig)

    # How it becomes tokens. How many there are is model.vocab_size.
    tokenizer: Literal["bpe", "unigram", "words", "characters"] = option(
        "bpe", "how text is cut (paper: bpe)", condition=NO_TOKENIZER_FILE
    )
    tokenizer_file: FilePath | None = option(
        None, "a SentencePiece .model (or our .json) to use instead of training one"
    )
    target_tokenizer_file: FilePath | None = option(None, "another one for the target; none = the same")
    normalization: Literal["identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"] = option(
        "identity",
        "SentencePiece's rule for rewriting text first; only identity gives the text back exactly",
        condition=TRAINED_TOKENIZER,
    )
    byte_fallback: bool = option(
        True, "spell rare characters as bytes, so that nothing is unknown", condition=TRAINED_TOKENIZER
    )
    character_coverage: float = option(
        0.9995,
        "share of all characters in the text that get a token of their own",
        above=0,
        at_most=1,
        condition=TRAINED_TOKENIZER,
    )
    tokenizer_sentences: int = option(
        1_000_000,
        "train bpe or unigram on at most so many sentences, evenly spread",
        at_least=1,
        condition=TRAINED_TOKENIZER,
    )
    directory: FilePath | None = option(
        None, "where the prepared data is kept; none = WORKDIR/data", affects="environment"
    )

    # How tokens become batches.
    batching: Literal["buckets", "packing"] = option(
        "buckets", "pairs of similar length together (paper), or many pairs in a row", affects="result"
    )
    tokens_per_batch: int = option(
        25_000, "of each side, padding included, on all devices together", at_least=1, affects="result"
    )
    max_length: int = option(
        256, "tokens; pairs with a longer side are left out of training and counted", at_least=1, affects="result"
    )
    num_shapes: int = option(
        8, "how many different batch shapes buckets may use: each is compiled once", at_least=1, affects="result"
    )
    seed: int = option(0, "of which pairs are held out, and of the order of the others", at_least=0, at_most=MAX_SEED)
    order_seed: int | None = option(
        None, "of the order of the training pairs; none = data.seed", at_least=0, at_most=MAX_SEED, affects="result"
    )

    @property
    def trains_tokenizer(self) -> bool:
        """Whether a SentencePiece model is trained: words and characters are only counted, a given file is used."""
        return self.tokenizer_file is None and self.tokenizer in ("bpe", "unigram")

    def contradictions(self) -> list[str]:
        problems = []
        if self.corpus and (self.source or self.target):
            problems.append(
                f"corpus = {self.corpus!r} and source = {_listed(self.source or self.target)}: give only one"
            )
        for name in ("", "valid_", "test_"):
            source, target = getattr(self, f"{name}source"), getattr(self, f"{name}target")
            if source and target and len(source) != len(target):
                problems.append(
                    f"{name}source has {len(source)} files ({_listed(source)}) and {name}target {len(target)} "
                    f"({_listed(target)}): give as many"
                )
        if self.normalization != "identity" and not self.trains_tokenizer:
            reason = "a given tokenizer_file has its own" if self.tokenizer_file else f"{self.tokenizer} have none"
            problems.append(f"normalization = {self.normalization!r} is a rule of trained bpe and unigram; {reason}")
        if self.target_tokenizer_file and not self.tokenizer_file:
            problems.append(f"target_tokenizer_file = {self.target_tokenizer_file!r} needs a tokenizer_file as well")
        return problems


def _listed(files: tuple[str, ...]) -> str:
    return ", ".join(files) or "none"
