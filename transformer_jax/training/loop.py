"""The loop: restore, step, evaluate, save. No maths here; what it evaluates besides the loss is handed in."""

import collections
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import EvaluationBatches, TrainingBatches, training_batches
from transformer_jax.data.prefetch import Prefetcher
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import BadInput, Failed
from transformer_jax.training import sharding
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.compilation import CompileWatch
from transformer_jax.training.header import header
from transformer_jax.training.metrics import Metrics, ProgressLine
from transformer_jax.training.optimizer import make_optimizer, make_schedule
from transformer_jax.training.run_folder import RunFolder
from transformer_jax.training.signals import StopSignals
from transformer_jax.training.step import (
    IntervalSums,
    Pulse,
    TrainState,
    abstract_state,
    init_state,
    make_eval_step,
    make_train_step,
)
from transformer_jax.training.throughput import Throughput

# Called with the parameters at each validation; what it returns is written to metrics.jsonl under its names.
Evaluator = Callable[[Any], Mapping[str, float]]
# How many steps the host may be ahead of the devices.
STEPS_AHEAD = 2


@dataclasses.dataclass
class Memory:
    """What the loop itself remembers; it is saved with each checkpoint."""

    target_tokens: int = 0
    best: float | None = None
    validations_since_best: int = 0


@dataclasses.dataclass(frozen=True)
class Ending:
    """Why a run ends, and whether that is its own end: one that was only stopped goes on another time."""

    why: str
    final: bool = True


def train(config: ExperimentConfig, prepared: Prepared, folder: RunFolder, evaluators: Sequence[Evaluator] = ()) -> str:
    """Trains, or goes on training, until the config's end; returns why it ended."""
    loop = Loop(config, prepared, folder, evaluators)
    folder.settle(config)  # only now: what cannot be trained leaves no trace of a run
    keep = config.train.keep_latest, config.train.keep_best
    is_first = jax.process_index() == 0
    with (
        StopSignals() as signals,
        Checkpoints(folder.checkpoints, *keep) as checkpoints,
        Metrics(folder.metrics, config.train.tensorboard, writes=is_first) as metrics,
    ):
        state = loop.start(checkpoints)
        with ProgressLine(int(state.step), loop.last_step, shown=is_first) as progress:
            return loop.run(state, checkpoints, metrics, progress, signals)


