"""A training, from top to bottom: set up, restore, loop (step, log, save, validate), end.

It is of one run, or of several as one program (together.py says which). These see the same batches, each with the
random numbers of its seed, log, save and validate at the same steps, and end together. Each keeps its folder as if it
had trained alone.
"""

import collections
import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax

from transformer_jax.config import ExperimentConfig, TrainConfig
from transformer_jax.data.batching import EvaluationBatches, training_batches
from transformer_jax.data.prefetch import Prefetcher
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import EXIT_UNFINISHED, BadInput, ConfigError
from transformer_jax.files.progress import tell
from transformer_jax.model.build import position_limit
from transformer_jax.processes import watchdog
from transformer_jax.processes.compilation import CompileWatch
from transformer_jax.processes.distributed import processes
from transformer_jax.processes.hardware import memory, seconds_since_start
from transformer_jax.processes.signals import StopSignals
from transformer_jax.runs.checkpoint import Checkpoints, DamagedCheckpoint
from transformer_jax.runs.folder import RunFolder
from transformer_jax.runs.metrics import (
    Criterion,
    MetricsFile,
    count_text,
    is_validation,
    last_lines,
    validations_since_best,
)
from transformer_jax.schema import is_address
from transformer_jax.training.compiled import COMPILING, Advance, CompiledRuns
from transformer_jax.training.progress import ProgressLine, Throughput, header
from transformer_jax.update import sharding
from transformer_jax.update.loss import TokenSums
from transformer_jax.update.optimizer import ends_with_the_run, make_schedule
from transformer_jax.update.step import IntervalSums, StepOutcome, TrainState

if TYPE_CHECKING:
    from transformer_jax.training.debugging import Debugging

# How many steps the host may be ahead of the devices.
STEPS_AHEAD = 2
# Devices count the tokens between two lines of metrics in int32.
MOST_COUNTED = 2**31 - 1
# The fewest validations whose trend counts.
FEWEST = 5
# Called with the parameters at each validation; what it returns is added to the line in metrics.jsonl.
Evaluator = Callable[[Any], Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Ending:
    """Why a run ends. A run that was only stopped (not `final`) can be resumed."""

    why: str
    final: bool = True
    diverged: bool = False


def train(
    configs: Sequence[ExperimentConfig],
    prepared: Prepared,
    folders: Sequence[RunFolder],
    evaluator: Evaluator | None = None,
    params: Any = None,
    debugging: "Debugging | None" = None,
) -> list[Ending]:
    """Trains runs, or resumes them, until they end; returns how each ended.

    One new run may start from `params`. Several runs must be compatible (together.py).
    """
    setup = RunSetup(configs, prepared, is_evaluated=evaluator is not None)
    compiled = CompiledRuns(configs, setup.schedules, setup.mesh, params)
    refuse_too_large(compiled.abstract_states)
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        advance: Advance = compiled.advance
        if debugging is not None:
            advance = stack.enter_context(debugging.around(compiled, setup.last_step, folders[0].profile))
        runs = [
            stack.enter_context(
                Recorder.opened(config, schedule, folder, setup, label=f"{folder.path}: " if folders[1:] else "")
            )
            for config, schedule, folder in zip(configs, setup.schedules, folders, strict=True)
        ]
        pool = ThreadPoolExecutor(COMPILING)
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        saved_step, restored = restore(runs, compiled.abstract_state)
        compile_ahead(setup, compiled, pool, saved_step or 0)
        # The checkpoint of a run that was stopped at step 0 has the parameters that it was to start from.
        states = compiled.new_states() if saved_step is None else compiled.join(restored)
        return Trainer(setup, compiled, advance, runs, evaluator, signals, states, saved_step).train()


def refuse_too_large(states: TrainState) -> None:
    """Raises BadInput if the states alone are larger than a device's memory: compiling them may never end."""
    leaves = jax.tree.leaves(states)
    needed = sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)
    available = memory()
    if available is not None and needed > available:
        raise BadInput(
            f"parameters and optimizer need {count_text(needed)}B of memory on each device, which has "
            f"{count_text(available)}B: choose a smaller model (model.d_model, model.num_encoder_layers ...)"
        )


