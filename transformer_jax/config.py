"""Every option with its default, its meaning, what it affects, and which values are incompatible.

A default is the paper's value wherever the paper gives one. The options of the model are in `model_config.py`. The
options page of the site is printed from these declarations.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transformer_jax import metric_names, schema
from transformer_jax.errors import ConfigError, did_you_mean
from transformer_jax.files.record import parse_object
from transformer_jax.model_config import LARGEST_SIZE, MUP_OPTIMIZERS, TRAINED_TOKENIZER
from transformer_jax.model_config import ModelConfig as ModelConfig
from transformer_jax.model_config import PartsConfig as PartsConfig
from transformer_jax.schema import (
    PROBABILITY,
    SEED,
    Address,
    Condition,
    FilePath,
    Groups,
    NamedTexts,
    Pattern,
    Section,
    Settings,
    group,
    is_address,
    is_meant_as_address,
    option,
    when,
)

if TYPE_CHECKING:
    from ml_collections import ConfigDict


# The data, from text to batches.

SPLITS = ("train", "valid", "test")
TEST_NAME = re.compile(r"[^\W\d_]\w{0,40}")
# The generated corpora. Corpora of symbols have more options.
TOY_TASKS = ("copy", "reverse", "sort")
TASKS = (*TOY_TASKS, "grammar")
ScanSplit = Literal[
    "simple", "length", "addprim_jump", "addprim_turn_left", "template_right", "template_opposite_right",
    "template_around_right", "template_jump_around_right",
]  # fmt: skip


# The published corpora, and which of valid and test they have.
NAMED = {"scan": ("test",), "cogs": ("valid", "test"), "inflection": ("valid", "test")}

OF_TASKS, OF_TOY_TASKS = when("data.corpus", *TASKS), when("data.corpus", *TOY_TASKS)
OF_SCAN, OF_INFLECTION = when("data.corpus", "scan"), when("data.corpus", "inflection")
OF_FOLDER = when("data.corpus", "cogs", "inflection")
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
NO_TOKENIZER_FILE = when("data.tokenizer_file", None)


def _held_out(split: str, name: str) -> Condition:
    """Pairs are held out of the training text for a split that the corpus does not have."""

    def holds(config: Any) -> bool:
        data = config.data
        if data.corpus in NAMED:
            return split not in NAMED[data.corpus]
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
    language: str = option("", "language of inflection: kor for the file kor_large.train", condition=OF_INFLECTION)
    size: Literal["small", "large"] = option("large", "training set: large in that file", condition=OF_INFLECTION)

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
    source: tuple[FilePath, ...] = option((), "training text: lines, .tsv, .jsonl; also .gz", affects="corpus")
    target: tuple[FilePath, ...] = option((), "its translation, by line; not for .tsv and .jsonl", affects="corpus")
    valid_source: tuple[FilePath, ...] = option(
        (), "validation text; () = pairs held out of the training text", affects="corpus", condition=OF_FILES
    )
    valid_target: tuple[FilePath, ...] = option((), "its translation", affects="corpus", condition=OF_FILES)
    test_source: tuple[FilePath, ...] = option(
        (), "test text; () = pairs held out of the training text", affects="corpus", condition=OF_FILES
    )
    test_target: tuple[FilePath, ...] = option((), "its translation", affects="corpus", condition=OF_FILES)
    tests: NamedTexts = option(
        {},
        'more test sets, by name: {"long": {"source": "long.en", "target": "long.de"}}, on a command line also '
        "data.tests.long.source=long.en data.tests.long.target=long.de",
        affects="corpus",
        condition=OF_FILES,
    )
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
    tokenizer_file: FilePath | None = option(None, "a trained tokenizer: SentencePiece's .model, or a tokenizer.json")
    target_tokenizer_file: FilePath | None = option(None, "tokenizer file of the target; none = the same")
    normalization: Literal["identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"] = option(
        "identity",
        "SentencePiece's normalization; only identity restores the text exactly",
        condition=TRAINED_TOKENIZER,
    )
    byte_fallback: bool = option(True, "encode rare characters as bytes, not <unk>", condition=TRAINED_TOKENIZER)
    hard_vocab_limit: bool = option(
        True, "exactly model.vocab_size tokens; false = fewer if the text has no more", condition=TRAINED_TOKENIZER
    )
    character_coverage: float = option(
        0.9995, "share of 1,000 or more characters that get a token", above=0, at_most=1, condition=TRAINED_TOKENIZER
    )
    tokenizer_sentences: int = option(
        1_000_000, "most sentences, evenly spread, to train bpe or unigram on", at_least=1, condition=TRAINED_TOKENIZER
    )
    subword_sampling: float | None = option(
        None,
        "another segmentation of each training sentence in every epoch: the rate of BPE-dropout, or alpha of unigram "
        "sampling; none = always the same",
        above=0,
        at_most=1,
        condition=TRAINED_TOKENIZER,
        affects="result",
    )
    directory: FilePath | None = option(None, "folder of the prepared data; none = WORKDIR/data", affects="environment")

    # Batches.
    batching: Literal["buckets", "packing"] = option(
        "buckets", "pairs of similar length together (paper), or several pairs packed into a row", affects="result"
    )
    tokens_per_batch: int = option(
        25_000, "tokens per side of a batch, padding included, on all devices together", at_least=1, affects="result"
    )
    max_length: int = option(
        256, "most tokens per side of a training pair; longer pairs are left out", at_least=1, affects="result"
    )
    num_shapes: int = option(
        8,
        "most batch shapes of buckets; each is compiled once",
        at_least=1,
        affects="result",
        condition=when("data.batching", "buckets"),
    )
    seed: int = option(0, "random seed of the held-out pairs and of the order of the others", **SEED)
    order_seed: int | None = option(None, "seed of the training order; none = data.seed", **SEED, affects="result")

    @property
    def trains_tokenizer(self) -> bool:
        """Whether a SentencePiece model is trained: symbols are only counted, and a given file is used as it is."""
        return self.tokenizer_file is None and self.tokenizer in ("bpe", "unigram")

    @property
    def corpus_name(self) -> str:
        """The corpus and which part of it is used, as in "inflection kor_large"."""
        task = self.task
        cutoff = f" {task.cutoff}" if task.split == "length" else ""
        part = {"scan": f" {task.split}{cutoff}", "inflection": f" {task.language}_{task.size}"}
        return self.corpus + part.get(self.corpus, "")

    @property
    def texts(self) -> dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]]:
        """For each split: the path of its options up to "source" or "target", and the files of both sides."""
        prefixes = ("", "valid_", "test_")
        found = {
            split: (prefix, getattr(self, f"{prefix}source"), getattr(self, f"{prefix}target"))
            for split, prefix in zip(SPLITS, prefixes, strict=True)
        }
        for name, sides in self.tests.items():
            found[name] = (f"tests.{name}.", sides.get("source", ()), sides.get("target", ()))
        return found

    def contradictions(self) -> Iterator[str]:
        if self.corpus and (self.source or self.target):
            yield self.clash("corpus", "source", "target", hint="give only one")
        for name in self.tests:
            if not TEST_NAME.fullmatch(name) or name in SPLITS:
                yield f"tests.{name}: must be a letter and up to 40 letters, digits and _, and not {', '.join(SPLITS)}"
        for place, source, target in self.texts.values():
            if source and target and len(source) != len(target):
                yield (
                    f"{place}source = {', '.join(source)} and {place}target = {', '.join(target)}: "
                    "must be the same number of files"
                )
        if self.target_tokenizer_file and not self.tokenizer_file:
            yield self.clash("target_tokenizer_file", "tokenizer_file", hint="needs both")


# The optimizer.

# The optimizers for which beta1, beta2 and epsilon are meant. All others have optax's own defaults, or kwargs.
ADAM_FAMILY = ("adam", "adamw", "nadam", "nadamw", "amsgrad", "adamax", "adamaxw", "radam")
# Their learning rates depend on the total number of updates.
ENDING_WITH_THE_RUN = ("cosine", "linear", "wsd")
# The settings of a parameter group.
GROUP_OPTIONS = ("name", "kwargs", "beta1", "beta2", "epsilon", "weight_decay")
GROUP_SETTINGS = (*GROUP_OPTIONS, "learning_rate_factor")

ANNEALING = Condition(
    lambda config: config.optimizer.schedule in ENDING_WITH_THE_RUN or is_address(config.optimizer.schedule),
    "optimizer.schedule = cosine, linear, wsd or a custom one",
)
WITHOUT_SHARE, WSD = when("optimizer.warmup_share", None), when("optimizer.schedule", "wsd")
ADAM = Condition(
    lambda config: not {*ADAM_FAMILY, "muon"}.isdisjoint(config.optimizer.names),
    f"an optimizer of Adam's family ({', '.join(ADAM_FAMILY)}) or muon; others have optimizer.kwargs",
)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Section):
    """The optimizer and its learning-rate schedule. The defaults are from section 5.3."""

    name: str = option(
        "adam",
        "adam; muon (for hidden matrices, adam for the rest); any other optimizer of optax or optax.contrib that is "
        "not schedule-free; or path/to/file.py:Name",
    )
    beta1: float = option(0.9, "b1 of Adam and its variants", **PROBABILITY, condition=ADAM)
    beta2: float = option(0.98, "b2 of Adam and its variants", **PROBABILITY, condition=ADAM)
    epsilon: float = option(1e-9, "eps of Adam and its variants", above=0, condition=ADAM)
    kwargs: Settings = option({}, 'keyword arguments for optax: {"momentum": 0.9, "nesterov": true}')
    groups: Groups = option(
        (),
        "other settings for the parameters whose path matches a pattern; the first match counts: "
        '[["embedding/table$", {"learning_rate_factor": 0.3, "weight_decay": 0}]]',
    )

    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant", "wsd"] | Address = option(
        "inverse_sqrt",
        "learning rate after a linear warmup (inverse_sqrt: equation 3; wsd: constant, then linear)",
    )
    learning_rate: float | None = option(
        None, "peak learning rate; none = equation 3's, (d_model * warmup)^-0.5", above=0
    )
    warmup_steps: int = option(
        4000, "updates over which the rate rises to its peak", at_least=0, condition=WITHOUT_SHARE
    )
    warmup_share: float | None = option(
        None, "share of the run over which it rises; none = optimizer.warmup_steps", above=0, at_most=1
    )
    final_fraction: float = option(
        0.0, "final rate as a fraction of the peak", at_least=0, at_most=1, condition=ANNEALING
    )
    decay_fraction: float = option(
        0.1, "share of the updates after the warmup that decay", above=0, at_most=1, condition=WSD
    )

    clip_norm: float | None = option(None, "clip gradients to this global norm", above=0)
    weight_decay: float = option(0.0, "decoupled weight decay of matrices", at_least=0)
    ema: float | None = option(
        None,
        "decay of an exponential moving average of the parameters, for weights = ema (0.999); none = no average",
        above=0,
        below=1,
    )

    @property
    def names(self) -> list[str]:
        """The optimizers of all parameters: `name`, and the names in groups."""
        return [self.name, *(settings["name"] for _, settings in self.groups if "name" in settings)]

    @property
    def has_known_peak(self) -> bool:
        """Whether `peak_rate` is known before the data: with warmup_share equation 3 needs the number of updates."""
        return self.learning_rate is not None or self.warmup_share is None

    def warmup_of(self, updates: int) -> int:
        """The updates of warmup in a run of so many updates."""
        return self.warmup_steps if self.warmup_share is None else max(1, round(self.warmup_share * updates))

    def peak_rate(self, d_model: int) -> float:
        """The learning rate after the warmup. The default is equation 3's."""
        return self.learning_rate or (d_model * max(self.warmup_steps, 1)) ** -0.5

    def contradictions(self) -> Iterator[str]:
        if self.warmup_steps == 0 and self.warmup_share is None and self.schedule == "inverse_sqrt":
            yield self.clash("warmup_steps", "schedule", hint="inverse_sqrt needs a warmup of at least 1")
        for pattern, settings in self.groups:
            yield from (f"groups: {pattern!r}: {problem}" for problem in self._group_problems(settings))

    def _group_problems(self, settings: Settings) -> Iterator[str]:
        factor, name = settings.get("learning_rate_factor", 1.0), settings.get("name", self.name)
        if not isinstance(factor, (int, float)) or factor < 0:
            yield f"learning_rate_factor = {factor!r}: must be a number, at least 0"
        for setting in settings:
            if setting not in GROUP_SETTINGS:
                yield f"{setting}: no such setting; {did_you_mean(setting, GROUP_SETTINGS)}"
        try:
            options = {name: value for name, value in settings.items() if name in GROUP_OPTIONS}
            schema.build(OptimizerConfig, {"schedule": "constant", **options})
        except ConfigError as error:
            yield from error.problems
            return
        for number in ("beta1", "beta2", "epsilon", "weight_decay"):
            if isinstance(settings.get(number), str):
                yield f"{number} = {settings[number]!r}: must be a number"
        if is_meant_as_address(name) and name != self.name:
            yield f"name = {name}: a custom optimizer can only be optimizer.name"
        if name not in (*ADAM_FAMILY, "muon") and (given := {"beta1", "beta2", "epsilon"} & settings.keys()):
            yield f"{min(given)} is for Adam's family; {name} has kwargs"

    def decaying(self, after: int) -> int:
        """How many of the updates after the warmup decay. With wsd (Hu et al. 2024) the last one has the final rate."""
        return max(round(self.decay_fraction * after), 1) if self.schedule == "wsd" else after

    def same_until(self, *ends: int) -> int:
        """How many updates have the same rates whichever of these is the last one: with wsd those before any decay."""
        if self.schedule != "wsd":
            return 0
        after = [max(end - self.warmup_steps, 1) for end in ends]
        return self.warmup_steps + min(updates - self.decaying(updates) for updates in after)


