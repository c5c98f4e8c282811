"""The only schema: every option of the system, its default, its meaning, and what may not stand together.

A default is the paper's value wherever the paper gives one. `docs/options.md` is printed from this file.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

from transformer_jax import schema
from transformer_jax.data_config import MAX_SEED
from transformer_jax.data_config import CleaningConfig as CleaningConfig
from transformer_jax.data_config import DataConfig as DataConfig
from transformer_jax.data_config import TaskConfig as TaskConfig
from transformer_jax.files.record import parse_object
from transformer_jax.model_config import MOST_ROWS
from transformer_jax.model_config import ModelConfig as ModelConfig
from transformer_jax.model_config import PartsConfig as PartsConfig
from transformer_jax.schema import Address, Condition, FilePath, Section, group, is_address, option

if TYPE_CHECKING:
    from ml_collections import ConfigDict


# Far beyond any search; without a limit a slip of the hand (1e30 hypotheses) would be worked on for ever.
MOST_BEAMS = 10_000
ANNEALING = Condition(
    lambda config: config.optimizer.schedule in ("cosine", "linear") or is_address(config.optimizer.schedule),
    "optimizer.schedule = cosine or linear",
)
SMOOTHING = Condition(
    lambda config: config.train.label_smoothing > 0 or config.train.loss is not None, "train.label_smoothing above 0"
)
BEST = Condition(
    lambda config: config.train.keep_best > 0 or config.train.patience is not None,
    "train.keep_best of at least 1, or train.patience",
)
SAMPLING = Condition(lambda config: config.decode.sample, "decode.sample = true (--sample)")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Section):
    """How gradients become updates. The defaults are section 5.3."""

    name: str = option(
        "adam", "adam, any optimizer of optax or optax.contrib by its name there, or path/to/file.py:Name"
    )
    beta1: float = option(0.9, "for optimizers with b1", at_least=0, below=1, together="number")
    beta2: float = option(0.98, "for optimizers with b2", at_least=0, below=1, together="number")
    epsilon: float = option(1e-9, "for optimizers with eps", above=0, together="number")
    arguments: tuple[str, ...] = option((), "further arguments of the optimizer: momentum=0.9,nesterov=true")

    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] | Address = option(
        "inverse_sqrt",
        "the rate's course after a linear warmup (inverse_sqrt is equation 3), or a whole one's own",
        together="rate",
    )
    learning_rate: float | None = option(
        None, "at its peak; none = equation 3's, (d_model * warmup)^-0.5", above=0, together="rate"
    )
    warmup_steps: int = option(4000, "updates over which the rate rises from zero", at_least=0, together="rate")
    final_fraction: float = option(
        0.0,
        "of the peak rate, where cosine and linear end",
        at_least=0,
        at_most=1,
        condition=ANNEALING,
        together="rate",
    )

    clip_norm: float | None = option(
        None, "gradients longer than this are shortened to it", above=0, together="number or none"
    )
    weight_decay: float = option(
        0.0, "decoupled, on matrices but not on biases and norms", at_least=0, together="number or none"
    )

    def contradictions(self) -> list[str]:
        if self.warmup_steps == 0 and self.schedule == "inverse_sqrt":
            return ["warmup_steps = 0: inverse_sqrt needs at least 1, its rate at step 0 has no bound"]
        return []


@dataclasses.dataclass(frozen=True)
class MeshConfig(Section, affects="computation"):
    """How the devices are laid out; the result does not depend on it."""

    data: int | None = option(None, "devices that share the batch; none = all that the other axes leave", at_least=1)
    fsdp: int = option(1, "devices that share the batch and each keep a part of every parameter", at_least=1)
    tensor: int = option(1, "devices that share each matrix product", at_least=1)
    replicate: tuple[str, ...] = option((), "patterns of parameters of one's own parts that every device keeps whole")
    start_within: float = option(300.0, "seconds that the processes of a run wait for each other at its start", above=0)
    lost_after: float = option(
        60.0, "seconds without a sign of life after which a process is lost, and ends all", above=0
    )

    def contradictions(self) -> list[str]:
        problems = []
        for pattern in self.replicate:
            try:
                re.compile(pattern)
            except re.error as error:
                problems.append(f"replicate: {pattern!r} is no regular expression: {error}")
        return problems


@dataclasses.dataclass(frozen=True)
class TrainConfig(Section, affects="stopping"):
    """The training loop. One step is one update."""

    steps: int = option(100_000, "updates until the end; what ends the run first, ends it", at_least=1)
    epochs: float | None = option(None, "passes over the data until the end", above=0)
    tokens: int | None = option(None, "target tokens until the end, the first update to reach them", at_least=1)
    hours: float | None = option(
        None, "hours of this process until it saves and ends, to be resumed", above=0, affects="environment"
    )
    accumulate: int = option(
        1, "parts into which a batch is cut to fit into memory; same update", at_least=1, affects="computation"
    )

    loss: Address | None = option(
        None, "in place of label-smoothed cross-entropy (docs/extending.md)", affects="result"
    )
    label_smoothing: float = option(
        0.1, "probability taken from the right token (eps_ls)", at_least=0, below=1, affects="result", together="number"
    )
    smoothing_over: Literal["all", "others"] = option(
        "all", "it is spread over all tokens, or over the wrong ones", affects="result", condition=SMOOTHING
    )
    max_bad_steps: int = option(10, "steps in a row without a finite gradient before the run stops", at_least=1)

    log_every: int = option(100, "updates between lines in metrics.jsonl", at_least=1, affects="output")
    eval_every: int = option(1000, "updates between validations", at_least=1)
    checkpoint_every: int = option(1000, "updates between checkpoints", at_least=1)
    keep_latest: int = option(5, "newest checkpoints that are kept (the paper averages 5)", at_least=1)
    keep_best: int = option(1, "best checkpoints that are kept besides", at_least=0)
    best_metric: str = option("valid_loss", "what best means: a name in metrics.jsonl", condition=BEST)
    best_is: Literal["lowest", "highest"] = option("lowest", "which end of it is best", condition=BEST)
    patience: int | None = option(None, "validations without a new best before the run stops; none = never", at_least=1)

    tensorboard: bool = option(True, "also write TensorBoard files", affects="environment")
    compile_cache: FilePath | None = option(
        "~/.cache/transformer_jax",
        "where compiled programs are kept for the next start; none = nowhere",
        affects="environment",
    )
    peak_flops: float | None = option(
        None, "FLOP/s of one device, for MFU; none = its data sheet (CPUs: measured)", above=0, affects="environment"
    )

    def contradictions(self) -> list[str]:
        if self.keep_best and self.checkpoint_every % self.eval_every:
            return [
                f"checkpoint_every = {self.checkpoint_every} is no multiple of eval_every = {self.eval_every}: "
                "the best checkpoint could not be told; make it one, or set keep_best to 0"
            ]
        return []


@dataclasses.dataclass(frozen=True)
class DecodeConfig(Section, affects="translation"):
    """How translations are searched for. The defaults are section 6.1."""

    beam: int = option(
        4,
        "hypotheses kept at every position; 1 is greedy search",
        at_least=1,
        at_most=MOST_BEAMS,
        condition=Condition(lambda config: not config.decode.sample, "decode.sample = false"),
    )
    length_penalty: Literal["gnmt", "average", "none"] = option(
        "gnmt", "what a log-probability is divided by: ((5 + n) / 6)^alpha (paper), n^alpha, or 1"
    )
    alpha: float = option(
        0.6,
        "the penalty's exponent",
        at_least=-10,
        at_most=10,
        condition=Condition(
            lambda config: config.decode.length_penalty != "none", "a decode.length_penalty that is not none"
        ),
    )
    extra_length: int = option(
        50, "tokens that a translation may be longer than its source", at_least=0, at_most=MOST_ROWS
    )
    max_length: int | None = option(
        None,
        "tokens of the longest translation of any source, <eos> included; none = no such limit",
        at_least=1,
        at_most=MOST_ROWS,
    )
    min_length: int = option(0, "tokens of the shortest translation, <eos> included", at_least=0, at_most=MOST_ROWS)
    max_source_length: int | None = option(
        None,
        "tokens after which a source is cut, <eos> included; none = data.max_length",
        at_least=2,
        at_most=MOST_ROWS,
    )
    n_best: int = option(
        1, "translations of each source, best first; at most beam", at_least=1, at_most=MOST_BEAMS, affects="output"
    )
    renormalize: bool = option(
        False, "probabilities among the tokens that may follow: <pad> and <bos>, which never do, get no share"
    )

    sample: bool = option(False, "draw the tokens instead of searching for the best")
    temperature: float = option(1.0, "of sampling: logits are divided by it", above=0, condition=SAMPLING)
    top_k: int | None = option(
        None, "sample from so many tokens at most; none = all", at_least=1, at_most=MOST_ROWS, condition=SAMPLING
    )
    top_p: float = option(
        1.0, "sample from the fewest tokens with so much probability", above=0, at_most=1, condition=SAMPLING
    )
    seed: int = option(0, "of sampling", at_least=0, at_most=MAX_SEED, condition=SAMPLING)

    tokens_per_batch: int = option(
        4096,
        "decoded at once, counted by the room for them: sentences x longest possible translation",
        at_least=1,
        affects="computation",
    )
    bleu_sentences: int = option(
        0, "validation pairs to translate at each validation, for bleu; 0 = none", at_least=0, affects="stopping"
    )
    metrics: tuple[Address, ...] = option(
        (), "measures of one's own, wherever BLEU is measured (docs/extending.md)", affects="output"
    )

    def contradictions(self) -> list[str]:
        if self.max_length is not None and self.min_length > self.max_length:
            return [f"min_length = {self.min_length} is more than max_length = {self.max_length}"]
        if self.sample and self.n_best > 1:
            return [f"n_best = {self.n_best} is a search's; sample = true draws one translation"]
        if not self.sample and self.n_best > self.beam:
            return [f"n_best = {self.n_best} is more than beam = {self.beam}: raise beam"]
        return []


@dataclasses.dataclass(frozen=True)
class ExperimentConfig(Section):
    """One run, whole."""

    seed: int = option(0, "of the initial parameters and of dropout", at_least=0, at_most=MAX_SEED, together="number")
    model: ModelConfig = group(ModelConfig)
    data: DataConfig = group(DataConfig)
    optimizer: OptimizerConfig = group(OptimizerConfig)
    mesh: MeshConfig = group(MeshConfig)
    train: TrainConfig = group(TrainConfig)
    decode: DecodeConfig = group(DecodeConfig)

    def contradictions(self) -> list[str]:
        if self.optimizer.warmup_steps > self.train.steps and not is_address(self.optimizer.schedule):
            return [
                f"optimizer.warmup_steps = {self.optimizer.warmup_steps} lies beyond the run of "
                f"train.steps = {self.train.steps}: the learning rate would never reach its peak"
            ]
        return []


def default_config() -> ConfigDict:
    """The schema's defaults as the ConfigDict that a file in `configs/` starts from."""
    return to_config_dict(ExperimentConfig())