class Loop:
    """One run's data, programs and memory."""

    def __init__(
        self, config: ExperimentConfig, prepared: Prepared, folder: RunFolder, evaluators: Sequence[Evaluator]
    ):
        self.config, self.folder, self.evaluators = config, folder, evaluators
        self.watch = CompileWatch()
        self.mesh = sharding.make_mesh(config.mesh)
        # Batches are cut into equal parts, for the devices and for accumulation; empty rows fill up.
        parts = sharding.batch_devices(self.mesh) * config.train.accumulate
        self.batches = training_batches(config.data, prepared.pairs("train"), parts)
        self.validation = validation_batches(config, prepared, self.mesh)
        self.data = prepared.fingerprint
        check(config, self.batches, self.validation, watched=bool(evaluators))
        self.last_step = config.train.steps
        if config.train.epochs is not None:
            self.last_step = min(self.last_step, math.ceil(config.train.epochs * self.batches.steps_per_epoch))
        self.schedule = make_schedule(config.optimizer, config.model.d_model, self.last_step)
        self.optimizer = make_optimizer(config.optimizer, self.schedule)
        self.plan = abstract_state(config, self.optimizer, self.mesh)
        self.step_once = make_train_step(config, self.optimizer, self.mesh, self.plan)
        self.evaluate_once = make_eval_step(config, self.mesh)
        self.new_sums = jax.jit(IntervalSums.zero, out_shardings=NamedSharding(self.mesh, PartitionSpec()))
        self.memory, self.warned = Memory(), False
        self.throughput = Throughput(config, self.batches.statistics(), self.mesh.devices.size)

    def start(self, checkpoints: Checkpoints) -> TrainState:
        """The newest undamaged checkpoint's state, or a new one."""
        restored = checkpoints.restore_newest(self.plan)
        self.tell = ProgressLine(0, 0, shown=jax.process_index() == 0).tell
        if restored is None:
            self.folder.drop_metrics_after(-1)
            state = init_state(self.config, self.optimizer, self.plan)
        else:
            for step, reason in restored.damaged.items():
                aside = checkpoints.set_aside(step)
                self.tell(f"warning: the checkpoint of step {step} is damaged ({reason}); moved to {aside}")
            if restored.notes["data"] != self.data or restored.notes["batches"] != self.batches.digest:
                raise BadInput(
                    f"{self.folder.path}: its prepared data has changed since the checkpoint of step {restored.step}; "
                    "put the old data back, or use another --workdir"
                )
            self.memory = Memory(**restored.notes["memory"])
            self.folder.drop_metrics_after(restored.step)
            state = restored.state
        about = (self.config, self.batches, self.mesh, self.schedule, self.last_step, self.throughput, state.params)
        self.tell(header(*about))
        if self.validation is None:
            self.tell("warning: there is no validation data: the loss on unseen sentences will not be known")
        if restored is not None:
            self.tell(f"going on from the checkpoint of step {restored.step:,}")
        return state

    def run(
        self,
        state: TrainState,
        checkpoints: Checkpoints,
        metrics: Metrics,
        progress: ProgressLine,
        signals: StopSignals,
    ) -> str:
        """Steps until there is a reason to end; the reason."""
        every, step = self.config.train, int(state.step)
        began, saved, validated, score = time.monotonic(), step, step, None
        pulses: collections.deque[Pulse] = collections.deque()
        with Prefetcher(self.placed_batch, step) as prefetcher:
            self.throughput.start(prefetcher)
            while (ending := self.reason_to_end(step, began, signals)) is None:
                state, pulse = self.step_once(state, next(prefetcher))
                step += 1
                pulses.append(pulse)
                is_last = step == self.last_step
                self.feel(pulses, 0 if is_last else STEPS_AHEAD, step, saved, progress)
                if step % every.log_every == 0 or is_last:
                    state = self.log(state, step, metrics, progress)
                with self.throughput.paused():
                    if step % every.eval_every == 0 or is_last:
                        validated, score = step, self.validate(state, step, metrics, progress)
                    if step % every.checkpoint_every == 0 or is_last:
                        self.save(checkpoints, state, step, score if validated == step else None)
                        saved = step
        if ending.final and validated != step:
            validated, score = step, self.validate(state, step, metrics, progress)
        if saved != step:
            self.save(checkpoints, state, step, score if validated == step else None)
        checkpoints.wait()
        progress.tell(f"{ending.why} at step {step:,}; {self.watch}")
        return ending.why

    def placed_batch(self, step: int) -> Any:
        """A step's batch, on the devices: what the prefetching thread makes."""
        batch = self.batches.batch(step, jax.process_index(), jax.process_count())
        return sharding.place_batch(batch, self.mesh)

    def reason_to_end(self, step: int, began: float, signals: StopSignals) -> Ending | None:
        limits = self.config.train
        if step >= self.last_step:
            return Ending("finished")
        if limits.tokens is not None and self.memory.target_tokens >= limits.tokens:
            return Ending(f"finished {self.memory.target_tokens:,} target tokens")
        if limits.patience is not None and self.memory.validations_since_best >= limits.patience:
            return Ending(f"finished: no better {limits.best_metric} in {limits.patience} validations")
        if limits.hours is not None and time.monotonic() - began > limits.hours * 3600:
            return Ending(f"stopped after train.hours = {limits.hours:g}", final=False)
        if (signal := signals.stop_at(step)) is not None:
            return Ending(f"stopped by {signal}", final=False)
        return None

    def feel(self, pulses: collections.deque[Pulse], ahead: int, step: int, saved: int, progress: ProgressLine) -> None:
        """Looks at the steps that must be done by now, so that the host is never far ahead of the devices."""
        while len(pulses) > ahead:
            pulse = jax.device_get(pulses.popleft())
            progress.advance(float(pulse.loss))
            if int(pulse.bad_in_a_row) >= self.config.train.max_bad_steps:
                raise Failed(
                    f"the gradient was not finite in {pulse.bad_in_a_row} steps in a row, up to step "
                    f"{step - len(pulses):,} (learning rate {float(self.schedule(step)):.3g}); these updates were left "
                    "out. A lower optimizer.learning_rate or an optimizer.clip_norm may help; "
                    f"the last checkpoint is of step {saved:,}"
                )

    def log(self, state: TrainState, step: int, metrics: Metrics, progress: ProgressLine) -> TrainState:
        """A line of metrics about the steps since the last one; they are then forgotten."""
        sums: IntervalSums = jax.device_get(state.sums)
        tokens = int(sums.target_tokens)
        self.memory.target_tokens += tokens
        values = {
            "epoch": round(step / self.batches.steps_per_epoch, 4),
            "loss": _over(sums.loss, tokens),
            "perplexity": _exp(_over(sums.nll, tokens)),
            "accuracy": _over(sums.right, tokens),
            "learning_rate": float(self.schedule(max(int(state.updates) - 1, 0))),
            "gradient_norm": _over(sums.gradient_norm, int(sums.steps)),
            "target_tokens": self.memory.target_tokens,
            "skipped": int(state.skipped),
            **self.throughput.lap(int(sums.source_tokens), tokens),
        }
        metrics.write(step, values)
        progress.report(step, values)
        self.warn_of_divergence(step, _over(sums.nll, tokens), progress)
        return dataclasses.replace(state, sums=self.new_sums())

    def warn_of_divergence(self, step: int, nll: float, progress: ProgressLine) -> None:
        """Once: a model that has learnt nothing at all is as bad as guessing, one that has diverged is far worse."""
        guessing = math.log(self.config.model.target_vocab_size or self.config.model.vocab_size)
        if not self.warned and step > self.config.optimizer.warmup_steps and nll > 2 * guessing:
            self.warned = True
            progress.tell(
                f"warning: {nll:.3g} nats a token is worse than guessing blindly ({guessing:.3g}): has it diverged? "
                "A lower optimizer.learning_rate or an optimizer.clip_norm may help"
            )

    def validate(self, state: TrainState, step: int, metrics: Metrics, progress: ProgressLine) -> float | None:
        """Writes how well the model does on validation data; returns its score, higher being better."""
        values: dict[str, float] = {}
        if self.validation is not None:
            values |= evaluate(self.evaluate_once, state.params, self.validation, self.mesh)
        for evaluator in self.evaluators:
            values |= evaluator(state.params)
        if not values:
            return None
        metrics.write(step, values)
        progress.tell(f"step {step:>7,}  " + "  ".join(f"{name} {value:.4g}" for name, value in values.items()))
        name = self.config.train.best_metric
        if name not in values:
            raise BadInput(f"train.best_metric = {name!r} is not among what is validated: {', '.join(values)}")
        score = values[name] if self.config.train.best_is == "highest" else -values[name]
        if math.isfinite(score) and (self.memory.best is None or score > self.memory.best):
            self.memory.best, self.memory.validations_since_best = score, 0
        else:
            self.memory.validations_since_best += 1
        return score if math.isfinite(score) else None

    def save(self, checkpoints: Checkpoints, state: TrainState, step: int, score: float | None) -> None:
        notes = {"memory": dataclasses.asdict(self.memory), "batches": self.batches.digest, "data": self.data}
        checkpoints.save(step, state, notes, score)


