"""What one run writes into its folder while it trains: metrics, validations, checkpoints; and what it resumes from."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from transformer_jax.errors import BadInput, Diverged
from transformer_jax.files.progress import tell
from transformer_jax.processes.distributed import processes
from transformer_jax.runs.best import Best, Criterion, is_validation
from transformer_jax.runs.checkpoint import Checkpoints, refuse_without_digest
from transformer_jax.runs.folder import RunFolder
from transformer_jax.runs.metrics import Metrics, read_metrics
from transformer_jax.schema import is_address
from transformer_jax.training.ending import Ending, Validations, ending, improvement_at_the_end
from transformer_jax.training.progress import Throughput
from transformer_jax.training.setup import RunSetup
from transformer_jax.training.steps import CompiledSteps
from transformer_jax.update.loss import TokenSums
from transformer_jax.update.optimizer import ends_with_the_run
from transformer_jax.update.step import IntervalSums, Pulse, TrainState

# Called with the parameters at each validation; what it returns is added to the line in metrics.jsonl.
Evaluator = Callable[[Any], Mapping[str, float]]


class Journal:
    """The journal of one run. `together_journal.TogetherJournal` has the same methods for several.

    `label` names the run in messages where there are several.
    """

    def __init__(
        self,
        programs: CompiledSteps,
        folder: RunFolder,
        evaluators: Sequence[Evaluator],
        inputs: RunSetup,
        label: str = "",
    ):
        self.programs, self.folder, self.evaluators, self.inputs = programs, folder, evaluators, inputs
        self.config, self.label = programs.config, f"{label}: " if label else ""
        self.ending: Ending | None = None
        self._reported: set[str] = set()  # what is printed only once
        refuse_without_digest(programs.plan)  # not at the first checkpoint, which may be hours away
        self.reset()

    def reset(self) -> None:
        """As before the first step."""
        self.logged_tokens = 0  # target tokens up to the last line of metrics
        self.unlogged: dict[str, float] = {}  # sums since then, as far as they were collected from the devices
        self.tokens, self._count_at = 0, 0  # target tokens at the last count, and the step of the next one
        self.best = Best()
        self.valid_losses: dict[int, float] = {}  # by step, those that are finite
        self.improvement: float | None = None  # of the validation loss over the last fifth of the updates
        self.score: float | None = None  # of the last validation, higher being better
        self.saved, self.validated = 0, 0  # at which steps
        self.criterion = self._criterion()

    # Before the first step.

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Opens the folder's checkpoints and metrics. Refuses another run's folder, and a run that cannot be meant."""
        train, optimizer = self.config.train, self.config.optimizer
        schedule_end = self.inputs.last_step_of if ends_with_the_run(optimizer) else None
        self.is_new = not self.folder.holds_run(self.config, schedule_end)
        if optimizer.warmup_steps > self.inputs.last_step and not is_address(optimizer.schedule):
            raise BadInput(
                f"optimizer.warmup_steps = {optimizer.warmup_steps} lies beyond the run of {self.inputs.last_step:,} "
                f"updates (train.epochs = {train.epochs:g}): the learning rate would never reach its peak"
            )
        if self.is_new:
            self.record_config()
        with (
            Checkpoints(
                self.folder.checkpoints, train.keep_latest, train.keep_best, train.checkpoint_every
            ) as self.checkpoints,
            Metrics(
                self.folder.metrics, train.tensorboard, self.folder.writes, self.folder.tracking(self.config)
            ) as self.metrics,
        ):
            yield

    def record_config(self) -> None:
        """Writes config.json and versions.json. Of several processes the first writes and the others compare."""
        record = functools.partial(self.folder.record, self.config, self.inputs.last_step)
        processes().on_first_then_on_others(record, seen_by_all=self.folder.config)

    def restore(self) -> TrainState | None:
        """The state of the newest undamaged checkpoint; None for a new run."""
        restored = self.checkpoints.restore_newest(self.programs.plan)
        if restored is not None:
            for step, reason in restored.damaged.items():
                self.set_aside(step, reason)
            self.resume(restored.step, restored.notes)
        self.folder.drop_metrics_after(self.saved or -1)
        if not self.is_new:
            self.record_config()  # not earlier: a run that cannot be resumed is not changed
        return None if restored is None else restored.state

    def set_aside(self, step: int, reason: str) -> None:
        """Moves a damaged checkpoint out of the way."""
        aside = self.checkpoints.set_aside(step)
        self._tell(f"warning: {self.label}the checkpoint of step {step} is damaged ({reason}); moved to {aside}")

    def resume(self, step: int, notes: Mapping[str, Any]) -> None:
        """Continues from the notes of a checkpoint; refuses a checkpoint of other data."""
        if notes["data"] != self.inputs.data or notes["batches"] != self.inputs.batches.digest:
            raise BadInput(
                f"{self.folder.path}: its prepared data has changed since the checkpoint of step {step}; "
                "put the old data back, or use another --workdir"
            )
        memory = notes["memory"]
        self.logged_tokens, self.unlogged = memory["target_tokens"], dict(memory["since"])
        self.tokens = self._collected_tokens()
        self.saved, self._count_at = step, 0
        lines = read_metrics(self.folder.metrics)
        self.validated = max(
            (line["step"] for line in lines if is_validation(line) and line["step"] <= step), default=0
        )
        self._resume_best(step, notes, lines)
        known = [(line["step"], line.get("valid_loss")) for line in lines if line["step"] <= step]
        self._set_valid_losses({at: loss for at, loss in known if loss is not None})

    def _set_valid_losses(self, losses: dict[int, float]) -> None:
        self.valid_losses = losses
        self.improvement = improvement_at_the_end(losses, self.config.optimizer.warmup_steps)

    def _resume_best(self, step: int, notes: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> None:
        """The best score so far, and the scores of the checkpoints, by the criterion of this config."""
        noted = Criterion.noted(notes)
        self.criterion = self._criterion().after(noted, step)
        if self.criterion.compares_with(noted):
            self.best = Best(notes["memory"]["best"], notes["memory"]["validations_since_best"])
        else:
            self.best = Best()
            self._tell_once("best", f"{self.label}best is the {self.criterion} now, and starts anew")
        scores = self.criterion.scores(lines, step)
        self.checkpoints.scores = {at: score for at, score in scores.items() if score is not None}

    def _criterion(self) -> Criterion:
        return Criterion.of(self.config.train, self.config.decode, self.inputs.references)

    # While it trains, in the order of the loop.

    def check(self, pulse: Pulse, step: int) -> float:
        """The loss of a step. Raises Diverged after too many steps in a row without a finite gradient."""
        if pulse.bad_in_a_row >= self.config.train.max_bad_steps:
            raise Diverged(
                f"the gradient was not finite in {pulse.bad_in_a_row} steps in a row, up to step {step:,} (learning "
                f"rate {float(self.programs.schedule(step)):.3g}); these updates were skipped. A lower "
                "optimizer.learning_rate or an optimizer.clip_norm may help; the last checkpoint is of step "
                f"{self.saved:,}"
            )
        return float(pulse.loss)

    def count_is_due(self, step: int) -> bool:
        return self.config.train.tokens is not None and step >= self._count_at

    def count_tokens(self, state: TrainState, step: int) -> None:
        """Counts the target tokens for `train.tokens`.

        Only the devices know, because skipped updates do not count. They are asked where full batches would reach the
        limit, which is seldom and does not depend on how often metrics are logged.
        """
        if self.count_is_due(step):
            self.set_tokens(int(state.sums.target_tokens), step)

    def set_tokens(self, on_devices: int, step: int) -> None:
        self.tokens = self._collected_tokens() + on_devices
        left = (self.config.train.tokens or 0) - self.tokens
        self._count_at = step + max(1, math.ceil(left / self.inputs.most_tokens))

    def _collected_tokens(self) -> int:
        return self.logged_tokens + int(self.unlogged.get("target_tokens", 0))

    def log_is_due(self, step: int) -> bool:
        train = self.config.train
        has_its_tokens = train.tokens is not None and self.tokens >= train.tokens
        return step % train.log_every == 0 or step == self.inputs.last_step or has_its_tokens

    def log(self, state: TrainState, step: int, speed: Throughput) -> tuple[TrainState, dict[str, Any]]:
        """Writes a line of metrics about the steps since the last one; the state without their sums, and the line."""
        sums, updates = jax.device_get((state.sums, state.updates))
        speed.lap(step)
        return self.programs.reset_sums(state), self.write_line(step, sums, int(updates), speed)

    def write_line(self, step: int, sums: IntervalSums, updates: int, speed: Throughput) -> dict[str, Any]:
        self.add(sums)
        total, self.unlogged = self.unlogged, {}
        tokens, steps = int(total["target_tokens"]), int(total["steps"])
        self.logged_tokens += tokens
        self.tokens = self.logged_tokens
        nll = _over(total["nll"], tokens)
        line = {
            "epoch": round(step / self.inputs.batches.steps_per_epoch, 4),
            "loss": _over(total["loss"], tokens),
            "perplexity": _exp(nll),
            "accuracy": _over(total["right"], tokens),
            "learning_rate": float(self.programs.schedule(max(updates - 1, 0))),
            "gradient_norm": _over(total["gradient_norm"], steps),
            "target_tokens": self.logged_tokens,
            "skipped": step - updates,
            **speed.rates(int(total["source_tokens"]), tokens, steps),
        }
        self.metrics.write(step, line)
        self._warn_of_divergence(step, nll)
        return line

    def _warn_of_divergence(self, step: int, nll: float) -> None:
        """A model that has learnt nothing is as bad as guessing; one that has diverged is far worse."""
        guessing = math.log(self.config.model.target_vocab_size or self.config.model.vocab_size)
        if step > self.config.optimizer.warmup_steps and nll > 2 * guessing:
            self._tell_once(
                "diverged",
                f"warning: {self.label}{nll:.3g} nats per token is worse than guessing blindly ({guessing:.3g}): has "
                "training diverged? A lower optimizer.learning_rate or an optimizer.clip_norm may help",
            )

    def collect(self, state: TrainState) -> TrainState:
        """Takes over the devices' sums without a line of metrics; the state without them."""
        self.add(jax.device_get(state.sums))
        return self.programs.reset_sums(state)

    def add(self, sums: IntervalSums) -> None:
        """Adds sums of the devices to those since the last line, in float64 and in integers of any size."""
        for name, value in vars(sums).items():
            self.unlogged[name] = self.unlogged.get(name, 0) + value.item()

    def validate(self, state: TrainState, step: int) -> None:
        """Evaluates the model on the validation data and with the evaluators."""
        params = self.programs.evaluated_params(state)
        self.write_validation(step, self.inputs.validation_sums(self.programs.evaluate, params), params)

    def write_validation(self, step: int, sums: TokenSums | None, params: Any) -> None:
        self.validated, self.score = step, None
        values: dict[str, float] = {}
        if sums is not None:
            values["valid_loss"] = float(sums.loss / sums.weight)
            values["valid_perplexity"] = _exp(float(sums.nll / sums.tokens))
            values["valid_accuracy"] = float(sums.right / sums.tokens)
            if math.isfinite(values["valid_loss"]):
                self._set_valid_losses({**self.valid_losses, step: values["valid_loss"]})
        for evaluator in self.evaluators:
            values |= evaluator(params)
        if not values:
            return
        self.metrics.write(step, values)
        self._tell(
            f"{self.label}step {step:>7,}  " + "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        )
        metric = self.config.train.best_metric
        if metric not in values:
            raise BadInput(f"train.best_metric = {metric!r} is not among the validation metrics: {', '.join(values)}")
        self.score = self.criterion.score(values[metric])
        self.best = self.best.and_then(self.score)

    def save(self, state: TrainState, step: int) -> None:
        """Starts to write a checkpoint, with the score of this step's validation if there was one."""
        memory = {
            "target_tokens": self.logged_tokens,
            "since": self.unlogged,
            "best": self.best.score,
            "validations_since_best": self.best.validations_since,
        }
        notes = {
            "memory": memory,
            "batches": self.inputs.batches.digest,
            "data": self.inputs.data,
            "best": self.criterion._asdict(),
        }
        self.checkpoints.wait()
        if self.score is not None and self.validated == step:
            self.checkpoints.scores[step] = self.score
        self.checkpoints.save(step, state, notes)
        self.saved = step

    # At its end.

    def complete(self, step: int) -> Ending | None:
        """Why the run is complete after this step, or None."""
        validations = Validations(self.best.validations_since, self.improvement)
        return ending(self.config.train, self.inputs.last_step, step, self.tokens, validations)

    def end_if_due(self, state: TrainState, step: int, interruption: Ending | None) -> bool:
        """Validates and saves a last time if the run ends here."""
        due = self.complete(step) or interruption
        if due is None:
            return False
        if due.final and self.validated != step:
            self.validate(state, step)
        if self.saved != step:
            self.save(state, step)
        self.end(step, due)
        return True

    def end(self, step: int, ending: Ending) -> None:
        """Waits for the last checkpoint and says why the run ended."""
        self.checkpoints.wait()
        then = "" if ending.final else "; the same command resumes the run"
        self._tell(f"{self.label}{ending.why} at step {step:,}{then}; {self.inputs.compilations}")
        self.ending = ending

    def _tell(self, line: str) -> None:
        """Prints a line, once where several processes make one run."""
        if self.folder.writes:
            tell(line)

    def _tell_once(self, what: str, line: str) -> None:
        if what not in self._reported:
            self._reported.add(what)
            self._tell(line)


def _over(total: Any, count: int) -> float:
    return float(total) / count if count else math.nan


def _exp(x: float) -> float:
    return math.exp(min(x, 700.0))
