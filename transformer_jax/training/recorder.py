"""What a run keeps in its folder: metrics, validations, checkpoints, and how it ended."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import numpy as np
import optax

from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import BadInput
from transformer_jax.files.progress import tell
from transformer_jax.processes.distributed import processes
from transformer_jax.runs.checkpoint import Checkpoints
from transformer_jax.runs.folder import RunFolder
from transformer_jax.runs.metrics import Criterion, MetricsFile, is_validation, last_lines, validations_since_best
from transformer_jax.training.setup import RunSetup
from transformer_jax.update.loss import TokenSums
from transformer_jax.update.optimizer import ends_with_the_run
from transformer_jax.update.step import IntervalSums

# The fewest validations whose trend counts.
FEWEST = 5


@dataclasses.dataclass(frozen=True)
class Ending:
    """Why a run ends. A run that was only stopped (not `final`) can be resumed."""

    why: str
    final: bool = True
    diverged: bool = False
    together: int = 1  # runs in one program


@dataclasses.dataclass(eq=False)
class Recorder:
    """The counts, scores and files of one run. `label` names it in messages where several train together."""

    config: ExperimentConfig
    schedule: optax.Schedule
    folder: RunFolder
    setup: RunSetup
    checkpoints: Checkpoints
    metrics_file: MetricsFile
    is_new: bool
    label: str = ""

    def __post_init__(self) -> None:
        self.logged_tokens = 0  # target tokens up to the last line of metrics
        self.perplexity = 0.0  # of the last line of metrics; 0 = not known
        self.criterion = Criterion.of(self.config.train, self.config.decode, self.setup.references)
        self.validations: list[dict[str, Any]] = []  # of each the step, the loss and the criterion's metric
        self.logged_step = 0  # of the last line of metrics
        self.divergence = ""  # why the run has failed
        self.early_end = ""  # why it ends before its last step, by train.patience or train.until_flat

    @classmethod
    @contextlib.contextmanager
    def opened(
        cls, config: ExperimentConfig, schedule: optax.Schedule, folder: RunFolder, setup: RunSetup, label: str
    ) -> Iterator["Recorder"]:
        """The recorder of a folder, whose checkpoints and metrics are open. Raises BadInput if it holds another run."""
        train, schedule_end = config.train, setup.last_step_of if ends_with_the_run(config.optimizer) else None
        is_new = processes().broadcast(not folder.compare_run(config, schedule_end))
        if is_new:
            record_config(folder, config, setup)
        kept = (train.keep_latest, train.keep_best, train.checkpoint_every)
        try:
            with (
                Checkpoints(folder.checkpoints, *kept) as checkpoints,
                MetricsFile(folder.metrics, train.tensorboard, folder.writes, folder.tracking(config)) as metrics_file,
            ):
                yield cls(config, schedule, folder, setup, checkpoints, metrics_file, is_new, label)
        except Exception as error:
            folder.refuse_removed(error)
            raise

    def resume(self, step: int, notes: Mapping[str, Any]) -> None:
        """Continues after a step, from the notes of its checkpoint; 0 is a new run. Drops later metrics.

        A checkpoint is of the state before the validation of its step, whose scores are only in metrics.jsonl.
        """
        if step > 0:
            self._resume_counts(step, notes)
        self.metrics_file.begin(step)
        if not self.is_new:
            # Not earlier: a run that cannot be resumed is not changed.
            record_config(self.folder, self.config, self.setup)

    def _resume_counts(self, step: int, notes: Mapping[str, Any]) -> None:
        if notes["data"] != self.setup.data or notes["batches"] != self.setup.batches.digest:
            raise BadInput(
                f"{self.folder.path}: its prepared data has changed since the checkpoint of step {step}; "
                "put the old data back, or use another --workdir"
            )
        self.logged_tokens, self.divergence = notes["target_tokens"], notes["diverged"]
        before = Criterion(**notes["best"])
        if not self.criterion.compares_with(before):
            self.tell(f"best is the {self.criterion} now, it was the {before}: the best starts anew")
        self.criterion = self.criterion.after(before, step)
        lines = processes().broadcast(last_lines(self.folder.metrics, step) if self.folder.writes else None)
        self.logged_step = max((line["step"] for line in lines), default=0)
        self.perplexity, self.validations = notes["perplexity"], notes["validations"]
        if self.logged_step < notes["logged_step"]:
            self.tell(
                f"{self.folder.metrics} ends at step {self.logged_step:,}, before the line of step "
                f"{notes['logged_step']:,} that the checkpoint of step {step:,} knows: lines are lost",
                "warning: ",
            )
        for line in lines:
            if line["step"] == step and is_validation(line):
                self._add_validation(line)
        self._judge()

    def _add_validation(self, line: Mapping[str, Any]) -> None:
        names = ("step", "valid_loss", self.criterion.metric)
        self.validations.append({name: line[name] for name in dict.fromkeys(names) if name in line})

    @property
    def validated_step(self) -> int:
        return self.validations[-1]["step"] if self.validations else 0

    @property
    def scores(self) -> dict[int, float | None]:
        """The scores of validations, by step; higher is better, None is not finite."""
        return self.criterion.scores(self.validations)

    def _judge(self) -> None:
        """Ranks the checkpoints, and decides whether the run goes on, by the validations so far."""
        self.checkpoints.scores = {step: score for step, score in self.scores.items() if score is not None}
        self.early_end = self._early_end()

    def _early_end(self) -> str:
        train = self.config.train
        if train.patience is not None and validations_since_best(self.scores) >= train.patience:
            return f"no better {train.best_metric} in {train.patience} validations (raise train.patience to train on)"
        if train.until_flat is not None:
            losses = {line["step"]: line.get("valid_loss") for line in self.validations}
            improvement = improvement_at_the_end(losses, self.config.optimizer.warmup_steps)
            if improvement is not None and improvement < train.until_flat:
                return (
                    f"the validation loss improved by {100 * improvement:.2g} % over the last fifth of the steps "
                    "(lower train.until_flat to train on)"
                )
        return ""

    def log(
        self, step: int, sums: IntervalSums, updates: int, rates: Callable[[int, int, int], dict[str, Any]]
    ) -> dict[str, Any]:
        """Writes a line of metrics about the steps since the last one. `rates` has the speed for numbers of tokens."""
        self.folder.refuse_other_training()
        with contextlib.suppress(OSError):  # of a folder that cannot be listed now: it is noted later
            self.folder.note_checkpoint()
        tokens, logged_updates = int(sums.target_tokens), int(sums.updates)
        self.logged_tokens += tokens
        perplexity = _exp(_over(sums.nll, tokens))
        self.perplexity = perplexity if tokens else self.perplexity
        line = {
            "epoch": round(step / self.setup.batches.steps_per_epoch, 4),
            "loss": _over(sums.loss, tokens),
            "perplexity": perplexity,
            "accuracy": _over(sums.correct, tokens),
            "learning_rate": float(self.schedule(max(updates - 1, 0))),
            "gradient_norm": _over(sums.gradient_norm, logged_updates),
            "target_tokens": self.logged_tokens,
            "skipped": step - updates,
            **rates(int(sums.source_tokens), tokens, logged_updates),
        }
        self.metrics_file.write(step, line)
        self.logged_step = step
        return line

    def write_validation(self, step: int, sums: TokenSums | None, translated: Mapping[str, float]) -> None:
        """Writes the validation of a step: sums over the validation data, and metrics of its translations."""
        values = dict(translated)
        if sums is not None:
            values = {
                "valid_loss": float(sums.loss / sums.weight),
                "valid_perplexity": _exp(float(sums.nll / sums.tokens)),
                "valid_accuracy": float(sums.correct / sums.tokens),
                **translated,
            }
        if values:
            self.metrics_file.write(step, values)
            scores = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            self.tell(f"step {step:>7,}  {scores}  at {datetime.now():%H:%M:%S}")
            self._add_validation({"step": step, **values})
            self.logged_step = step
            self._judge()

    def save(self, step: int, state: Any) -> None:
        """Starts to write a checkpoint."""
        self.folder.refuse_other_training()
        notes = {  # what a checkpoint knows of its run besides the state
            "target_tokens": self.logged_tokens,
            "batches": self.setup.batches.digest,
            "data": self.setup.data,
            "best": self.criterion._asdict(),
            "diverged": self.divergence,
            "perplexity": self.perplexity,
            "validations": self.validations,
            "logged_step": self.logged_step,
        }
        self.metrics_file.sync()
        self.folder.push()  # first: a bucket that has a checkpoint has the metrics up to it
        self.checkpoints.save(step, state, notes)

    def wait(self) -> None:
        """Waits until the last checkpoint is complete."""
        self.checkpoints.wait()
        self.folder.refuse_other_training()
        self.folder.note_checkpoint()

    def end(self, step: int, ending: Ending) -> Ending:
        """Waits for the last checkpoint and says why the run ended, and how."""
        self.wait()
        classes = self.config.model.target_vocab_size or self.config.model.vocab_size
        if (
            not self.divergence
            and ending.final
            and self.perplexity > classes**2
            and step > self.config.optimizer.warmup_steps
        ):
            self.divergence = (
                f"training has diverged: at step {step:,} its perplexity of {self.perplexity:.3g} is far worse than "
                f"guessing's ({classes:,}); a lower optimizer.learning_rate or an optimizer.clip_norm may help"
            )
        if self.divergence:
            self.folder.record_state("diverged", self.divergence)
            return Ending(self.divergence, diverged=True)
        self.folder.record_state("finished" if ending.final else "stopped", ending.why)
        then = "" if ending.final else "; the same command resumes the run"
        known = self.checkpoints.scores
        if ending.final and known:
            at = max(known, key=lambda at: (known[at], -at))
            value = known[at] if self.criterion.best_is == "highest" else -known[at]
            then = f"; the {self.criterion} is {value:.4g}, at step {at:,}"
        self.tell(f"{ending.why} at step {step:,}{then}; {self.setup.compilations}, at {datetime.now():%H:%M:%S}")
        return ending

    def tell(self, line: str, kind: str = "") -> None:
        """Prints a line, once where several processes make one run."""
        if self.folder.writes:
            tell(f"{kind}{self.label}{line}")


def record_config(folder: RunFolder, config: ExperimentConfig, setup: RunSetup) -> None:
    """Writes config.json and versions.json. With several processes the first writes and the others compare."""
    record = functools.partial(folder.record, config, setup.last_step)
    processes().on_first_then_on_others(record, seen_by_all=folder.config)


def improvement_at_the_end(losses: Mapping[int, float | None], warmup_steps: int) -> float | None:
    """By which fraction validation losses, by step, fell over the last fifth of the steps; None if it is unknown.

    It is the slope of a straight line through all validations of that fifth, so that it does not depend on the luck of
    one. The fifth must not reach back into the warmup, when many runs pause at the entropy of single words.
    """
    finite = {step: loss for step, loss in losses.items() if loss is not None and math.isfinite(loss)}
    last = max(finite, default=0)
    at_the_end = {step: loss for step, loss in finite.items() if 5 * step >= 4 * last}
    if len(at_the_end) < FEWEST or 4 * last < 5 * warmup_steps:
        return None
    slope = np.polyfit([*at_the_end], [*at_the_end.values()], 1)[0]
    return float(-slope * last / 5 / np.mean([*at_the_end.values()]))


def _over(total: Any, count: int) -> float:
    return float(total) / count if count else math.nan


def _exp(x: float) -> float:
    return math.exp(min(x, 700.0))
