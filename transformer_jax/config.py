"""The schema: every option with its default, its meaning, what it affects, and which values are incompatible.

A default is the paper's value wherever the paper gives one. The options page of the site is printed from the schema.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transformer_jax import schema
from transformer_jax.data_config import MAX_SEED
from transformer_jax.data_config import CleaningConfig as CleaningConfig
from transformer_jax.data_config import DataConfig as DataConfig
from transformer_jax.data_config import TaskConfig as TaskConfig
from transformer_jax.errors import ConfigError
from transformer_jax.files.record import parse_object
from transformer_jax.model_config import MOST_ROWS
from transformer_jax.model_config import ModelConfig as ModelConfig
from transformer_jax.model_config import PartsConfig as PartsConfig
from transformer_jax.optimizer_config import ENDING_WITH_THE_RUN
from transformer_jax.optimizer_config import OptimizerConfig as OptimizerConfig
from transformer_jax.schema import Address, Condition, FilePath, Section, group, is_address, option

if TYPE_CHECKING:
    from ml_collections import ConfigDict


# With fewer validations, less than five are in the last fifth of a run.
FEWEST_VALIDATIONS = 20
# Far beyond any search: a typing error (1e30 hypotheses) is refused instead of run.
MOST_BEAMS = 10_000
SMOOTHING = Condition(
    lambda config: config.train.label_smoothing > 0 or config.train.loss is not None,
    "train.label_smoothing above 0, or a custom train.loss",
)
BEST = Condition(
    lambda config: config.train.keep_best > 0 or config.train.patience is not None,
    "train.keep_best of at least 1, or train.patience",
)
ANY_LENGTH = Condition(lambda config: config.decode.eos != "oracle_length", "decode.eos = normal or ignored")
SAMPLING = Condition(lambda config: config.decode.sample, "decode.sample = true (--sample)")


# Options that were removed, with the defaults that they had. A config.json of an old run has them all: at its default
# such an option is left out, and with another value it is a problem.
REMOVED: dict[str, Any] = {
    "data.adapt": ...,  # with any value: what it changed is in the other options
    "optimizer.arguments": (),  # optimizer.kwargs has replaced it
}
REMOVED_TRACKERS = ("mlflow", "trackio")


@dataclasses.dataclass(frozen=True)
class MeshConfig(Section, affects="computation"):
    """The layout of the devices, on which the result does not depend."""

    data: int | None = option(
        None, "devices that share the batch; none = all that the other axes leave over", at_least=1
    )
    fsdp: int = option(1, "devices that share the batch and shard every parameter", at_least=1)
    tensor: int = option(1, "devices that shard each matrix product (tensor parallelism)", at_least=1)
    replicate: tuple[str, ...] = option(
        (), "patterns of parameters of custom modules that are replicated on every device"
    )
    start_within: float = option(300.0, "seconds that the processes of a run wait for each other at the start", above=0)
    lost_after: float = option(
        60.0, "seconds without a heartbeat after which a process counts as lost and the run stops", above=0
    )

    def contradictions(self) -> list[str]:
        return [f"replicate: {problem}" for pattern in self.replicate if (problem := schema.pattern_problem(pattern))]


@dataclasses.dataclass(frozen=True)
class TrainConfig(Section, affects="stopping"):
    """The training loop. One step is one update."""

    steps: int = option(100_000, "maximum number of updates; the first limit that is reached ends the run", at_least=1)
    epochs: float | None = option(None, "maximum number of passes over the data", above=0)
    tokens: int | None = option(
        None, "number of target tokens after which training ends, with the update that reaches it", at_least=1
    )
    hours: float | None = option(
        None, "hours after which this process saves and exits, to be resumed", above=0, affects="environment"
    )
    accumulate: int = option(
        1,
        "gradient accumulation: parts of a batch computed one after the other to save memory; the same update, but for "
        "dropout's random bits",
        at_least=1,
        affects="computation",
    )
    rematerialize: Literal["auto", "activations", "nothing"] = option(
        "auto",
        "what the backward pass computes again in place of keeping it: activations, that is all but matrix products, "
        "attention weights and residual sums, or nothing; auto is activations on TPUs and nothing elsewhere",
        affects="computation",
    )

    loss: Address | None = option(
        None, "custom loss instead of label-smoothed cross-entropy (docs/extending.md)", affects="result"
    )
    label_smoothing: float = option(
        0.1,
        "label smoothing: probability taken from the correct token (eps_ls)",
        at_least=0,
        below=1,
        affects="result",
        together="number",
    )
    smoothing_over: Literal["all", "others"] = option(
        "all",
        "tokens that share this probability: all, or all but the correct one",
        affects="result",
        condition=SMOOTHING,
    )
    z_loss: float = option(
        0.0,
        "coefficient of the z-loss, (log Z)^2 of the softmax's normalizer Z, in the training loss; PaLM has 1e-4",
        at_least=0,
        affects="result",
        together="number",
    )
    max_bad_steps: int = option(10, "consecutive steps with a non-finite gradient before the run stops", at_least=1)

    log_every: int = option(100, "updates between lines in metrics.jsonl", at_least=1, affects="output")
    eval_every: int = option(1000, "updates between validations", at_least=1)
    checkpoint_every: int = option(1000, "updates between checkpoints", at_least=1)
    validations: int | None = option(
        None,
        "fewest validations of a run: in a short one eval_every, checkpoint_every and log_every become smaller; "
        "none = no such number",
        at_least=1,
    )
    keep_latest: int = option(5, "most recent checkpoints to keep (the paper averages 5)", at_least=1)
    keep_best: int = option(1, "best checkpoints to keep in addition", at_least=0)
    best_metric: str = option(
        "valid_loss", "metric that selects the best checkpoint: a name in metrics.jsonl", condition=BEST
    )
    best_is: Literal["lowest", "highest"] = option(
        "lowest", "whether the lowest or the highest value of this metric is best", condition=BEST
    )
    patience: int | None = option(
        None, "early stopping: validations without a new best before the run stops; none = never", at_least=1
    )
    until_flat: float | None = option(
        None,
        "the run stops when its validation loss improved by less than this fraction over the last fifth of its "
        "updates (a line through at least 5 validations after the warmup), as in 0.005; none = never",
        above=0,
        below=1,
    )

    tensorboard: bool = option(True, "also write TensorBoard files", affects="environment")
    tracker: Literal["wandb"] | Address | None = option(
        None,
        "also report metrics to Weights & Biases, or to a custom tracker (docs/training.md)",
        affects="environment",
    )
    compile_cache: FilePath | None = option(
        "~/.cache/transformer_jax",
        "folder for compiled programs, reused by later starts; none = no cache",
        affects="environment",
    )
    peak_flops: float | None = option(
        None,
        "peak FLOP/s of one device, for MFU; none = from its data sheet (CPUs: measured)",
        above=0,
        affects="environment",
    )

    @property
    def unsaved_best(self) -> bool:
        """Whether the best validation may fall on a step without a checkpoint."""
        return self.keep_best > 0 and self.checkpoint_every % self.eval_every > 0

    def contradictions(self) -> list[str]:
        problems = []
        if self.until_flat is not None and self.steps < FEWEST_VALIDATIONS * self.eval_every:
            problems.append(
                f"until_flat = {self.until_flat:g} needs at least {FEWEST_VALIDATIONS} validations, and steps = "
                f"{self.steps} has one every eval_every = {self.eval_every}: lower eval_every"
            )
        if self.z_loss and self.loss is not None:
            problems.append(f"z_loss = {self.z_loss:g} is not added to a custom loss: add it there, or set it to 0")
        return problems


@dataclasses.dataclass(frozen=True)
class DecodeConfig(Section, affects="translation"):
    """Decoding. The defaults are those of section 6.1."""

    beam: int = option(
        4,
        "beam size; 1 is greedy search",
        at_least=1,
        at_most=MOST_BEAMS,
        condition=Condition(lambda config: not config.decode.sample, "decode.sample = false"),
    )
    length_penalty: Literal["gnmt", "average", "none"] = option(
        "gnmt", "divides log-probabilities: ((5 + n) / 6)^alpha (paper), n^alpha, or 1"
    )
    alpha: float = option(
        0.6,
        "exponent of the length penalty",
        at_least=-10,
        at_most=10,
        condition=Condition(
            lambda config: config.decode.length_penalty != "none", "a decode.length_penalty that is not none"
        ),
    )
    extra_length: int = option(
        50,
        "maximum number of tokens of a translation beyond the length of its source",
        at_least=0,
        at_most=MOST_ROWS,
        condition=ANY_LENGTH,
    )
    max_length: int | None = option(
        None,
        "maximum number of tokens of a translation, <eos> included; none = no such limit",
        at_least=1,
        at_most=MOST_ROWS,
    )
    min_length: int = option(
        0,
        "minimum number of tokens of a translation, <eos> included",
        at_least=0,
        at_most=MOST_ROWS,
        condition=ANY_LENGTH,
    )
    max_source_length: int | None = option(
        None,
        "number of tokens after which a source is truncated, <eos> included; none = data.max_length, and in evaluation "
        "none",
        at_least=2,
        at_most=MOST_ROWS,
    )
    n_best: int = option(
        1,
        "number of translations of each source, best first; at most beam",
        at_least=1,
        at_most=MOST_BEAMS,
        affects="output",
    )
    eos: Literal["normal", "ignored", "oracle_length"] = option(
        "normal",
        "what ends a translation: normal = <eos>; in evaluation also oracle_length = the length of its reference; "
        "ignored = the maximum length, then cut to that of its reference",
    )
    renormalize: bool = option(False, "renormalize probabilities without <pad> and <bos>, which are never generated")

    sample: bool = option(False, "sample tokens instead of searching")
    temperature: float = option(1.0, "sampling temperature, which divides the logits", above=0, condition=SAMPLING)
    top_k: int | None = option(
        None,
        "sample from the k most probable tokens; none = from all",
        at_least=1,
        at_most=MOST_ROWS,
        condition=SAMPLING,
    )
    top_p: float = option(
        1.0, "sample from the fewest tokens with this total probability", above=0, at_most=1, condition=SAMPLING
    )
    seed: int = option(0, "random seed of sampling", at_least=0, at_most=MAX_SEED, condition=SAMPLING)

    tokens_per_batch: int = option(
        4096, "tokens decoded at once: sentences x longest possible translation", at_least=1, affects="computation"
    )
    bleu_sentences: int = option(
        0,
        "number of validation pairs to translate at each validation, for BLEU and exact match; 0 = none",
        at_least=0,
        affects="stopping",
    )
    bleu_tokenize: Literal["13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "flores200", "none"] = option(
        "13a",
        "sacreBLEU's tokenizer of BLEU: zh for Chinese, ja-mecab and ko-mecab (each with a package of its own) for "
        "Japanese and Korean, flores200 (downloaded) for any language, none for text in tokens",
        affects="stopping",
    )
    metrics: tuple[Address, ...] = option(
        (), "custom metrics, computed wherever BLEU is (docs/extending.md)", affects="output"
    )

    def contradictions(self) -> list[str]:
        if self.max_length is not None and self.min_length > self.max_length:
            return [f"min_length = {self.min_length} is more than max_length = {self.max_length}"]
        if self.sample and self.n_best > 1:
            return [f"n_best = {self.n_best} needs a search; sample = true draws one translation"]
        if not self.sample and self.n_best > self.beam:
            return [f"n_best = {self.n_best} is more than beam = {self.beam}: raise beam"]
        return []


@dataclasses.dataclass(frozen=True)
class ExperimentConfig(Section):
    """A whole run."""

    seed: int = option(
        0, "random seed of the initial parameters and of dropout", at_least=0, at_most=MAX_SEED, together="number"
    )
    model: ModelConfig = group(ModelConfig)
    data: DataConfig = group(DataConfig)
    optimizer: OptimizerConfig = group(OptimizerConfig)
    mesh: MeshConfig = group(MeshConfig)
    train: TrainConfig = group(TrainConfig)
    decode: DecodeConfig = group(DecodeConfig)

    @property
    def incomplete_warmup(self) -> bool:
        """Whether the run would end before its warmup."""
        optimizer = self.optimizer
        in_updates = optimizer.warmup_share is None and not is_address(optimizer.schedule)
        return in_updates and optimizer.warmup_steps > self.train.steps

    def contradictions(self) -> list[str]:
        problems, schedule, train = [], self.optimizer.schedule, self.train
        if self.model.pad_id != 0:
            problems.append(
                f"model.pad_id = {self.model.pad_id}: batches are padded with 0; other ids are for a model that is "
                "used without this library's data"
            )
        if train.unsaved_best:
            problems.append(
                f"train.checkpoint_every = {train.checkpoint_every} is not a multiple of train.eval_every = "
                f"{train.eval_every}: the best checkpoint could not be determined; make it a multiple, or set "
                "train.keep_best to 0"
            )
        if self.incomplete_warmup:
            problems.append(
                f"optimizer.warmup_steps = {self.optimizer.warmup_steps} is more than "
                f"train.steps = {train.steps}: the learning rate would never reach its peak"
            )
        if train.until_flat is not None and schedule in ENDING_WITH_THE_RUN:
            problems.append(
                f"train.until_flat = {train.until_flat:g} and optimizer.schedule = {schedule}: at the end of such "
                "a schedule every loss is flat, and a run that ended before would miss it; use inverse_sqrt or constant"
            )
        return problems + self.model.refused_by_mup(self.optimizer.names)


def default_config() -> ConfigDict:
    """The defaults as the ConfigDict that a file in `configs/` starts from."""
    # Imported here: the library works without ml_collections.
    from ml_collections import ConfigDict

    # Neither type-safe nor locked, so that the schema reports all wrong names and types of a config file at once.
    return ConfigDict(schema.to_dict(ExperimentConfig()), type_safe=False)


def from_config_dict(values: ConfigDict | Mapping[str, Any]) -> ExperimentConfig:
    """The validated experiment with these values, or a `ConfigError` with all problems."""
    nested = values.to_dict() if hasattr(values, "to_dict") else values
    remaining, problems = _without_removed(nested)
    try:
        experiment = schema.build(ExperimentConfig, remaining)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    return experiment


def _without_removed(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The values without the options of `REMOVED`, and a problem for each that is not at its default."""
    remaining, problems = copy.deepcopy(dict(values)), []
    for path, default in REMOVED.items():
        *groups, name = path.split(".")
        section: Any = remaining
        for group_name in groups:
            section = section.get(group_name) if isinstance(section, dict) else None
        if isinstance(section, dict) and name in section:
            value = section.pop(name)
            if default is not ... and (tuple(value) if isinstance(value, list) else value) != default:
                problems.append(f"{path} = {value!r}: this option was removed (CHANGELOG.md)")
    return remaining, problems


def to_json(config: ExperimentConfig) -> str:
    """The content of a run's config.json."""
    return json.dumps(schema.to_dict(config), indent=2, default=str) + "\n"


def from_json(text: str | bytes, name: str | Path = "config.json") -> ExperimentConfig:
    """The validated experiment of a config.json."""
    values = parse_object(text.encode() if isinstance(text, str) else text, name)
    if isinstance(train := values.get("train"), dict) and train.get("tracker") in REMOVED_TRACKERS:
        train["tracker"] = None
    return from_config_dict(values)


def addresses(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    """Every option that names custom code on which the results depend, with the address."""
    for path in (each.path for each in schema.options(ExperimentConfig) if each.affects != "environment"):
        given = schema.value_at(config, path)
        for value in given if isinstance(given, tuple) else (given,):
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
    found = {path: why_unused(path, configs) for path in training}
    return [f"--config.{path}: {why}" for path, why in found.items() if why is not None]
