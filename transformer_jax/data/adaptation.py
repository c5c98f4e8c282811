"""Options that adapt to a small text, so that a config for a larger one trains on it with one command.

Which ones may adapt is `data.adapt`: in `configs/text.py` all that can. Options on the command line do not.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import training_batches
from transformer_jax.data.prepared import Prepared
from transformer_jax.files.progress import tell

# A training text with fewer tokens on its longer side is small: a few thousand sentences.
SMALL = 80_000
FEWEST_BATCHES = 10  # in an epoch of a small text
SMALLEST_BATCH = 256  # tokens
FEW_SHAPES = 2  # each takes seconds to compile
EPOCHS, FEWEST_STEPS = 50, 500
VALIDATIONS, SHORTEST_INTERVAL = 20, 10  # at least so many updates apart
SAME = "for the same reason"
AS_BEFORE = "as in the resumed run"  # not reported


@dataclasses.dataclass(frozen=True)
class Adapted:
    """A config whose options have adapted, the config before, and the last reason for each option that has changed."""

    config: ExperimentConfig
    before: ExperimentConfig
    reasons: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def report(self) -> None:
        """Prints a line for each change, under a title; not for what a run that is resumed keeps."""
        found: list[str] = []
        last = None
        for path, reason in self.reasons.items():
            now, before = (schema.value_at(config, path) for config in (self.config, self.before))
            if now != before and reason != AS_BEFORE:
                found.append(f"  {path} = {now} instead of {before}: {reason if reason != last else SAME}")
                last = reason
        if found:
            tell("\n".join(["adapted, as the command line does not set them:", *found]))

    def with_values(self, wanted: Mapping[str, tuple[Any, str]]) -> "Adapted":
        """With each of these (value, reason), by option, of those that may adapt."""
        values, reasons = schema.to_dict(self.config), dict(self.reasons)
        for path, (value, reason) in wanted.items():
            if path in self.config.data.adapt and value != schema.value_at(self.config, path):
                schema.put(values, path, value)
                reasons[path] = reason
        return Adapted(schema.build(ExperimentConfig, values), self.before, reasons)

    def consistent(self) -> "Adapted":
        """Without a warmup or an interval of checkpoints that contradicts other options."""
        train, warmup, adapts = self.config.train, self.config.optimizer.warmup_steps, self.config.data.adapt
        reasons: dict[str, tuple[Any, str]] = {}
        if self.config.incomplete_warmup and "optimizer.warmup_steps" in adapts:
            reasons["optimizer.warmup_steps"] = max(1, train.steps // 10), f"a tenth of train.steps = {train.steps}"
        elif self.config.incomplete_warmup:
            reasons["train.steps"] = 2 * warmup, f"twice optimizer.warmup_steps = {warmup}"
        if train.unsaved_best and "train.checkpoint_every" in adapts:
            multiple = train.eval_every * max(1, round(train.checkpoint_every / train.eval_every))
            reasons["train.checkpoint_every"] = multiple, f"a multiple of train.eval_every = {train.eval_every}"
        elif train.unsaved_best:
            reasons["train.eval_every"] = train.checkpoint_every, "train.checkpoint_every must be a multiple of it"
        return self.with_values(reasons)


def consistent(config: ExperimentConfig) -> Adapted:
    """The config without contradictions between options that may adapt and others."""
    return Adapted(config, config).consistent()


def adapted(config: ExperimentConfig, prepared: Prepared, resumed: ExperimentConfig | None) -> Adapted:
    """The config for this data. A run that is resumed keeps the values of its config, `resumed`."""
    known = Adapted(config, config)
    if resumed is not None:
        paths = [path for path in config.data.adapt if path != "model.vocab_size"]  # which is that of the data
        known = known.with_values({path: (schema.value_at(resumed, path), AS_BEFORE) for path in paths})
    elif config.data.adapt:
        pairs = prepared.pairs("train")
        tokens = max(len(pairs.source_tokens), len(pairs.target_tokens)) + len(pairs)  # with <eos>
        if tokens < SMALL:
            longest = int(np.maximum(pairs.source_lengths, pairs.target_lengths).max()) + 1
            known = _in_small_batches(known, tokens, min(longest, config.data.max_length))
            known = _shortened(known, training_batches(known.config.data, pairs).steps_per_epoch)
    return known.consistent()


def _in_small_batches(known: Adapted, tokens: int, longest: int) -> Adapted:
    """With a model and batches for a text of so many tokens, of which the longest sentence has `longest`."""
    model, data = known.config.model, known.config.data
    text = f"the training text has {tokens:,} tokens"
    smaller = f"{text}, which a larger model would only memorize"
    reasons: dict[str, tuple[Any, str]] = {
        "model.num_encoder_layers": (max(1, model.num_encoder_layers // 2), smaller),
        "model.num_decoder_layers": (max(1, model.num_decoder_layers // 2), smaller),
        "model.d_ff": (max(1, model.d_ff // 2), smaller),
    }
    if not model.d_model % (4 * model.num_heads):
        reasons["model.d_model"] = model.d_model // 2, smaller
    reasons["data.num_shapes"] = min(data.num_shapes, FEW_SHAPES), "each takes seconds to compile"
    most = max(2 ** int(math.log2(tokens / FEWEST_BATCHES)), SMALLEST_BATCH, 2 * longest)
    if most < data.tokens_per_batch:
        reasons["data.tokens_per_batch"] = most, f"{text}, and an epoch should have at least {FEWEST_BATCHES} batches"
    return known.with_values(reasons)


def _shortened(known: Adapted, epoch: int) -> Adapted:
    """With an end, a warmup and intervals for epochs of so many batches."""
    train, warmup, adapts = known.config.train, known.config.optimizer.warmup_steps, known.config.data.adapt
    steps = max(FEWEST_STEPS, math.ceil((train.epochs or EPOCHS) * epoch / 100) * 100)
    if "optimizer.warmup_steps" not in adapts:
        steps = max(steps, 2 * warmup)
    steps = min(steps, train.steps) if "train.steps" in adapts else train.steps
    every = min(train.eval_every, max(min(SHORTEST_INTERVAL, steps), steps // VALIDATIONS))
    every = every if "train.eval_every" in adapts else train.eval_every
    at_once = {
        "train.steps": (steps, f"{steps / epoch:,.0f} epochs of {epoch} batches"),
        "optimizer.warmup_steps": (min(warmup, max(1, steps // 10)), f"a tenth of train.steps = {steps}"),
        "train.eval_every": (every, f"{steps // every} validations in {steps} updates"),
        "train.checkpoint_every": (min(train.checkpoint_every, every), "at each validation, so that the best is saved"),
        "train.log_every": (min(train.log_every, every), "at each validation"),
    }
    return known.with_values(at_once)