def to_config_dict(config: ExperimentConfig) -> ConfigDict:
    # Imported here: the library works where ml_collections is not installed.
    from ml_collections import ConfigDict

    # Not type-safe and not locked: a wrong name or type in a config file is then found by the schema,
    # with all the others and with the nearest right name, and not by the first exception.
    return ConfigDict(schema.to_dict(config), type_safe=False)


def from_config_dict(values: ConfigDict | Mapping[str, Any]) -> ExperimentConfig:
    """The validated experiment that these values describe; a `ConfigError` lists everything that is wrong."""
    nested = values if isinstance(values, dict) else values.to_dict()  # type: ignore[union-attr]
    return schema.build(ExperimentConfig, nested)


def to_json(config: ExperimentConfig) -> str:
    """A run's config.json."""
    return json.dumps(schema.to_dict(config), indent=2, default=str) + "\n"


def from_json(text: str, name: str = "config.json") -> ExperimentConfig:
    """The experiment that a config.json holds, checked like any other."""
    return schema.build(ExperimentConfig, parse_object(text.encode(), name))


def why_unused(path: str, configs: Collection[ExperimentConfig]) -> str | None:
    """Why an option has no effect in any of these configs; None if it has one, or is unset."""
    option = next(option for option in schema.options(ExperimentConfig) if option.path == path)
    if option.condition is None or any(map(option.has_effect, configs)):
        return None
    if all(schema.value_at(config, path) in (None, ()) for config in configs):
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
