"""The options of the data, from text to batches. Part of the schema, which is `config.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from transformer_jax.schema import SEED, Condition, FilePath, Section, group, is_meant_as_address, option

# The generated corpora. Those of symbols have more options.
TOY_TASKS = ("copy", "reverse", "sort")
TASKS = (*TOY_TASKS, "grammar")
ScanSplit = Literal[
    "simple", "length", "addprim_jump", "addprim_turn_left", "template_right", "template_opposite_right",
    "template_around_right", "template_jump_around_right",
]  # fmt: skip


class NamedCorpus(NamedTuple):
    """A published corpus."""

    reader: str  # module:class of data/corpora
    splits: tuple[str, ...]  # valid, test, both or neither


NAMED = {
    "scan": NamedCorpus("scan:ScanCorpus", ("test",)),
    "cogs": NamedCorpus("files:CogsCorpus", ("valid", "test")),
    "inflection": NamedCorpus("files:InflectionCorpus", ("valid", "test")),
}


# When options have an effect that depends on others.
def _of_corpora(*corpora: str) -> Condition:
    names = " or ".join([", ".join(corpora[:-1]), corpora[-1]]) if corpora[1:] else corpora[0]
    return Condition(lambda config: config.data.corpus in corpora, f"data.corpus = {names}")


OF_TASKS, OF_TOY_TASKS = _of_corpora(*TASKS), _of_corpora(*TOY_TASKS)
OF_SCAN, OF_INFLECTION = _of_corpora("scan"), _of_corpora("inflection")
OF_FOLDER = _of_corpora("cogs", "inflection")
OF_FILES = Condition(
    lambda config: not config.data.corpus, "text files (data.source), not a data.corpus with its own splits"
)
OF_TFDS = Condition(
    lambda config: config.data.corpus not in ("", *TASKS, *NAMED) and not is_meant_as_address(config.data.corpus),
    "the name of a TFDS data set as data.corpus",
)
OF_LENGTH = Condition(
    lambda config: OF_SCAN.holds(config) and config.data.task.split == "length",
    "data.corpus = scan and data.task.split = length",
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
        if data.corpus in NAMED:
            return split not in NAMED[data.corpus].splits
        return not (getattr(data.task, f"{split}_size") if data.corpus in TASKS else getattr(data, f"{split}_source"))

    return Condition(holds, f"a corpus without {name} data")


NO_VALID, NO_TEST = _held_out("valid", "validation"), _held_out("test", "test")


@dataclasses.dataclass(frozen=True)
class TaskConfig(Section, affects="corpus", condition=OF_TASKS):
    """The generated corpora (data.corpus = copy, reverse, sort or grammar), and which part of a published one."""

    train_size: int = option(50_000, "number of training pairs", at_least=1)
    valid_size: int = option(1_000, "number of validation pairs", at_least=0)
    test_size: int = option(1_000, "number of pairs of each test split", at_least=0)
    seed: int = option(0, "random seed of the sentences", **SEED)
    alphabet: int = option(26, "number of symbols", at_least=2, at_most=10_000, condition=OF_TOY_TASKS)
    min_length: int = option(4, "minimum length of a sequence of symbols", at_least=1, condition=OF_TOY_TASKS)
    max_length: int = option(16, "maximum length of a sequence of symbols", at_least=1, condition=OF_TOY_TASKS)

    split: ScanSplit = option("simple", "split of SCAN: what is only in test commands", condition=OF_SCAN)
    cutoff: int = option(22, "most actions of a training pair", at_least=22, at_most=40, condition=OF_LENGTH)
    language: str = option("", "language of inflection, as in the file kor_large.train: kor", condition=OF_INFLECTION)
    size: Literal["small", "large"] = option("large", "training set of it, as in this file", condition=OF_INFLECTION)

    def contradictions(self) -> Iterator[str]:
        if self.min_length > self.max_length:
            yield self.clash("min_length", "max_length", hint="no length is possible")


@dataclasses.dataclass(frozen=True)
class CleaningConfig(Section, affects="data"):
    """Which pairs are left out of training, counted by reason. Validation and test stay complete."""

    unreadable: Literal["refuse", "drop"] = option(
        "refuse", "lines that are not UTF-8, have a NUL or the wrong columns: stop with an error, or leave them out"
    )
    drop_empty: bool = option(True, "leave out pairs with an empty or blank side")
    max_characters: int | None = option(10_000, "leave out pairs with a longer side; none = no limit", at_least=1)
    max_ratio: float | None = option(None, "leave out pairs with a larger ratio of lengths", at_least=1)
    drop_copies: bool = option(False, "leave out pairs whose target equals the source")
    drop_duplicates: bool = option(False, "leave out repeated pairs")


@dataclasses.dataclass(frozen=True)
class DataConfig(Section, affects="data"):
    """From text to batches. The defaults expect two text files and process them as in the paper."""

    # The text.
    source: tuple[FilePath, ...] = option((), "training text: lines, .tsv, .jsonl; also .gz and .zst", affects="corpus")
    target: tuple[FilePath, ...] = option((), "its translation by line; not for .tsv and .jsonl", affects="corpus")
    valid_source: tuple[FilePath, ...] = option(
        (), "validation text; () = pairs held out of the training text", affects="corpus", condition=OF_FILES
    )
    valid_target: tuple[FilePath, ...] = option((), "its translation", affects="corpus", condition=OF_FILES)
    test_source: tuple[FilePath, ...] = option(
        (), "test text; () = pairs held out of the training text", affects="corpus", condition=OF_FILES
    )
    test_target: tuple[FilePath, ...] = option((), "its translation", affects="corpus", condition=OF_FILES)
    valid_size: int = option(1_000, "pairs held out for validation; at most a tenth", at_least=0, condition=NO_VALID)
    test_size: int = option(1_000, "pairs held out for testing; at most a tenth", at_least=0, condition=NO_TEST)
    corpus: str = option(
        "",
        f"instead of files: {', '.join([*TASKS, *NAMED])}, a TFDS name (wmt14_translate/de-en), or "
        "path/to/file.py:Name",
        affects="corpus",
    )
    corpus_folder: FilePath | None = option(None, "folder of cogs or inflection", affects="corpus", condition=OF_FOLDER)
    source_language: str = option("", "source language of a TFDS pair, or its key in .jsonl", affects="corpus")
    target_language: str = option("", "target language or key", affects="corpus")
    tfds_data_dir: FilePath | None = option(
        None, "folder of TFDS data sets; none = TFDS's default", affects="environment", condition=OF_TFDS
    )
    task: TaskConfig = group(TaskConfig)
    cleaning: CleaningConfig = group(CleaningConfig)

    # Tokens. The size of the vocabulary is model.vocab_size.
    tokenizer: Literal["bpe", "unigram", "words", "characters", "characters_and_tags", "letters_and_tags"] = option(
        "bpe", "how text is split into tokens (paper: bpe)", condition=NO_TOKENIZER_FILE
    )
    tokenizer_file: FilePath | None = option(None, "SentencePiece's .model, or tokenizer.json of Hugging Face or here")
    target_tokenizer_file: FilePath | None = option(None, "tokenizer file of the target; none = the same")
    normalization: Literal["identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"] = option(
        "identity",
        "SentencePiece's normalization; only identity restores the text exactly",
        condition=TRAINED_TOKENIZER,
    )
    byte_fallback: bool = option(True, "rare characters as bytes: nothing is unknown", condition=TRAINED_TOKENIZER)
    hard_vocab_limit: bool = option(
        True, "exactly model.vocab_size tokens; false = fewer where the text has no more", condition=TRAINED_TOKENIZER
    )
    character_coverage: float = option(
        0.9995, "share of 1,000 or more characters that get a token", above=0, at_most=1, condition=TRAINED_TOKENIZER
    )
    tokenizer_sentences: int = option(
        1_000_000, "most sentences, evenly spread, to train bpe or unigram on", at_least=1, condition=TRAINED_TOKENIZER
    )
    directory: FilePath | None = option(None, "folder of the prepared data; none = WORKDIR/data", affects="environment")

    # Batches.
    batching: Literal["buckets", "packing"] = option(
        "buckets", "pairs of similar length together (paper), or several pairs packed into a row", affects="result"
    )
    tokens_per_batch: int = option(
        25_000, "tokens of each side in a batch, padding included, on all devices", at_least=1, affects="result"
    )
    max_length: int = option(
        256, "most tokens of a training pair's side; longer pairs are left out", at_least=1, affects="result"
    )
    num_shapes: int = option(8, "most batch shapes of buckets; each is compiled once", at_least=1, affects="result")
    seed: int = option(0, "random seed of the held-out pairs and of the order of the others", **SEED)
    order_seed: int | None = option(None, "seed of the training order; none = data.seed", **SEED, affects="result")

    @property
    def trains_tokenizer(self) -> bool:
        """Whether a SentencePiece model is trained: those of symbols are only counted, a given file is used."""
        return self.tokenizer_file is None and self.tokenizer in ("bpe", "unigram")

    @property
    def corpus_name(self) -> str:
        """The corpus and which part of it is used, as in "inflection kor_large"."""
        task = self.task
        cutoff = f" {task.cutoff}" if task.split == "length" else ""
        part = {"scan": f" {task.split}{cutoff}", "inflection": f" {task.language}_{task.size}"}
        return self.corpus + part.get(self.corpus, "")

    def contradictions(self) -> Iterator[str]:
        if self.corpus and (self.source or self.target):
            yield self.clash("corpus", "source", "target", hint="give only one")
        for name in ("", "valid_", "test_"):
            source, target = getattr(self, f"{name}source"), getattr(self, f"{name}target")
            if source and target and len(source) != len(target):
                yield self.clash(f"{name}source", f"{name}target", hint="must be as many files")
        if self.target_tokenizer_file and not self.tokenizer_file:
            yield self.clash("target_tokenizer_file", "tokenizer_file", hint="needs both")