# Training and decoding.

# With fewer validations, less than five are in the last fifth of a run.
FEWEST_VALIDATIONS = 20
SMOOTHING = Condition(
    lambda config: config.train.label_smoothing > 0 or config.train.loss is not None,
    "train.label_smoothing above 0, or a custom train.loss",
)
BEST = Condition(
    lambda config: config.train.keep_best > 0 or config.train.patience is not None,
    "train.keep_best of at least 1, or train.patience",
)
ANY_LENGTH = when("decode.eos", "normal", "ignored")
SEARCH, SAMPLING = when("decode.sample", False), when("decode.sample", True)
PENALTY = when("decode.length_penalty", "gnmt", "average")


@dataclasses.dataclass(frozen=True)
class MeshConfig(Section, affects="computation"):
    """The layout of the devices, on which the result does not depend."""

    data: int | None = option(None, "devices that share the batch; none = all, divided by fsdp x tensor", at_least=1)
    fsdp: int = option(1, "devices that share the batch and shard every matrix", at_least=1)
    tensor: int = option(1, "devices that shard each matrix product (tensor parallelism)", at_least=1)
    replicate: tuple[Pattern, ...] = option((), "patterns of paths of custom parameters to replicate")
    start_within: float = option(300.0, "seconds that the processes of a run wait for each other at the start", above=0)
    lost_after: float = option(60.0, "seconds without a heartbeat after which a process counts as lost", above=0)
    stalled_after: float = option(
        600.0, "seconds without progress of any process, after which all end and name the one that hangs", above=0
    )


