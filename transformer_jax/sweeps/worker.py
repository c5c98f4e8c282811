"""A worker process of a sweep: trains runs, one or several together, and evaluates them.

    python -P -m transformer_jax.sweeps.worker SWEEP SLUG/seed-N [SLUG/seed-N ...]

It saves and stops when its stdin is closed. How each run went is in its attempt.json. The launcher stores what is
printed as the run's log.txt.
"""

import contextlib
import json
import os
import signal
import socket
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from transformer_jax import extension
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import training_batches
from transformer_jax.data.prepare import prepare
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import EXIT_UNFINISHED, BadInput, Diverged, Failed
from transformer_jax.evaluation import Metric, load_metrics, score_of
from transformer_jax.experiment import TestSet, evaluate_run, identity, split_of, train_runs_together
from transformer_jax.extension import UserCodeError, read_code
from transformer_jax.files.atomic import explained, write_json, write_record
from transformer_jax.files.output import use_in_this_command
from transformer_jax.files.progress import tell
from transformer_jax.files.record import read_if_sound
from transformer_jax.metric_names import COMPARED, TEXTS, TRANSLATIONS, VALIDATION
from transformer_jax.model.size import training_flops
from transformer_jax.processes.compilation import CompileWatch
from transformer_jax.processes.hardware import keep_freed_memory
from transformer_jax.runs.export import SavedWeights, write_export
from transformer_jax.runs.folder import RunFolder, identifying_versions, numerics
from transformer_jax.runs.metrics import is_validation, metrics_lines
from transformer_jax.runs.records import IDENTITY, Record, difference, translations
from transformer_jax.runs.tracking import Labels
from transformer_jax.sweeps import shielded
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.resolved import ResolvedSweep
from transformer_jax.sweeps.run import Result, SweepRun, digest, now
from transformer_jax.training.progress import count
from transformer_jax.translation.load import Run, load_run

# Seconds after which an exception that was raised for a signal must have arrived.
SECONDS_TO_ARRIVE = 1.0
# Lines of a traceback that are kept as the reason of a failure.
KEPT_LINES = 8
# The values of a line of metrics that are totalled.
OF_TRAINING = ("seconds", "source_tokens_per_second", "target_tokens_per_second", "target_tokens")


class Stopped(BaseException):
    """This process was asked to stop. Like KeyboardInterrupt, it is not caught by `except Exception`."""


