"""The schema: every option with its default, its meaning, what it affects, and which values are incompatible.

A default is the paper's value wherever the paper gives one. The options page of the site is printed from the schema.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transformer_jax import schema
from transformer_jax.data_config import CleaningConfig as CleaningConfig
from transformer_jax.data_config import DataConfig as DataConfig
from transformer_jax.data_config import TaskConfig as TaskConfig
from transformer_jax.files.record import parse_object
from transformer_jax.model_config import LARGEST_SIZE, MUP_OPTIMIZERS
from transformer_jax.model_config import ModelConfig as ModelConfig
from transformer_jax.model_config import PartsConfig as PartsConfig
from transformer_jax.optimizer_config import ENDING_WITH_THE_RUN
from transformer_jax.optimizer_config import OptimizerConfig as OptimizerConfig
from transformer_jax.schema import (
    PROBABILITY,
    SEED,
    Address,
    Condition,
    FilePath,
    Pattern,
    Section,
    group,
    is_address,
    option,
)

if TYPE_CHECKING:
    from ml_collections import ConfigDict


# Options of earlier versions, which files of runs have. Only where they are set they matter; data.adapt is in others.
GONE = {"data": ("adapt", "split_seed"), "optimizer": ("arguments",)}
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
ANY_LENGTH = Condition(lambda config: config.decode.eos != "oracle_length", "decode.eos = normal or ignored")
SEARCH = Condition(lambda config: not config.decode.sample, "decode.sample = false")
PENALTY = Condition(lambda config: config.decode.length_penalty != "none", "decode.length_penalty = gnmt or average")
SAMPLING = Condition(lambda config: config.decode.sample, "decode.sample = true (--sample)")


@dataclasses.dataclass(frozen=True)
class MeshConfig(Section, affects="computation"):
    """The layout of the devices, on which the result does not depend."""

    data: int | None = option(None, "devices that share the batch; none = all that are left over", at_least=1)
    fsdp: int = option(1, "devices that share the batch and shard every matrix", at_least=1)
    tensor: int = option(1, "devices that shard each matrix product (tensor parallelism)", at_least=1)
    replicate: tuple[Pattern, ...] = option((), "patterns of parameters of custom modules that every device has whole")
    start_within: float = option(300.0, "seconds that the processes of a run wait for each other at the start", above=0)
    lost_after: float = option(60.0, "seconds without a heartbeat after which a process counts as lost", above=0)
    stalled_after: float = option(
        600.0, "seconds that processes wait for one that takes no steps, before all end and name it", above=0
    )


@dataclasses.dataclass(frozen=True)
class TrainConfig(Section, affects="stopping"):
    """The training loop. A step takes a batch; it is an update, unless its gradient is not finite."""

    steps: int = option(100_000, "maximum number of steps; the first limit that is reached ends the run", at_least=1)
    epochs: float | None = option(None, "maximum number of passes over the data", above=0)
    tokens: int | None = option(None, "target tokens after which the run ends, at the end of a step", at_least=1)
    hours: float | None = option(None, "hours after which this process saves and exits", above=0, affects="environment")
    accumulate: int = option(1, "parts of a batch computed in turn, to save memory", at_least=1, affects="computation")
    rematerialize: Literal["auto", "activations", "nothing"] = option(
        "auto",
        "what the backward pass computes again: activations (all but matrix products, attention weights and residual "
        "sums) or nothing; auto: activations on TPUs, else nothing",
        affects="computation",
    )

    loss: Address | None = option(None, "custom loss in place of label-smoothed cross-entropy", affects="result")
    label_smoothing: float = option(0.1, "probability taken from the correct token", **PROBABILITY, affects="result")
    smoothing_over: Literal["all", "others"] = option(
        "all", "tokens that share it: all, or all but the correct one", affects="result", condition=SMOOTHING
    )
    z_loss: float = option(0.0, "weight of (log Z)^2 (PaLM: 1e-4)", at_least=0, affects="result", together="number")
    max_bad_steps: int = option(10, "consecutive steps with a non-finite gradient before the run stops", at_least=1)

    log_every: int = option(100, "steps between lines in metrics.jsonl", at_least=1, affects="output")
    eval_every: int = option(1000, "steps between validations", at_least=1)
    checkpoint_every: int = option(1000, "steps between checkpoints", at_least=1)
    checkpoint_minutes: float | None = option(
        15.0, "minutes after which there is one in any case; none = only by steps", above=0, affects="environment"
    )
    validations: int | None = option(
        None, "fewest validations: a short run validates, saves and logs more often; none = any number", at_least=1
    )
    keep_latest: int = option(5, "most recent checkpoints to keep (the paper averages 5)", at_least=1)
    keep_best: int = option(1, "best checkpoints to keep in addition", at_least=0)
    best_metric: str = option("valid_loss", "metric in metrics.jsonl that selects the best checkpoint", condition=BEST)
    best_is: Literal["lowest", "highest"] = option("lowest", "which of its values is best", condition=BEST)
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

    def contradictions(self) -> Iterator[str]:
        if self.until_flat is not None and self.steps < FEWEST_VALIDATIONS * self.eval_every:
            yield self.clash("until_flat", "steps", "eval_every", hint=f"needs {FEWEST_VALIDATIONS} validations")
        if self.z_loss and self.loss is not None:
            yield self.clash("z_loss", "loss", hint="is not added to a custom loss: add it there, or set it to 0")
        if self.keep_best and self.checkpoint_every % self.eval_every:
            hint = "must be a multiple, so that the best checkpoint is known; or set keep_best to 0"
            yield self.clash("checkpoint_every", "eval_every", hint=hint)


@dataclasses.dataclass(frozen=True)
class DecodeConfig(Section, affects="translation", largest=LARGEST_SIZE):
    """Decoding. The defaults are those of section 6.1."""

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
        "ignored = the maximum length, then cut to that of its reference",
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
    bleu_sentences: int = option(0, "validation pairs to translate each time; 0 = none", at_least=0, affects="stopping")
    bleu_tokenize: Literal["13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "flores200", "none"] = option(
        "13a",
        "sacreBLEU's tokenizer of BLEU: zh for Chinese, ja-mecab and ko-mecab (each with a package of its own) for "
        "Japanese and Korean, flores200 (downloaded) for any language, none for text in tokens",
        affects="stopping",
    )
    metrics: tuple[Address, ...] = option((), "custom metrics, wherever BLEU is (docs/extending.md)", affects="output")

    def contradictions(self) -> Iterator[str]:
        if self.max_length is not None and self.min_length > self.max_length:
            yield self.clash("min_length", "max_length", hint="no length is possible")
        if self.n_best > (1 if self.sample else self.beam):
            yield self.clash("n_best", "sample" if self.sample else "beam", hint="there are not so many translations")


@dataclasses.dataclass(frozen=True)
class ExperimentConfig(Section):
    """A whole run."""

    seed: int = option(0, "random seed of the initial parameters and of dropout", **SEED, together="number")
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
    nested = dict(values.to_dict() if hasattr(values, "to_dict") else values)
    for group_name, names in GONE.items():
        if isinstance(inner := nested.get(group_name), Mapping):
            gone = {name for name in names if name == "adapt" or not inner.get(name)}
            nested[group_name] = {name: value for name, value in inner.items() if name not in gone}
    return schema.build(ExperimentConfig, nested)


def to_json(config: ExperimentConfig) -> str:
    """The content of a run's config.json."""
    return json.dumps(dataclasses.asdict(config), indent=2, default=str) + "\n"


def from_json(text: str | bytes, name: str | Path = "config.json") -> ExperimentConfig:
    """The validated experiment of a config.json."""
    values = parse_object(text.encode() if isinstance(text, str) else text, name)
    if isinstance(train := values.get("train"), dict) and train.get("tracker") in ("mlflow", "trackio"):
        train["tracker"] = None  # version 1.0.0 had these two
    return from_config_dict(values)


def addresses(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    """Every option that names custom code on which the results depend, with the address."""
    for path in (known.path for known in schema.options(ExperimentConfig) if known.affects != "environment"):
        values = schema.value_at(config, path)
        for value in values if isinstance(values, tuple) else (values,):
            if isinstance(value, str) and is_address(value):
                yield path, value


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


def unused_options(typed: Collection[str], configs: Collection[ExperimentConfig]) -> list[str]:
    """A message for each option that was typed on the command line of a training and has no effect.

    A config file may hold such values: it serves several commands and variants. Options of decoding are those of the
    later commands.
    """
    training = dict.fromkeys(path for path in typed if not path.startswith("decode."))
    return [f"--config.{path}: {why}" for path in training if (why := why_unused(path, configs)) is not None]