def validation_batches(config: ExperimentConfig, prepared: Prepared, mesh: Any) -> EvaluationBatches | None:
    """None where there is no validation data."""
    if "valid" not in prepared.splits or not len(prepared.pairs("valid")):
        return None
    return EvaluationBatches(
        prepared.pairs("valid"),
        tokens_per_batch=config.data.tokens_per_batch,
        num_shapes=config.data.num_shapes,
        row_multiple=sharding.batch_devices(mesh),
    )


def check(
    config: ExperimentConfig, batches: TrainingBatches, validation: EvaluationBatches | None, watched: bool
) -> None:
    """Refuses now what would fail at the first batch, or at the first validation, hours from now."""
    if config.model.positions == "learned":
        shapes = [*batches.shapes, *(validation.shapes if validation else ())]
        longest = max(max(shape.source, shape.target) for shape in shapes)
        if longest > config.model.max_length:
            raise BadInput(
                f"model.max_length = {config.model.max_length} learned positions are fewer than the {longest} tokens "
                "of the longest row of a batch: raise model.max_length, or lower data.max_length (for training data)"
            )
    rows = max(shape.rows for shape in batches.shapes)
    if config.train.accumulate > rows:
        raise BadInput(f"train.accumulate = {config.train.accumulate} parts are more than the {rows} rows of any batch")
    name, known = config.train.best_metric, ("valid_loss", "valid_perplexity", "valid_accuracy")
    if not watched and name not in known:
        raise BadInput(f"train.best_metric = {name!r} is not among what is validated: {', '.join(known)}")
    if not watched and validation is None and config.train.patience is not None:
        raise BadInput(f"train.patience = {config.train.patience} needs validation data, and there is none")


def evaluate(evaluate_once: Callable[..., Any], params: Any, batches: EvaluationBatches, mesh: Any) -> dict[str, float]:
    """Loss, perplexity and accuracy over every sentence once: sums first, divided once."""
    totals: collections.Counter[str] = collections.Counter()
    for number in range(len(batches)):
        batch = batches.batch(number, jax.process_index(), jax.process_count())
        sums = jax.device_get(evaluate_once(params, sharding.place_batch(batch, mesh)))
        totals.update({name: float(value) for name, value in sums._asdict().items()})
    tokens = totals["tokens"]
    return {
        "valid_loss": totals["loss"] / tokens,
        "valid_perplexity": _exp(totals["nll"] / tokens),
        "valid_accuracy": totals["right"] / tokens,
    }


def _over(total: Any, count: int) -> float:
    return float(total) / count if count else math.nan


def _exp(x: float) -> float:
    return math.exp(min(x, 700.0))
