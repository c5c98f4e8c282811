"""Which options have no effect under the values of others. One that was typed on a command line is then refused.

A config file may hold such values: it serves several commands and several variants. A command line is about one.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.corpora.tasks import TASKS, TOY_TASKS
from transformer_jax.schema import is_address, is_meant_as_address


class Rule(NamedTuple):
    """Options, when they have an effect, and what they need, in words."""

    paths: tuple[str, ...]
    has_effect: Callable[[ExperimentConfig], bool]
    needs: str


def _is_tfds(config: ExperimentConfig) -> bool:
    corpus = config.data.corpus
    return bool(corpus) and corpus not in TASKS and not is_meant_as_address(corpus)


def _holds_out(split: str) -> Callable[[ExperimentConfig], bool]:
    """Whether pairs are held out of the training text for a split: where the corpus has none of that name."""

    def has_effect(config: ExperimentConfig) -> bool:
        data = config.data
        given = getattr(data.task, f"{split}_size") if data.corpus in TASKS else getattr(data, f"{split}_source")
        return not given

    return has_effect


TASK = ("train_size", "valid_size", "test_size", "seed")
SUBWORDS = ("byte_fallback", "character_coverage", "tokenizer_sentences")
RULES = (
    Rule(
        ("decode.temperature", "decode.top_k", "decode.top_p", "decode.seed"),
        lambda config: config.decode.sample,
        "decode.sample = true (--sample)",
    ),
    Rule(("decode.beam",), lambda config: not config.decode.sample, "decode.sample = false"),
    Rule(
        ("decode.alpha",),
        lambda config: config.decode.length_penalty != "none",
        "a decode.length_penalty that is not none",
    ),
    Rule(
        tuple(f"data.task.{name}" for name in TASK),
        lambda config: config.data.corpus in TASKS,
        f"data.corpus = {', '.join(TASKS[:-1])} or {TASKS[-1]}",
    ),
    Rule(
        ("data.task.alphabet", "data.task.min_length", "data.task.max_length"),
        lambda config: config.data.corpus in TOY_TASKS,
        f"data.corpus = {', '.join(TOY_TASKS[:-1])} or {TOY_TASKS[-1]}",
    ),
    Rule(
        ("data.valid_source", "data.valid_target", "data.test_source", "data.test_target"),
        lambda config: not config.data.corpus,
        "text files (data.source), not a data.corpus, which has splits of its own",
    ),
    Rule(("data.tfds_data_dir",), _is_tfds, "the name of a TFDS data set as data.corpus"),
    Rule(("data.valid_size",), _holds_out("valid"), "a corpus without validation data"),
    Rule(("data.test_size",), _holds_out("test"), "a corpus without test data"),
    Rule(("data.tokenizer",), lambda config: config.data.tokenizer_file is None, "data.tokenizer_file = none"),
    Rule(
        tuple(f"data.{name}" for name in SUBWORDS),
        lambda config: config.data.tokenizer_file is None and config.data.tokenizer in ("bpe", "unigram"),
        "a tokenizer that is trained: data.tokenizer = bpe or unigram, without a data.tokenizer_file",
    ),
    Rule(
        ("model.max_length",),
        lambda config: config.model.positions == "learned" or config.model.parts.positions is not None,
        "model.positions = learned",
    ),
    Rule(
        ("optimizer.final_fraction",),
        lambda config: config.optimizer.schedule in ("cosine", "linear") or is_address(config.optimizer.schedule),
        "optimizer.schedule = cosine or linear",
    ),
    Rule(
        ("train.smoothing_over",),
        lambda config: config.train.label_smoothing > 0 or config.train.loss is not None,
        "train.label_smoothing above 0",
    ),
    Rule(
        ("train.best_metric", "train.best_is"),
        lambda config: config.train.keep_best > 0 or config.train.patience is not None,
        "train.keep_best of at least 1, or train.patience",
    ),
)


def complaint(path: str, configs: Collection[ExperimentConfig]) -> str | None:
    """Why an option has no effect in any of these configs; None where it has one, or is set to nothing."""
    if all(schema.value_at(config, path) in (None, ()) for config in configs):
        return None
    for rule in RULES:
        if path in rule.paths and not any(map(rule.has_effect, configs)):
            return f"has no effect here: it needs {rule.needs}"
    return None


def unused(typed: Collection[str], configs: Collection[ExperimentConfig]) -> list[str]:
    """A complaint for each option typed on a command line that trains. What it says of decoding has an effect later:
    it becomes the run's own way to decode."""
    training = dict.fromkeys(path for path in typed if not path.startswith("decode."))
    found = {path: complaint(path, configs) for path in training}
    return [f"--config.{path}: {why}" for path, why in found.items() if why is not None]