class RunSetup:
    """All that is fixed before runs start: mesh, batches, validation data, last step, learning rates."""

    def __init__(self, configs: Sequence[ExperimentConfig], prepared: Prepared, is_evaluated: bool):
        self.configs, config = configs, configs[0]
        self.mesh = sharding.make_mesh(config.mesh)
        self.share = sharding.batch_share(self.mesh)
        # Batches are cut into equal shards for devices and into microbatches; empty rows fill up.
        shards = sharding.batch_shards(self.mesh)
        self.batches = training_batches(config.data, prepared.pairs("train"), shards * config.train.accumulate)
        self.validation: EvaluationBatches | None = None
        if "valid" in prepared.splits and len(pairs := prepared.pairs("valid")):
            self.validation = EvaluationBatches(
                pairs, tokens_per_batch=config.data.tokens_per_batch, row_multiple=shards
            )
        self.left_out = prepared.left_out("train")
        self.data, self.references = prepared.fingerprint, prepared.texts_digest("valid")
        self.compilations = CompileWatch()
        self.last_step = self.last_step_of(config.train)
        self.most_tokens = max(shape.rows * max(shape.source, shape.target) for shape in self.batches.shapes)
        if problems := list(self._problems(is_evaluated)):
            raise ConfigError(problems)
        self.schedules = [make_schedule(each.optimizer, each.model.base_d_model, self.last_step) for each in configs]

    def _problems(self, is_evaluated: bool) -> Iterator[str]:
        """Checks that would otherwise fail at the first batch or at the first validation, hours later."""
        model, train = self.configs[0].model, self.configs[0].train
        shapes = [*self.batches.shapes, *(self.validation.shapes if self.validation else ())]
        limit, longest = position_limit(model), max(max(shape.source, shape.target) for shape in shapes)
        if limit is not None and longest > limit:
            yield (
                f"model.max_length: the model's positions end at {limit}, but the longest row of a batch has {longest} "
                "tokens: raise it (and train anew), or lower data.max_length (for training data)"
            )
        if self.most_tokens * min(train.log_every, self.last_step) > MOST_COUNTED:
            yield f"train.log_every = {train.log_every:,}: a line has more than {MOST_COUNTED:,} tokens: lower it"
        for name, measures in (("patience", is_evaluated), ("until_flat", False)):
            if (limit := getattr(train, name)) is not None and self.validation is None and not measures:
                yield f"train.{name} = {limit:g} needs validation data, and there is none"
        for optimizer in (config.optimizer for config in self.configs):
            if optimizer.warmup_steps > self.last_step and not is_address(optimizer.schedule):
                yield (
                    f"optimizer.warmup_steps = {optimizer.warmup_steps} lies beyond the run of {self.last_step:,} "
                    "steps: the learning rate would never reach its peak"
                )

    def last_step_of(self, train: TrainConfig) -> int:
        """The last step of a run on this data with these options."""
        return train.last_step(self.batches.steps_per_epoch)

    def placed_batch(self, step: int) -> Any:
        """The batch of a step, on the devices. The prefetching thread calls this."""
        return sharding.place_batch(self.batches.batch(step, *self.share), self.mesh)

    def placed_validation_batch(self, number: int) -> Any:
        assert self.validation is not None
        return sharding.place_batch(self.validation.batch(number, *self.share), self.mesh)

    def over_validation_data(
        self, evaluate: Callable[[Any, Any], TokenSums], params: Any, is_stopped: Callable[[], bool] = lambda: False
    ) -> TokenSums | None:
        """Sums over every validation sentence once, in float64; None without validation data, or if it is stopped."""
        if self.validation is None:
            return None
        totals: Any = 0.0
        for number in range(len(self.validation)):
            sums = evaluate(params, self.placed_validation_batch(number))
            with watchdog.waiting():
                totals = totals + np.asarray(jax.device_get(sums), np.float64)
            if is_stopped():
                return None
        return TokenSums(*totals)


# Restore.