class Worker:
    """The runs of one process."""

    def __init__(self, sweep: SweepFolder, definition: ResolvedSweep, runs: Sequence[SweepRun]):
        self.sweep, self.definition, self.runs = sweep, definition, runs
        self.stopping = False
        self.failed: set[str] = set()  # ids of runs, those that diverged included
        self._is_over, self._raise_again_at = False, 0.0

    def work(self) -> int:
        """Trains and evaluates all runs; returns the exit status."""
        with contextlib.ExitStack() as locks:
            try:
                self._handle_signals()
                if unfinished := self._lock(locks):
                    self._train_and_evaluate(unfinished)
            except Stopped:
                self._is_over = True
                for run in self.runs:
                    if run.result() is None and run.run_id not in self.failed:
                        self._record(run, "stopped", asked=True)
            self._is_over = True
        is_stopped = any(run.attempt().get("state") == "stopped" for run in self.runs)
        return 1 if self.failed else EXIT_UNFINISHED if is_stopped else 0

    def stop_when_stdin_ends(self) -> None:
        """In another thread: when the launcher closes the pipe (the kernel does if it dies), training saves and ends.

        Anything else is abandoned.
        """
        while os.read(0, 4096):
            pass
        self.stopping = True
        os.kill(os.getpid(), signal.SIGTERM)

    def _handle_signals(self) -> None:
        """Handles signals, which a job on a cluster has blocked until now (shielded.py)."""
        for number in (signal.SIGUSR1, signal.SIGUSR2):  # for the job, which then closes stdin
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._raise)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, shielded.SIGNALS)

    def _raise(self, number: int, frame: object) -> None:
        """Raises Stopped, and again a second later if it did not arrive: in a callback, such as one of the garbage
        collector, Python prints an exception and goes on. Other signals are ignored meanwhile and afterwards."""
        self.stopping = True
        if self._is_over or time.monotonic() < self._raise_again_at:
            return
        self._raise_again_at = time.monotonic() + SECONDS_TO_ARRIVE
        again = threading.Timer(SECONDS_TO_ARRIVE, self._ask_again)
        again.daemon = True
        again.start()
        raise Stopped

    def _ask_again(self) -> None:
        if not self._is_over:
            os.kill(os.getpid(), signal.SIGTERM)

    def _lock(self, locks: contextlib.ExitStack) -> list[SweepRun]:
        """Waits until no other process works on these runs; returns those that are not finished then."""
        unfinished = []
        for run in sorted(self.runs, key=lambda run: run.run_id):  # always in this order, to prevent a deadlock
            with self._failing(run):
                locks.enter_context(run.held())
                if run.is_finished():
                    self._record(run, "finished")
                    continue
                stored = read_if_sound(run.path / "result.json", Result)
                is_of_another = stored is not None and stored.get("config_digest") != digest(run.experiment)
                # Its records are of another evaluation now, or it was copied here. Reports must not have it meanwhile.
                if run.result() is not None or is_of_another:
                    (run.path / "result.json").unlink()
                tries = run.attempt().get("tries", 0) + 1
                self._record(run, "running", tries=tries, started=now(), ended=None, error=None)
                unfinished.append(run)
        return unfinished

    def _train_and_evaluate(self, runs: Sequence[SweepRun]) -> None:
        """Trains runs, together if there are several, and evaluates them."""
        ready, watch = [], CompileWatch()
        for run in runs:
            with self._failing(run):
                self.definition.refuse_edited(run)
                self._link_data(run)
                ready.append(run)
        if not ready:
            return
        try:
            endings = train_runs_together([run.experiment for run in ready], [self._folder(run) for run in ready])
        except Exception as error:  # perhaps of one run's folder
            if len(ready) == 1:
                self._fail(ready[0], error)
                return
            tell(f"{len(ready)} runs cannot train together: {reason_of(error)}; they train separately")
            for run in ready:
                if self.stopping:
                    raise Stopped from None
                self._train_and_evaluate([run])
            return
        trained = []
        for run, ending in zip(ready, endings, strict=True):
            if ending.diverged:
                self._fail(run, Diverged(ending.why))
            elif not ending.final:
                self._record(run, "stopped", error=ending.why, asked=self.stopping)
            else:
                trained.append((run, ending.together))
        for run, together in trained:
            if self.stopping:
                raise Stopped
            with self._failing(run):
                finish(run, self.definition, together, watch)
                self._record(run, "finished")

    def _folder(self, run: SweepRun) -> RunFolder:
        labels = Labels(self.definition.sweep.name, run.variant, run.name)
        return RunFolder(run.path, accept_changed_code=self.definition.accept_changed_code, labels=labels)

    def _link_data(self, run: SweepRun) -> None:
        """Prepares the data, or waits for the process that does, and links it into the run's folder."""
        shared = self.sweep.data(run.experiment)
        prepare(run.experiment, shared)
        link = run.path / "data"
        if run.experiment.data.directory is None and not link.exists():
            with explained(run.path):
                link.unlink(missing_ok=True)  # a dangling link
                link.symlink_to(os.path.relpath(shared, run.path), target_is_directory=True)

    def _record(self, run: SweepRun, state: str, **values: object) -> None:
        """Records the state of a run in its folder."""
        self.sweep.refuse_removed()
        if state != "running":
            values = {"ended": now(), **values}
        run.record_attempt(state=state, host=socket.gethostname(), pid=os.getpid(), **values)

    def _fail(self, run: SweepRun, error: Exception) -> None:
        self.failed.add(run.run_id)
        state, reason = "diverged" if isinstance(error, Diverged) else "failed", reason_of(error)
        tell(f"{run.name}: {state}: {reason}")
        with contextlib.suppress(OSError, BadInput, Failed):  # the disk may be what failed
            self._record(run, state, error=reason)

    @contextlib.contextmanager
    def _failing(self, run: SweepRun) -> Iterator[None]:
        """An exception inside is a failure of this run, not of the process."""
        try:
            yield
        except Exception as error:
            self._fail(run, error)


def reason_of(error: Exception) -> str:
    """Why a run failed: the message if the cause is known, the end of the traceback if code is the cause."""
    is_known = isinstance(error, (BadInput, Failed))
    if isinstance(error, UserCodeError):
        trace = error.traceback
    else:
        trace = "" if is_known else "".join(traceback.format_exception(error))
    return "\n".join([*[str(error)] * is_known, *trace.rstrip().splitlines()[-KEPT_LINES:]])


def finish(run: SweepRun, definition: ResolvedSweep, together: int, watch: CompileWatch) -> None:
    """Evaluates a trained run, as far as that is not done yet, and analyses it; writes result.json last."""
    weights = definition.sweep.weights
    if weights == "ema" and run.experiment.optimizer.ema is None:
        weights = "latest"
    if weights == "averaged":
        saved = SavedWeights(run.folder)
        steps = saved.regular_steps[-saved.config.train.keep_latest :]
        write_export(run.folder.averaged, saved.average(steps), replace=True)
    model = load_run(run.path, weights)
    config = run.folder.load_config()  # with the actual sizes of the vocabularies
    test_sets = {split: split_of(run.path, config, split) for split in run.tests}
    metrics = load_metrics(config.decode.metrics)
    tests = {split: measured_on(run, model, test_set, weights, metrics) for split, test_set in test_sets.items()}
    code = run.trained_by()
    if tests:
        code |= {metric.function.address: metric.code for metric in metrics.values()}
    for name in run.analyses:
        address = definition.sweep.analyses[name]
        code[address] = read_code(address).digest
        found = analyse(model, config, test_sets, name, address)
        if (score := found.get("score")) is not None:
            tests[run.tests[0]]["custom_metrics"][name] = score
        elif name == definition.sweep.primary:
            raise BadInput(f"analysis {name!r}: is the primary metric; {address} must return a 'score'")
        with explained(run.path):
            run.analysis(name).parent.mkdir(exist_ok=True)
            write_json(run.analysis(name), found)
    facts = numerics()
    cores = f"{facts['cores']} CPU core{'s' * (facts['cores'] != 1)}"
    result = {
        "variant": run.variant,
        "seed": run.seed,
        "config_digest": digest(run.experiment),
        "parameters": count(model.params),
        "learning_rate": config.optimizer.peak_rate(config.model.base_d_model),
        **training(run, config, model.steps[0] if weights == "best" else None),
        "tests": tests,
        "code": code,
        "versions": identifying_versions(),
        "together": together,
        "devices": cores if jax.default_backend() == "cpu" else str(facts["devices"]),
        "compile_seconds": watch.seconds,
    }
    with explained(run.path):
        write_record(run.path / "result.json", result)