@dataclasses.dataclass(frozen=True)
class TrainConfig(Section, affects="stopping"):
    """The training loop. A step takes a batch; it is an update, unless its gradient is not finite."""

    steps: int = option(100_000, "maximum number of steps; the first limit that is reached ends the run", at_least=1)
    epochs: float | None = option(None, "maximum number of passes over the data", above=0)
    tokens: int | None = option(None, "target tokens after which the run ends, at the end of a step", at_least=1)
    hours: float | None = option(None, "hours after which this process saves and exits", above=0, affects="environment")
    accumulate: int = option(1, "microbatches, computed in turn to save memory", at_least=1, affects="computation")
    rematerialize: Literal["auto", "activations", "nothing"] = option(
        "auto",
        "what the backward pass computes again: activations (norms, activation functions, dropout, products of heads) "
        "or nothing; auto: activations on TPUs, else nothing",
        affects="computation",
    )

    loss: Address | None = option(None, "custom loss in place of label-smoothed cross-entropy", affects="result")
    label_smoothing: float = option(0.1, "probability taken from the correct token", **PROBABILITY, affects="result")
    smoothing_over: Literal["all", "others"] = option(
        "all", "tokens that share it: all tokens, or all but the correct one", affects="result", condition=SMOOTHING
    )
    z_loss: float = option(0.0, "weight of (log Z)^2 (PaLM: 1e-4)", at_least=0, affects="result")
    max_bad_steps: int = option(10, "consecutive steps with a non-finite gradient before the run stops", at_least=1)

    log_every: int = option(100, "steps between lines in metrics.jsonl", at_least=1, affects="output")
    eval_every: int = option(1000, "steps between validations", at_least=1)
    checkpoint_every: int = option(1000, "steps between checkpoints", at_least=1)
    checkpoint_minutes: float | None = option(
        15.0, "minutes after which one is saved in any case; none = only by steps", above=0, affects="environment"
    )
    validations: int | None = option(
        None, "fewest validations: a short run validates, saves and logs more often; none = any number", at_least=1
    )
    keep_latest: int = option(5, "most recent checkpoints to keep (the paper averages 5)", at_least=1)
    keep_best: int = option(1, "best checkpoints to keep in addition", at_least=0)
    best_metric: str = option("valid_loss", "metric in metrics.jsonl that selects the best checkpoint", condition=BEST)
    best_is: Literal["lowest", "highest"] | None = option(
        None,
        "which value of train.best_metric is best; none = the lowest loss or perplexity, the highest of other metrics",
        condition=BEST,
    )
    patience: int | None = option(None, "early stopping: validations without a new best; none = never", at_least=1)
    until_flat: float | None = option(
        None,
        "the run ends when the validation loss improved by less than this fraction over the last fifth of its steps "
        "(a line through at least 5 validations after the warmup), as in 0.005; none = never",
        above=0,
        below=1,
    )

    tensorboard: bool = option(True, "also write TensorBoard files", affects="environment")
    tracker: Literal["wandb"] | Address | None = option(
        None, "also report metrics to Weights & Biases or a custom tracker (docs/training.md)", affects="environment"
    )
    compile_cache: FilePath | None = option(
        "~/.cache/transformer_jax", "folder for compiled programs; none = no cache", affects="environment"
    )
    peak_flops: float | None = option(
        None, "peak FLOP/s of a device, for MFU; none = from its data sheet", above=0, affects="environment"
    )

    def last_step(self, steps_per_epoch: int) -> int:
        """The number of steps of a run: the lower of `steps` and `epochs`."""
        if self.epochs is None:
            return self.steps
        # 0.07 epochs of 100 steps are 7 steps, though 0.07 * 100 is 7.000000000000001.
        return min(self.steps, max(math.ceil(round(self.epochs * steps_per_epoch, 6)), 1))

    @property
    def best_value(self) -> Literal["lowest", "highest"]:
        """Which value of `best_metric` is best."""
        return metric_names.best_value(self.best_metric, self.best_is)

    def contradictions(self) -> Iterator[str]:
        validations = max(self.steps // self.eval_every, self.validations or 0)
        if self.until_flat is not None and validations < FEWEST_VALIDATIONS:
            yield self.clash("until_flat", "steps", "eval_every", hint=f"needs {FEWEST_VALIDATIONS} validations")
        if self.z_loss and self.loss is not None:
            yield self.clash("z_loss", "loss", hint="is not added to a custom loss: add it there, or set it to 0")
        if self.keep_best and self.checkpoint_every % self.eval_every:
            hint = "must be a multiple of eval_every, so that the best checkpoint is known; or set keep_best to 0"
            yield self.clash("checkpoint_every", "eval_every", hint=hint)


@dataclasses.dataclass(frozen=True)
class DecodeConfig(Section, affects="translation", largest=LARGEST_SIZE):
    """Decoding. The defaults are from section 6.1."""

    beam: int = option(4, "beam size; 1 is greedy search", at_least=1, condition=SEARCH)
    length_penalty: Literal["gnmt", "average", "none"] = option(
        "gnmt", "divides log-probabilities: ((5 + n) / 6)^alpha (paper), n^alpha, or 1"
    )
    alpha: float = option(0.6, "exponent of the length penalty", at_least=-10, at_most=10, condition=PENALTY)
    extra_length: int = option(50, "most tokens beyond the source's length", at_least=0, condition=ANY_LENGTH)
    max_length: int | None = option(None, "most tokens of a translation, with <eos>; none = no limit", at_least=1)
    min_length: int = option(0, "fewest tokens of a translation, with <eos>", at_least=0, condition=ANY_LENGTH)
    max_source_length: int | None = option(
        None, "tokens after which a source is truncated; none = data.max_length (evaluation: no limit)", at_least=2
    )
    n_best: int = option(1, "translations of each source, best first; at most beam", at_least=1, affects="output")
    eos: Literal["normal", "ignored", "oracle_length"] = option(
        "normal",
        "what ends a translation: normal = <eos>; in evaluation also oracle_length = the length of its reference; "
        "ignored = the maximum length, then cut to the length of its reference",
    )
    renormalize: bool = option(False, "renormalize probabilities without <pad> and <bos>, which are never generated")

    sample: bool = option(False, "sample tokens instead of searching")
    temperature: float = option(1.0, "sampling temperature, which divides the logits", above=0, condition=SAMPLING)
    top_k: int | None = option(None, "sample from the k likeliest tokens; none = all", at_least=1, condition=SAMPLING)
    top_p: float = option(1.0, "sample the fewest tokens with this probability", above=0, at_most=1, condition=SAMPLING)
    seed: int = option(0, "random seed of sampling", **SEED, condition=SAMPLING)

    tokens_per_batch: int = option(
        4096, "tokens decoded at once: sentences x longest possible translation", at_least=1, affects="computation"
    )
    bleu_sentences: int = option(0, "pairs to translate at each validation; 0 = none", at_least=0, affects="stopping")
    bleu_tokenize: Literal["13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "flores200", "none"] = option(
        "13a",
        "sacreBLEU's tokenizer of BLEU: zh for Chinese, ja-mecab and ko-mecab (each with an extra package) for "
        "Japanese and Korean, flores200 (downloaded) for any language, none for text in tokens",
        affects="stopping",
    )
    metrics: tuple[Address, ...] = option((), "custom metrics, beside BLEU (docs/extending.md)", affects="output")

    def contradictions(self) -> Iterator[str]:
        if self.max_length is not None and self.min_length > self.max_length:
            yield self.clash("min_length", "max_length", hint="no length is possible")
        if self.n_best > (1 if self.sample else self.beam):
            yield self.clash("n_best", "sample" if self.sample else "beam", hint="there are fewer translations")


@dataclasses.dataclass(frozen=True)
class ExperimentConfig(Section):
    """A whole run."""

    seed: int = option(0, "random seed of the initial parameters and of dropout", **SEED)
    model: ModelConfig = group(ModelConfig)
    data: DataConfig = group(DataConfig)
    optimizer: OptimizerConfig = group(OptimizerConfig)
    mesh: MeshConfig = group(MeshConfig)
    train: TrainConfig = group(TrainConfig)
    decode: DecodeConfig = group(DecodeConfig)

    def contradictions(self) -> Iterator[str]:
        optimizer, train = self.optimizer, self.train
        if self.model.pad_id != 0:
            yield self.clash("model.pad_id", hint="must be 0, with which this library's batches are padded")
        has_one_file = self.data.tokenizer_file and self.data.target_tokenizer_file is None
        if has_one_file and self.model.target_vocab_size is not None:
            hint = "a second vocabulary needs data.target_tokenizer_file; or set the size to none"
            yield self.clash("model.target_vocab_size", "data.tokenizer_file", hint=hint)
        in_updates = optimizer.warmup_share is None and not is_address(optimizer.schedule)
        if in_updates and optimizer.warmup_steps > train.steps:
            yield self.clash("optimizer.warmup_steps", "train.steps", hint="the rate would never reach its peak")
        if train.until_flat is not None and optimizer.schedule in ENDING_WITH_THE_RUN:
            hint = "at the end of such a schedule every loss is flat; use inverse_sqrt or constant"
            yield self.clash("train.until_flat", "optimizer.schedule", hint=hint)
        if self.model.mup_base_d_model is not None:
            known = ", ".join(MUP_OPTIMIZERS)
            for name in sorted({*optimizer.names} - {*MUP_OPTIMIZERS}):
                yield f"optimizer.name = {name}: muP (model.mup_base_d_model) has learning rates for {known}"


def default_config() -> ConfigDict:
    """The defaults as the ConfigDict that a file in `configs/` starts from."""
    # Imported here: the library works without ml_collections.
    from ml_collections import ConfigDict

    # Neither type-safe nor locked, so that the schema reports all wrong names and types of a config file at once.
    return ConfigDict(dataclasses.asdict(ExperimentConfig()), type_safe=False)


def from_config_dict(values: ConfigDict | Mapping[str, Any]) -> ExperimentConfig:
    """The validated experiment with these values, or a `ConfigError` with all problems."""
    return schema.build(ExperimentConfig, values.to_dict() if hasattr(values, "to_dict") else values)


def to_json(config: ExperimentConfig) -> str:
    """The content of a run's config.json."""
    return json.dumps(dataclasses.asdict(config), indent=2, default=str) + "\n"


def from_json(text: str | bytes, name: str | Path = "config.json") -> ExperimentConfig:
    """The validated experiment of a config.json."""
    return from_config_dict(parse_object(text.encode() if isinstance(text, str) else text, name))


def addresses(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    """Every option that names custom code on which the results depend, with the address."""
    for path in (known.path for known in schema.options(ExperimentConfig) if known.affects != "environment"):
        values = schema.value_at(config, path)
        for value in values if isinstance(values, tuple) else (values,):
            if isinstance(value, str) and is_address(value):
                yield path, value


def training_addresses(config: ExperimentConfig) -> list[tuple[str, str]]:
    """Those of `addresses` on which the training depends: of metrics only the one by which the best is chosen."""
    return [
        (path, address)
        for path, address in addresses(config)
        if path != "decode.metrics" or address.rpartition(":")[2] == config.train.best_metric
    ]


def with_addresses(config: ExperimentConfig, change: Callable[[schema.Option, str], str]) -> ExperimentConfig:
    """The config with `change(option, address)` in place of each address of custom code."""
    return schema.with_texts(config, lambda option, text: change(option, text) if is_address(text) else text)


def why_unused(path: str, configs: Collection[ExperimentConfig]) -> str | None:
    """Why an option has no effect in any of these configs; None if it has one, or is unset."""
    option = schema.find_option(ExperimentConfig, path)
    if option.condition is None or any(map(option.has_effect, configs)):
        return None
    if all(schema.value_at(config, option.path) in (None, (), {}) for config in configs):
        return None
    return f"has no effect here: it needs {option.condition.needs}"


def placed(problems: Iterable[str], typed: Collection[str], file: str) -> list[str]:
    """Each problem after the place to correct it: an option that was typed on the command line, or else the file."""
    found = []
    for problem in problems:
        name = problem.partition(" ")[0].rstrip(":")
        is_typed = any(f"{path}.".startswith(f"{name}.") for path in typed)
        found.append(f"--config.{problem}" if is_typed else f"{file}: {problem}")
    return found


def unused_options(typed: Collection[str], configs: Collection[ExperimentConfig]) -> list[str]:
    """A message for each option that was typed on the command line of a training and has no effect.

    A config file may hold such values: it serves several commands and variants. Options of decoding are for
    later commands.
    """
    training = dict.fromkeys(path for path in typed if not path.startswith("decode."))
    return [f"--config.{path}: {why}" for path in training if (why := why_unused(path, configs)) is not None]