def restore(runs: Sequence["Recorder"], abstract_state: TrainState) -> tuple[int | None, Sequence[TrainState]]:
    """The newest step of which all runs have an undamaged checkpoint, and their states there; or None: from step 0.

    With several processes the first chooses the step, and all must be able to read it before anything is moved.
    """
    damaged: dict[int, Sequence[str]] = {}
    restored: Sequence[Any] = [(None, {})] * len(runs)
    saved_step = None
    common = set.intersection(*(set(run.checkpoints.steps) for run in runs))
    for step in processes().broadcast(sorted(common, reverse=True)):
        restored, problems = zip(*[_read(run, step, abstract_state) for run in runs], strict=True)
        if not any(problems):
            saved_step = step
            break
        damaged[step] = problems
    if damaged and saved_step is None:
        reasons = "; ".join(f"step {step}: {', '.join(filter(None, each))}" for step, each in damaged.items())
        raise BadInput(f"{runs[0].folder.checkpoints}: every checkpoint is damaged ({reasons})")
    for step, problems in damaged.items():
        for run, problem in zip(runs, problems, strict=True):
            if problem:
                aside = run.checkpoints.set_aside(step)
                run.tell(f"the checkpoint of step {step} is damaged ({problem}); moved to {aside}", "warning: ")
    step = saved_step or 0
    processes().compare({"the restored step": step})
    for run, (_, notes) in zip(runs, restored, strict=True):
        run.resume(step, notes)
        if len(runs) > 1:
            run.checkpoints.drop_after(step)
    return saved_step, [state for state, _ in restored]


def _read(run: "Recorder", step: int, abstract_state: TrainState) -> tuple[tuple[Any, dict[str, Any]], str]:
    """The state and notes of a run's checkpoint, and what is wrong with it, which is the same in every process."""
    try:
        return run.checkpoints.restore(step, abstract_state), ""
    except DamagedCheckpoint as damage:
        return (None, {}), str(damage)


def compile_ahead(setup: RunSetup, compiled: CompiledRuns, pool: Executor, step: int) -> None:
    """Starts to compile the programs that are needed after a step, and prints what a log should begin with."""
    steps = setup.batches.first_of_each_shape(step, setup.last_step)
    of_validation = setup.validation.first_of_each_shape() if setup.validation else []
    batches = map(setup.placed_batch, steps), map(setup.placed_validation_batch, of_validation)
    compiling = compiled.compile_ahead(pool, *batches)
    if processes().is_first:
        if len(setup.configs) > 1:
            tell(f"{'together':>11}: {len(setup.configs)} runs")
        tell(header(compiled, setup.batches, setup.left_out, setup.last_step, len(compiling)))
        if setup.validation is None:
            tell("warning: there is no validation data: the loss on unseen sentences will not be known")
        if step:
            tell(f"resuming from the checkpoint of step {step:,}")