def measured_on(
    run: SweepRun, model: Run, test_set: TestSet, weights: str, metrics: Mapping[str, Metric]
) -> dict[str, Any]:
    """The scores on a split; it is translated now unless the same weights were evaluated in the same way before."""
    directory, name = run.path / "translations", f"{test_set.file_name}.{weights}"
    record = read_if_sound(directory / f"{name}.json", Record)
    wanted = identity(model, model.config.decode, test_set, metrics)
    if record is None or difference(record, wanted) or translations(directory / f"{name}.json", record) is None:
        evaluation = evaluate_run(model, model.config.decode, test_set, weights, metrics)
        evaluation.save(directory, name)
        record = evaluation.record
    return {
        "file": f"translations/{name}.json",
        **{key: wanted[key] for key in IDENTITY},
        **{name: scores["score"] for name, scores in record["measures"].items() if name in TEXTS},
        "perplexity_per_token": record["perplexity"]["per_token"],
        "exact_match": {key: record["exact_match"][key] for key in ("right", "total")},
        "custom_metrics": {name: record["measures"][name]["score"] for name in wanted["metrics"]},
    }


def analyse(model: Run, config: ExperimentConfig, tests: dict[str, TestSet], name: str, address: str) -> dict[str, Any]:
    """The result of an analysis, a function in a user's file, for a model; with the `scores` of sentences, if any."""
    with extension.running(extension.file_of(address)):
        found = extension.load_object(address)(model, config, tests)
    try:
        found = {**found}
        if (score := found.get("score")) is not None:
            found["score"], found["scores"] = score_of(score, len(next(iter(tests.values())).sources))
        json.dumps(found)
    except (TypeError, ValueError) as error:
        raise BadInput(f"analysis {name!r}: {address} must return a dict that can be stored as JSON: {error}") from None
    if found.get("score") is not None and name in COMPARED:
        raise BadInput(f"analysis {name!r}: is the name of a metric; an analysis with a score needs another one")
    return found


def training(run: SweepRun, config: ExperimentConfig, at_step: int | None = None) -> dict[str, Any]:
    """Totals of the training from metrics.jsonl; the validation is the one at this step, or the last."""
    step = target_tokens = 0
    seconds = source_tokens = timed_tokens = 0.0
    speeds: list[float] = []
    last: Mapping[str, Any] = {}
    for line in metrics_lines(run.folder.metrics):
        step = line["step"]
        if is_validation(line) and at_step in (None, step):
            last = line
        if all(line.get(name) is not None for name in OF_TRAINING):
            seconds += line["seconds"]
            source_tokens += line["source_tokens_per_second"] * line["seconds"]
            timed_tokens += line["target_tokens_per_second"] * line["seconds"]
            target_tokens = line["target_tokens"]
            speeds.append(line["target_tokens_per_second"])
    if not speeds:
        raise Failed(f"{run.folder.metrics}: has no line of training metrics")
    # Of a process that was stopped between two lines, the last steps have no seconds there: they count like the others.
    whole = target_tokens / timed_tokens if timed_tokens else 1.0
    pairs = training_batches(config.data, Prepared.open(run.folder.data(config)).pairs("train")).statistics()
    lengths = (round(tokens / pairs.pairs) for tokens in (pairs.source_tokens, pairs.target_tokens))
    return {
        "steps": step,
        "target_tokens": target_tokens,
        "longest_target": pairs.longest_target,
        "train_seconds": seconds * whole,
        # The median, because lines during which other programs are compiled are slower.
        "tokens_per_second": statistics.median(speeds),
        "training_flops": training_flops(config.model, *lengths).of(source_tokens * whole, target_tokens),
        "valid": {name.removeprefix("valid_"): last[name] for name in (*VALIDATION, *TRANSLATIONS) if name in last},
    }


def main() -> int:
    path, *run_ids = sys.argv[1:]
    use_in_this_command()
    keep_freed_memory()  # must come before any thread is started
    with SweepFolder(path).in_original_directory() as sweep:
        definition = sweep.load()
        runs = sweep.by_id(definition)
        worker = Worker(sweep, definition, [runs[run_id] for run_id in run_ids])
        threading.Thread(target=worker.stop_when_stdin_ends, daemon=True).start()
        return worker.work()


if __name__ == "__main__":
    sys.exit(main())
