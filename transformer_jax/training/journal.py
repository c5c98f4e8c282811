"""What one run keeps of itself as it goes: its lines of metrics, its validations, its checkpoints, and why it ended."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import jax

from transformer_jax.config import ExperimentConfig, TrainConfig
from transformer_jax.errors import BadInput, Failed
from transformer_jax.files.progress import tell
from transformer_jax.processes.distributed import team
from transformer_jax.runs.best import Best, Criterion, resumed
from transformer_jax.runs.checkpoint import Checkpoints, DamagedCheckpoint
from transformer_jax.runs.folder import RunFolder, read_metrics
from transformer_jax.runs.metrics import Metrics, ProgressLine
from transformer_jax.schema import is_address
from transformer_jax.training.course import Course
from transformer_jax.training.throughput import Throughput
from transformer_jax.update.optimizer import ends_with_the_run, make_schedule
from transformer_jax.update.step import IntervalSums, TrainState

# Called with the parameters at each validation; what it returns is written to metrics.jsonl under its names.
Evaluator = Callable[[Any], Mapping[str, float]]


@dataclasses.dataclass
class Memory:
    """What the loop itself remembers; it is saved with each checkpoint."""

    target_tokens: int = 0  # up to the last line of metrics
    since: dict[str, float] = dataclasses.field(default_factory=dict)  # sums that the devices gave up since that line
    best: float | None = None
    validations_since_best: int = 0

    def note_best(self, best: Best) -> None:
        self.best, self.validations_since_best = best.score, best.validations_since


@dataclasses.dataclass(frozen=True)
class Ending:
    """Why a run ends, and whether that is its own end: one that was only stopped goes on another time."""

    why: str
    final: bool = True
    failed: bool = False


class Journal:
    """One run's, in its folder. The loop says when; `label` names the run where there are several."""

    def __init__(
        self,
        config: ExperimentConfig,
        folder: RunFolder,
        evaluators: Sequence[Evaluator],
        course: Course,
        label: str = "",
    ):
        self.config, self.folder, self.evaluators, self.course = config, folder, evaluators, course
        self.label = f"{label}: " if label else ""
        self.schedule = make_schedule(config.optimizer, config.model.d_model, course.last_step)
        self.criterion = Criterion.of(config, course.references)
        self.recorded: ExperimentConfig | None = None  # the config that this run had before, if it has begun
        self.memory, self.warned = Memory(), False
        self.told: list[str] = []  # of the best, at a resumption
        self.tokens = 0  # target tokens trained on, as far as they were counted
        self.saved, self.validated = 0, 0  # at which steps
        self.score: float | None = None  # of the last validation, higher being better
        self.ending: Ending | None = None
        self.failure: BadInput | Failed | None = None

    def __enter__(self) -> "Journal":
        train = self.config.train
        with contextlib.ExitStack() as opened:
            self.checkpoints = opened.enter_context(
                Checkpoints(self.folder.checkpoints, train.keep_latest, train.keep_best)
            )
            writes = jax.process_index() == 0
            self.metrics = opened.enter_context(Metrics(self.folder.metrics, train.tensorboard, writes))
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, traceback)

    def look_back(self) -> None:
        """Reads what was recorded of this run; refuses another run, and a new one that cannot be meant."""
        self.recorded = self.folder.recorded(self.config, self._schedule_end)
        warmup, train = self.config.optimizer.warmup_steps, self.config.train
        if warmup > self.course.last_step and not is_address(self.config.optimizer.schedule):
            told = (
                f"optimizer.warmup_steps = {warmup} lies beyond the run of {self.course.last_step:,} updates "
                f"(train.epochs = {train.epochs:g}): the learning rate would never reach its peak"
            )
            if self.recorded is None:
                raise BadInput(told)
            self._tell(f"warning: {self.label}{told}")  # earlier versions began such runs

    def settle(self) -> None:
        """Records in its folder what this run is; of several processes the first one, and the others compare."""
        settle = functools.partial(self.folder.settle, self.config, self.course.last_step)
        team().first_then_all(settle, seen_by_all=self.folder.config)

    def _schedule_end(self, train: TrainConfig) -> int | None:
        return self.course.last_step_of(train) if ends_with_the_run(self.config.optimizer) else None

    def _tell(self, line: str) -> None:
        """Once, where several processes make one run."""
        if self.folder.writes:
            tell(line)

    @contextlib.contextmanager
    def by_itself(self) -> Iterator[None]:
        """What goes wrong inside is the end of this run, and of no other."""
        try:
            yield
        except (BadInput, Failed) as failure:
            self.failure, self.ending = failure, Ending(str(failure), failed=True)
            if self.label:
                tell(f"failed: {self.label}{failure}")

    def restore(self, plan: TrainState) -> TrainState | None:
        """The newest undamaged checkpoint's state, laid out as planned; None where the run begins."""
        restored = self.checkpoints.restore_newest(plan)
        if restored is None:
            self.folder.drop_metrics_after(-1)
            return None
        for step, reason in restored.damaged.items():
            self.set_aside(step, reason)
        self.recall(restored.step, restored.notes)
        self.folder.drop_metrics_after(restored.step)
        return restored.state

    def note_if_ended(self, plan: TrainState) -> None:
        """A run that came to its own end in an earlier process is not made again."""
        with contextlib.suppress(DamagedCheckpoint):
            for step in self.checkpoints.steps[-1:]:
                self.recall(step, self.checkpoints.notes(step))
                if (ending := self.reason_to_end(step)) is not None:
                    self.state_at(step, plan)  # whole?
                    self.ending = ending
                    tell(f"{self.label}{ending.why} at step {step:,}")

    def state_at(self, step: int, plan: TrainState) -> TrainState | None:
        """A certain checkpoint's state; None at step 0, where the run begins. Raises DamagedCheckpoint."""
        if step == 0:
            self.memory, self.saved, self.validated, self.tokens = Memory(), 0, 0, 0
            self.criterion = Criterion.of(self.config, self.course.references)
            return None
        try:
            state, notes = self.checkpoints.restore(step, plan)
        except DamagedCheckpoint as damage:
            if self.checkpoints.steps == [step]:
                raise BadInput(f"{self.checkpoints.directory}: every checkpoint is damaged ({damage})") from damage
            self.set_aside(step, str(damage))
            raise
        self.recall(step, notes)
        return state

    def forget_after(self, step: int) -> None:
        """What was written later is about to be made again."""
        self.checkpoints.drop_after(step)
        self.folder.drop_metrics_after(step or -1)

    def set_aside(self, step: int, reason: str) -> None:
        aside = self.checkpoints.set_aside(step)
        self._tell(f"warning: {self.label}the checkpoint of step {step} is damaged ({reason}); moved to {aside}")

    def recall(self, step: int, notes: Mapping[str, Any]) -> None:
        """Takes up what was noted with a checkpoint; refuses one of other data."""
        if notes["data"] != self.course.data or notes["batches"] != self.course.batches.digest:
            raise BadInput(
                f"{self.folder.path}: its prepared data has changed since the checkpoint of step {step}; "
                "put the old data back, or use another --workdir"
            )
        self.memory, self.saved, self.validated = Memory(**notes["memory"]), step, step
        self.count(0)
        self._recall_best(step, notes)

    def _recall_best(self, step: int, notes: Mapping[str, Any]) -> None:
        """The best so far, and the scores of the checkpoints, by what best means now."""
        lines = read_metrics(self.folder.metrics) if self.folder.metrics.is_file() else []
        earlier = Criterion.of(self.recorded or self.config, self.course.references)
        noted = Criterion.noted(notes)
        self.criterion = Criterion.of(self.config, self.course.references).after(noted or earlier, step)
        # Earlier versions did not note what a score was a score of: theirs counts only where the metrics are gone.
        known = None if noted is None and lines else Best(self.memory.best, self.memory.validations_since_best)
        best, told = resumed(self.criterion, noted or earlier, known, lines, step)
        self.memory.note_best(best)
        self.checkpoints.rank(self.criterion.scores(self.checkpoints.records(), lines, earlier))
        if told and told not in self.told:
            self.told.append(told)
            self._tell(f"{self.label}{told}")

    def count(self, on_devices: int) -> None:
        """Counts the target tokens trained on, of which the devices have so many in their sums."""
        self.tokens = self.memory.target_tokens + int(self.memory.since.get("target_tokens", 0)) + on_devices

    def reason_to_end(self, step: int) -> Ending | None:
        limits = self.config.train
        if step >= self.course.last_step:
            return Ending("finished")
        if limits.tokens is not None and self.tokens >= limits.tokens:
            return Ending(f"finished {self.tokens:,} target tokens")
        if limits.patience is not None and self.memory.validations_since_best >= limits.patience:
            return Ending(f"finished: no better {limits.best_metric} in {limits.patience} validations")
        return None

    def feel(self, step: int, bad_in_a_row: int) -> None:
        if bad_in_a_row >= self.config.train.max_bad_steps:
            raise Failed(
                f"the gradient was not finite in {bad_in_a_row} steps in a row, up to step "
                f"{step:,} (learning rate {float(self.schedule(step)):.3g}); these updates were left "
                "out. A lower optimizer.learning_rate or an optimizer.clip_norm may help; "
                f"the last checkpoint is of step {self.saved:,}"
            )

    def log(
        self, step: int, sums: IntervalSums, updates: int, skipped: int, throughput: Throughput, progress: ProgressLine
    ) -> dict[str, Any]:
        """A line of metrics about the steps since the last one."""
        self.fold(sums)
        total, self.memory.since = self.memory.since, {}
        tokens, steps = int(total["target_tokens"]), int(total["steps"])
        self.memory.target_tokens += tokens
        self.count(0)
        values = {
            "epoch": round(step / self.course.batches.steps_per_epoch, 4),
            "loss": _over(total["loss"], tokens),
            "perplexity": exp(_over(total["nll"], tokens)),
            "accuracy": _over(total["right"], tokens),
            "learning_rate": float(self.schedule(max(updates - 1, 0))),
            "gradient_norm": _over(total["gradient_norm"], steps),
            "target_tokens": self.memory.target_tokens,
            "skipped": skipped,
            **throughput.rates(int(total["source_tokens"]), tokens, steps),
        }
        self.metrics.write(step, values)
        self._warn_of_divergence(step, _over(total["nll"], tokens), progress)
        return values

    def fold(self, sums: IntervalSums) -> None:
        """Adds the devices' sums to those since the last line, in float64 and in whole numbers of any size."""
        for name, value in vars(sums).items():
            self.memory.since[name] = self.memory.since.get(name, 0) + value.item()

    def _warn_of_divergence(self, step: int, nll: float, progress: ProgressLine) -> None:
        """Once: a model that has learnt nothing at all is as bad as guessing, one that has diverged is far worse."""
        guessing = math.log(self.config.model.target_vocab_size or self.config.model.vocab_size)
        if not self.warned and step > self.config.optimizer.warmup_steps and nll > 2 * guessing:
            self.warned = True
            progress.tell(
                f"warning: {self.label}{nll:.3g} nats a token is worse than guessing blindly ({guessing:.3g}): has it "
                "diverged? A lower optimizer.learning_rate or an optimizer.clip_norm may help"
            )

    def validate(self, step: int, values: dict[str, float], params: Any, progress: ProgressLine) -> None:
        """Writes how well the model does on validation data, its evaluators' opinion included."""
        self.validated, self.score = step, None
        for evaluator in self.evaluators:
            values = {**values, **evaluator(params)}
        if not values:
            return
        self.metrics.write(step, values)
        told = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        progress.tell(f"{self.label}step {step:>7,}  {told}")
        name = self.config.train.best_metric
        if name not in values:
            raise BadInput(f"train.best_metric = {name!r} is not among what is validated: {', '.join(values)}")
        self.score = self.criterion.score(values[name])
        best = Best(self.memory.best, self.memory.validations_since_best)
        self.memory.note_best(best.and_then(self.score))

    def save(self, step: int, state: TrainState) -> None:
        """Begins to write a checkpoint, with the score of this step's validation, if there was one."""
        notes = {
            "memory": dataclasses.asdict(self.memory),
            "batches": self.course.batches.digest,
            "data": self.course.data,
            "best": dataclasses.asdict(self.criterion),
        }
        self.checkpoints.save(step, state, notes, self.score if self.validated == step else None)
        self.saved = step


def _over(total: Any, count: int) -> float:
    return float(total) / count if count else math.nan


def exp(x: float) -> float:
    return math.exp(min(x, 700.0))
