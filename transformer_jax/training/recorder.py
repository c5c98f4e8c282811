"""What one run writes into its folder while it trains: metrics, validations, checkpoints; and what it resumes from."""

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import optax

from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import BadInput
from transformer_jax.files.progress import tell
from transformer_jax.processes.distributed import processes
from transformer_jax.runs.best import Criterion, best_of, is_validation
from transformer_jax.runs.checkpoint import Checkpoints
from transformer_jax.runs.folder import RunFolder
from transformer_jax.runs.metrics import Metrics, read_metrics
from transformer_jax.training.ending import Ending, Validations, improvement_at_the_end
from transformer_jax.training.progress import Throughput
from transformer_jax.training.setup import RunSetup
from transformer_jax.update.loss import TokenSums
from transformer_jax.update.optimizer import ends_with_the_run
from transformer_jax.update.step import IntervalSums


class Recorder:
    """The counts, scores and files of one run. `label` names it in messages where several train together."""

    def __init__(
        self, config: ExperimentConfig, schedule: optax.Schedule, folder: RunFolder, setup: RunSetup, label: str = ""
    ):
        self.config, self.schedule, self.folder, self.setup = config, schedule, folder, setup
        self.label = f"{label}: " if label else ""
        self.logged_tokens = 0  # target tokens up to the last line of metrics
        self.unlogged: dict[str, float] = {}  # sums since then, as far as they were fetched from the devices
        self.perplexity = 0.0  # of the last line of metrics; 0 = not known
        self.criterion = Criterion.of(config.train, config.decode, setup.references)
        self.scores: dict[int, float | None] = {}  # of validations, by step; higher is better, None is not finite
        self.valid_losses: dict[int, float] = {}  # by step, those that are finite
        self.validations = Validations()
        self.validated = 0  # the step of the last validation
        self.diverged = ""  # why the run has failed
        self._has_warned = False

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Opens the folder's checkpoints and metrics. Refuses another run's folder."""
        train = self.config.train
        schedule_end = self.setup.last_step_of if ends_with_the_run(self.config.optimizer) else None
        self.is_new = not self.folder.holds_run(self.config, schedule_end)
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
        record = functools.partial(self.folder.record, self.config, self.setup.last_step)
        processes().on_first_then_on_others(record, seen_by_all=self.folder.config)

    def resume(self, step: int, notes: Mapping[str, Any]) -> None:
        """Continues after a step, from the notes of its checkpoint; 0 is a new run. Drops later metrics.

        A checkpoint is of the state before the validation of its step, whose scores are in metrics.jsonl.
        """
        if step > 0:
            self._resume_counts(step, notes)
        self.folder.drop_metrics_after(step or -1)
        if not self.is_new:
            self.record_config()  # not earlier: a run that cannot be resumed is not changed

    def _resume_counts(self, step: int, notes: Mapping[str, Any]) -> None:
        if notes["data"] != self.setup.data or notes["batches"] != self.setup.batches.digest:
            raise BadInput(
                f"{self.folder.path}: its prepared data has changed since the checkpoint of step {step}; "
                "put the old data back, or use another --workdir"
            )
        self.logged_tokens, self.unlogged = notes["memory"]["target_tokens"], dict(notes["memory"]["since"])
        self.diverged = notes.get("diverged", "")
        before = Criterion.noted(notes)
        if not self.criterion.compares_with(before):
            self.tell(f"best is the {self.criterion} now, it was the {before}: the best starts anew")
        self.criterion = self.criterion.after(before, step)
        lines = processes().broadcast(read_metrics(self.folder.metrics) if self.folder.writes else None)
        lines = [line for line in lines if line["step"] <= step]
        self.scores = self.criterion.scores(lines, step)
        self.checkpoints.scores = {at: score for at, score in self.scores.items() if score is not None}
        self.valid_losses = {line["step"]: line["valid_loss"] for line in lines if line.get("valid_loss") is not None}
        self.validated = max((line["step"] for line in lines if is_validation(line)), default=0)
        self.perplexity = next((line["perplexity"] for line in reversed(lines) if line.get("perplexity")), 0.0)
        self._sum_up()

    def _sum_up(self) -> None:
        """What the validations so far come to."""
        improvement = improvement_at_the_end(self.valid_losses, self.config.optimizer.warmup_steps)
        self.validations = Validations(best_of(self.scores).validations_since, improvement)

    def add(self, sums: IntervalSums) -> None:
        """Adds sums of the devices to those since the last line, in float64 and in integers of any size."""
        for name, value in vars(sums).items():
            self.unlogged[name] = self.unlogged.get(name, 0) + value.item()

    @property
    def tokens(self) -> int:
        """The target tokens so far, as far as they were fetched from the devices."""
        return self.logged_tokens + int(self.unlogged.get("target_tokens", 0))

    def log(self, step: int, updates: int, speed: Throughput) -> dict[str, Any]:
        """Writes a line of metrics about the steps since the last one."""
        total, self.unlogged = self.unlogged, {}
        tokens, steps = int(total["target_tokens"]), int(total["steps"])
        self.logged_tokens += tokens
        perplexity = _exp(_over(total["nll"], tokens))
        self.perplexity = perplexity if tokens else self.perplexity
        line = {
            "epoch": round(step / self.setup.batches.steps_per_epoch, 4),
            "loss": _over(total["loss"], tokens),
            "perplexity": perplexity,
            "accuracy": _over(total["right"], tokens),
            "learning_rate": float(self.schedule(max(updates - 1, 0))),
            "gradient_norm": _over(total["gradient_norm"], steps),
            "target_tokens": self.logged_tokens,
            "skipped": step - updates,
            **speed.rates(int(total["source_tokens"]), tokens, steps),
        }
        self.metrics.write(step, line)
        if not self._has_warned and (problem := self.divergence(step)):
            self._has_warned = True
            self.tell(f"warning: {self.label}{problem}")
        return line

    def divergence(self, step: int) -> str:
        """A message if training has diverged: its perplexity is far worse than that of guessing blindly."""
        classes = self.config.model.target_vocab_size or self.config.model.vocab_size
        if step <= self.config.optimizer.warmup_steps or self.perplexity <= classes**2:
            return ""
        return (
            f"training has diverged: at step {step:,} its perplexity of {self.perplexity:.3g} is worse than guessing "
            f"blindly ({classes:,}); a lower optimizer.learning_rate or an optimizer.clip_norm may help"
        )

    def write_validation(self, step: int, sums: TokenSums | None, translated: Mapping[str, float]) -> None:
        """Writes the validation of a step: sums over the validation data, and metrics of its translations."""
        self.validated = step
        values: dict[str, float] = {}
        if sums is not None:
            values["valid_loss"] = float(sums.loss / sums.weight)
            values["valid_perplexity"] = _exp(float(sums.nll / sums.tokens))
            values["valid_accuracy"] = float(sums.correct / sums.tokens)
            if math.isfinite(values["valid_loss"]):
                self.valid_losses[step] = values["valid_loss"]
        values |= translated
        if not values:
            return
        self.metrics.write(step, values)
        self.tell(f"{self.label}step {step:>7,}  " + "  ".join(f"{name} {value:.4g}" for name, value in values.items()))
        metric = self.config.train.best_metric
        if metric not in values:
            raise BadInput(f"train.best_metric = {metric!r} is not among the validation metrics: {', '.join(values)}")
        score = self.scores[step] = self.criterion.score(values[metric])
        if score is not None:
            self.checkpoints.scores[step] = score
        self._sum_up()

    def save(self, step: int, state: Any) -> None:
        """Starts to write a checkpoint."""
        notes = {
            "memory": {"target_tokens": self.logged_tokens, "since": self.unlogged},
            "batches": self.setup.batches.digest,
            "data": self.setup.data,
            "best": self.criterion._asdict(),
            "diverged": self.diverged,
        }
        self.checkpoints.save(step, state, notes)

    def end(self, step: int, ending: Ending) -> Ending:
        """Waits for the last checkpoint and says why the run ended, and how."""
        self.checkpoints.wait()
        problem = self.diverged or (self.divergence(step) if ending.final else "")
        if problem:
            return Ending(problem, diverged=True)
        then = "" if ending.final else "; the same command resumes the run"
        known = {at: score for at, score in self.scores.items() if score is not None}
        if ending.final and known:
            at = max(known, key=lambda at: (known[at], -at))
            value = known[at] if self.criterion.best_is == "highest" else -known[at]
            then = f"; the {self.criterion} is {value:.4g}, at step {at:,}"
        self.tell(f"{self.label}{ending.why} at step {step:,}{then}; {self.setup.compilations}")
        return ending

    def tell(self, line: str) -> None:
        """Prints a line, once where several processes make one run."""
        if self.folder.writes:
            tell(line)


def _over(total: Any, count: int) -> float:
    return float(total) / count if count else math.nan


def _exp(x: float) -> float:
    return math.exp(min(x, 700.0))