@dataclasses.dataclass(eq=False)
class Trainer:
    """The runs after `step` steps: their states on the devices, and a recorder for each."""

    setup: RunSetup
    compiled: CompiledRuns
    advance: Advance
    runs: Sequence["Recorder"]
    evaluator: Evaluator | None
    signals: StopSignals
    states: TrainState
    saved_step: int | None = None  # of the last checkpoint

    def __post_init__(self) -> None:
        self.train_config, self.step = self.setup.configs[0].train, self.saved_step or 0
        self.progress = ProgressLine(self.step, self.setup.last_step, self.compiled.clock)
        self._outcomes: collections.deque[StepOutcome] = collections.deque()  # of the last steps
        self._saved_at = time.monotonic()
        self.tokens, self._count_at = 0, 0  # target tokens at the last count, and the step of the next one

    # The loop.

    def train(self) -> list[Ending]:
        """Trains until the end."""
        train, last, statistics = self.train_config, self.setup.last_step, self.setup.batches.statistics()
        with contextlib.closing(self.progress.bar), Prefetcher(self.setup.placed_batch, self.step) as batches:
            if self.step and self.step % train.eval_every == 0:
                self.validate()  # if a kill came between the checkpoint and its validation
            devices, clock = self.setup.mesh.devices.size, self.compiled.clock
            speed = Throughput(self.setup.configs[0], statistics, devices, clock, batches, self.step)
            while (end := self.ending()) is None:
                self.take_step(next(batches))
                self.check_outcomes()
                if self.step % train.log_every == 0 or self.step == last or self.has_its_tokens():
                    self.log(speed)
                with speed.paused():
                    if self.step % train.checkpoint_every == 0 or self.is_late_for_a_checkpoint():
                        self.save()
                    if self.step % train.eval_every == 0:
                        self.validate()
            return self.end(end)

    def take_step(self, batch: Any) -> None:
        """One step. Its program may not be ready yet, which may take minutes."""
        for run in self.runs:
            run.checkpoints.check()  # of those that are written meanwhile
        waited = self.compiled.waited
        self.states, outcome = self.advance(self.states, batch)
        if self.compiled.waited > waited:
            self.progress.bar.unpause()
        self.step += 1
        watchdog.advance()
        self._outcomes.append(outcome)

    def check_outcomes(self) -> None:
        """Reads the outcomes of earlier steps, so that the host is never far ahead of the devices."""
        while len(self._outcomes) > (0 if self.step == self.setup.last_step else STEPS_AHEAD):
            step, outcome, losses = self.step - len(self._outcomes) + 1, self._outcomes.popleft(), []
            with watchdog.waiting():
                fetched = self.compiled.fetch((outcome.loss, outcome.bad_in_a_row))
            for number, (run, (loss, bad_in_a_row)) in enumerate(zip(self.runs, fetched, strict=True)):
                if bad_in_a_row >= self.train_config.max_bad_steps and not run.divergence:
                    rate = float(run.schedule(self.compiled.fetch(outcome.updates)[number]))
                    run.divergence = (
                        f"the gradient was not finite in {bad_in_a_row} steps in a row, up to step {step:,} (learning "
                        f"rate {rate:.3g}): a lower optimizer.learning_rate, more warmup, or optimizer.clip_norm may "
                        "help"
                    )
                    if len(self.runs) > 1:
                        run.tell(run.divergence, "failed: ")
                if not run.divergence:
                    losses.append(float(loss))
            if losses:
                self.progress.advance(float(np.mean(losses)))

    # Log, save, validate.

    def has_its_tokens(self) -> bool:
        """Whether the run, which trains alone, has the target tokens of `train.tokens`.

        Only the devices know, because skipped updates do not count. They are asked where full batches would reach the
        limit, which is seldom and does not depend on how often metrics are logged.
        """
        limit = self.train_config.tokens
        if limit is None:
            return False
        if self.step >= self._count_at:
            self.tokens = self.runs[0].logged_tokens + int(self.states.sums.target_tokens)
            self._count_at = self.step + max(1, -(-(limit - self.tokens) // self.setup.most_tokens))
        return self.tokens >= limit

    def log(self, speed: Throughput) -> None:
        """Writes a line of metrics of each run about the steps since the last one."""
        fetched = self.compiled.fetch((self.states.sums, self.states.updates))
        self.states = self.compiled.reset_sums(self.states)
        rates = functools.partial(speed.rates, speed.lap(self.step))
        lines = [
            run.log(self.step, sums, int(updates), rates)
            for run, (sums, updates) in zip(self.runs, fetched, strict=True)
        ]
        self.progress.report(self.step, lines)

    def save(self) -> None:
        """Starts to write a checkpoint of each run, once the last ones of all are complete: all have a common step."""
        if self.saved_step == self.step or all(run.divergence for run in self.runs):
            return
        for run in self.runs:
            run.wait()
        for run, state in zip(self.runs, self.compiled.split(self.states), strict=True):
            run.save(self.step, state)
        self.saved_step, self._saved_at = self.step, time.monotonic()

    def is_late_for_a_checkpoint(self) -> bool:
        """Whether train.checkpoint_minutes have passed since the last one. Several processes ask where they log."""
        minutes = self.train_config.checkpoint_minutes
        is_late = minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes
        if processes().count == 1 or minutes is None:
            return is_late
        return self.step % self.train_config.log_every == 0 and bool(processes().broadcast(is_late))

    def validate(self) -> bool:
        """Evaluates the runs on the validation data and with the evaluators, those that have not been at this step.

        A signal to stop ends this early (of several processes only where all agree, before the next step). Returns
        whether all are validated: if not, the resumed run does it.
        """
        pending = {number: run for number, run in enumerate(self.runs) if run.validated_step != self.step}
        if not pending:
            return True

        def is_stopped() -> bool:
            return processes().count == 1 and self.signals.asked is not None

        params = self.states.params
        sums = self.setup.over_validation_data(self.compiled.evaluate, params, is_stopped)
        of_runs = [None] * len(self.runs) if sums is None else self.compiled.fetch(sums)
        for number, run in pending.items():
            translated: Mapping[str, float] = {}
            if self.evaluator is not None and not is_stopped():
                translated = self.evaluator(self.compiled.params_of(params, number))
            if is_stopped():
                return False
            run.write_validation(self.step, of_runs[number], translated)
        return True

    # End.

    def ending(self) -> Ending | None:
        """Why the runs end here, or None: they are complete, or interrupted by a signal or by train.hours."""
        run, hours = self.runs[0], self.train_config.hours
        if all(run.divergence for run in self.runs):
            return Ending(run.divergence, diverged=True)
        if self.step >= self.setup.last_step:
            return Ending("finished")
        if self.has_its_tokens():
            return Ending(f"finished {self.tokens:,} target tokens")
        if reason := run.early_end():  # vmapped runs have no limits that depend on how they train
            return Ending(f"finished: {reason}")
        is_late = hours is not None and processes().is_first and seconds_since_start() > hours * 3600
        why = self.signals.stop_at(self.step, f"after train.hours = {hours:g}" if is_late else None)
        return None if why is None else Ending(f"stopped {why}", final=False)

    def end(self, end: Ending) -> list[Ending]:
        """Saves, and validates if the runs are complete."""
        if not end.diverged:
            self.save()
            if end.final and not self.validate():
                end = Ending(f"stopped {self.signals.asked}", final=False)
        endings = [run.end(self.step, end) for run in self.runs]
        if not end.final:
            self.signals.exit_status = EXIT_UNFINISHED  # from here on, while trackers and files are closed
        return endings


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
            record_config(
                self.folder, self.config, self.setup
            )  # not earlier: a run that cannot be resumed is not changed

    def _resume_counts(self, step: int, notes: Mapping[str, Any]) -> None:
        if notes["data"] != self.setup.data or notes["batches"] != self.setup.batches.digest:
            raise BadInput(
                f"{self.folder.path}: its prepared data has changed since the checkpoint of step {step}; "
                "put the old data back, or use another --workdir"
            )
        self.logged_tokens, self.divergence = notes["target_tokens"], notes["diverged"]
        before = Criterion.noted(notes)
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
        self._rank()

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

    def _rank(self) -> None:
        self.checkpoints.scores = {step: score for step, score in self.scores.items() if score is not None}

    def early_end(self) -> str:
        """Why the run ends before its last step, by train.patience or train.until_flat; or ""."""
        train = self.config.train
        if train.patience is not None and validations_since_best(self.scores) >= train.patience:
            return f"no better {train.best_metric} in {train.patience} validations (raise train.patience to train on)"
        if train.until_flat is not None:
            losses = {line["step"]: line.get("valid_loss") for line in self.validations}
            improvement = improvement_at_the_end(losses, self.config.optimizer.warmup_steps)
            if improvement is not None and improvement < train.until_flat:
                return (
                    f"the validation loss improved by {100 * improvement:.2g} % over the last fifth of the updates "
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
            self._rank()

    def save(self, step: int, state: Any) -> None:
        """Starts to write a checkpoint."""
        self.folder.refuse_other_training()
        notes = {
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
    """By which fraction validation losses, by step, fell over the last fifth of the updates; None if it is unknown.

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
