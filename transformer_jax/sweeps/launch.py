"""Launches a sweep: checks it, prepares its data, runs what is missing, and repeats nothing that is finished.

The way of a definition: `load` (resolved.py) -> `launch`: `ready` merges it with what the folder has and checks it,
`prepare_data` prepares its data, and sweep.json keeps it -> a worker reads sweep.json, finds its runs by their ids, and
trains each by `train_runs_together` (experiment.py).
"""

from __future__ import annotations

import collections
import dataclasses
import json
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.prepare import prepare
from transformer_jax.errors import EXIT_UNFINISHED, BadInput, ConfigError, Failed, did_you_mean
from transformer_jax.evaluation import load_metrics
from transformer_jax.files import remote
from transformer_jax.files.progress import tell
from transformer_jax.files.record import misfits
from transformer_jax.files.remote import name_of
from transformer_jax.processes.signals import StopSignals
from transformer_jax.runs.folder import identifying_versions
from transformer_jax.runs.metrics import counted
from transformer_jax.sweeps.definition import Definition
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.local import LocalPool, slots
from transformer_jax.sweeps.resolved import ResolvedSweep, training_flops, tune_text
from transformer_jax.sweeps.run import Job, SweepRun
from transformer_jax.sweeps.search import TUNING_SEEDS, best, proposed
from transformer_jax.sweeps.slurm import Slurm, SlurmPool
from transformer_jax.sweeps.status import BAD, UNFINISHED, Progress, RunStatus, failure, status_of, table

# What is said of runs that failed, and of those that diverged.
THEN = {
    "failed": "the same command tries again",
    "diverged": "a diverged run is not repeated unless its folder is removed",
}


@dataclasses.dataclass(frozen=True)
class LaunchOptions:
    """How a sweep is run this time; its results do not depend on it."""

    only: Sequence[str] | None = None  # patterns of variants' names
    jobs: int | None = None
    together: int | None = None  # runs at most in one program, 0 for all that fit; none = one
    retries: int = 0
    fail_fast: bool = False
    accept_changed_code: bool = False  # recorded, and reported
    slurm: Slurm | None = None  # none = on this machine


def launch(sweep: SweepFolder, definition: ResolvedSweep, options: LaunchOptions) -> int:
    """Runs what is missing; returns the exit status."""
    variants = definition.chosen(options.only)
    if options.slurm is not None and (url := remote.url_of(sweep.path)):
        raise BadInput(f"{url}: the jobs of a sweep on SLURM need a folder that all nodes share, not a bucket")
    with sweep.held():
        definition = ready(sweep, definition, options)
        prepare_data(sweep, definition, variants)
        sweep.save(definition)
        with StopSignals() as signals:
            return Launcher(sweep, definition, variants, options, signals).run()


def ready(sweep: SweepFolder, definition: ResolvedSweep, options: LaunchOptions) -> ResolvedSweep:
    """The definition as it will be launched. Raises for all that cannot be launched, before data is prepared."""
    if options.slurm is not None:
        options.slurm.executor(sweep.path)
    sweep.check_place()
    definition = merged(sweep, definition, options.together is not None, options.only)
    if definition.began_together:
        tell(
            "--together: all seeds see the training pairs in one order, so seeds differ in the initial parameters and "
            "dropout only, and intervals do not account for the order"
        )
    if (looks := sweep.looks()) and (added := [seed for seed in definition.seeds if seed not in looks[0]["seeds"]]):
        seeds = ", ".join(map(str, added))
        tell(f"warning: seeds {seeds} are added after a report was made, which makes false positives more likely")
    code = definition.code_of()
    definition = dataclasses.replace(definition, code=code, accept_changed_code=options.accept_changed_code)
    _check_types(definition)
    for config in definition.experiments.values():
        load_metrics(config.decode.metrics)
    compare_code(sweep, definition)
    return definition


def _check_types(definition: ResolvedSweep) -> None:
    """Raises unless sweep.json, as it would be written, could be read again."""
    try:
        stored = json.loads(json.dumps(definition.to_json()))
    except (TypeError, ValueError) as error:
        raise BadInput(f"{definition.file}: sweep.json cannot hold it: {error}") from None
    if found := [f"{place} {problem}" for place, problem in misfits(stored, Definition)]:
        raise ConfigError([f"{definition.file}: {line}" for line in found])


def merged(
    sweep: SweepFolder, definition: ResolvedSweep, together: bool = False, only: Sequence[str] | None = None
) -> ResolvedSweep:
    """The definition with the seeds and settings already in the folder; raises if the folder has another sweep.

    Runs that train together see the same batches: unless a sweep states what varies, one that is started with
    `together` has one data order for all seeds.
    """
    if not sweep.definition_file.is_file():
        definition = dataclasses.replace(definition, only=None if only is None else tuple(only))
        if together and definition.sweep.vary is None:
            return dataclasses.replace(definition, vary=("initialization",), began_together=True)
        return definition
    stored = sweep.load()
    if definition.tune is None and not definition.sweep.search:
        definition = dataclasses.replace(definition, tune=stored.tune)
    if definition.sweep.vary is None:
        definition = dataclasses.replace(definition, vary=stored.vary)
    if found := differences(stored, definition):
        rule = (
            "contains another sweep; use another --workdir. Variants and seeds may be added later, but primary, "
            "answered_by, the main test set, margin and weights are declared before the first run. It differs in:"
        )
        raise ConfigError([f"{sweep.path}: {rule}", *(f"  {line}" for line in found)])
    if added := [name for name in definition.experiments if name not in stored.experiments]:
        before = counted(len(stored.experiments) - 1, "variant")
        tell(
            f"note: {', '.join(added)} added to {before} beside the baseline: intervals and p-values are corrected "
            "for more comparisons, so those of the other variants become wider"
        )
    if added := [name for name in definition.sweep.contrasts if name not in stored.sweep.contrasts]:
        tell(f"note: contrasts that were not declared before the first run: {', '.join(added)}")
    return dataclasses.replace(
        definition,
        seeds=tuple(dict.fromkeys([*stored.seeds, *definition.seeds])),
        began_together=stored.began_together,
        only=None if only is None or stored.only is None else tuple(dict.fromkeys([*stored.only, *only])),
    )


def differences(stored: ResolvedSweep, wanted: ResolvedSweep) -> list[str]:
    """How two definitions differ, where a sweep may not change, a line each."""
    old, new = _fixed(stored), _fixed(wanted)
    changed = [f"{name}: {old[name]} there, {new[name]} here" for name in old if name in new and old[name] != new[name]]
    removed = [name for name in stored.experiments if name not in wanted.experiments]
    changed += [f"variant {name!r}: there, but not here (use --only to leave it out)" for name in removed]
    kept = re.compile("contrast |search$|propose$|variant .*: levels$")
    changed += [f"{name}: there, but not here" for name in old if kept.match(name) and name not in new]
    if stored.sweep.search and wanted.settings < stored.settings:
        changed.append(f"trials: {stored.settings} there, {wanted.settings} here (more may be added)")
    if not {*(stored.tune or ())} <= {*(wanted.tune or ())}:
        tunes = f"{tune_text(stored.tune)} there, {tune_text(wanted.tune)} here"
        changed.append(f"tune: {tunes} (factors may be added)")
    return changed


def _fixed(definition: ResolvedSweep) -> dict[str, Any]:
    """The settings that may not change in a sweep, in words, with their values as in JSON. Variants may be added."""
    sweep = definition.sweep
    options = [o.path for o in schema.options(ExperimentConfig) if o.affects not in ("computation", "environment")]
    return {
        "name": sweep.name,
        "scale": definition.scale,
        "vary": ", ".join(definition.vary),
        **{name: getattr(sweep, name) for name in ("primary", "answered_by", "margin", "weights")},
        **({"main test set": sweep.tests[0]} if sweep.primary or sweep.analyses else {}),
        **({"search": _as_json(sweep.search), "propose": sweep.propose} if sweep.search else {}),
        **{f"contrast {name!r}": dict(weights) for name, weights in sweep.contrasts.items()},
        **{f"analysis {name!r}": address for name, address in sweep.analyses.items()},
        **{f"base: {path}": schema.value_at(definition.base, path) for path in options},
        **{f"variant {v.name!r}": _as_json(v.changes) for v in sweep.variants},
        **{f"variant {v.name!r}: same_as": v.same_as for v in sweep.variants},
        **{f"variant {v.name!r}: levels": dict(v.levels) for v in sweep.variants if v.levels},
    }


def _as_json(values: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(dict(values), default=str))


def compare_code(sweep: SweepFolder, definition: ResolvedSweep) -> None:
    """Raises if runs were trained by other custom code, unless that is accepted; warns of another library.

    Runs that another version of a metric or an analysis measured count as unfinished.
    """
    accepting = dataclasses.replace(definition, accept_changed_code=True)
    runs = sweep.all_runs(accepting)
    results = [(run, result) for run in runs if (result := run.result()) is not None]
    made_by = [(run, result.get("code", {})) for run, result in results]
    if definition.code:
        made_by += [(run, run.trained_by()) for run in runs if run.folder.saved_steps() and run.result() is None]
    measured_by = {name: definition.measured_by(name) for name in definition.experiments}
    lines = []
    for code, digest in definition.code.items():
        edited = [run for run, digests in made_by if digests.get(code, digest) != digest]
        if measured := [run for run in edited if code in measured_by[run.variant]]:
            tell(f"warning: {code} has changed since it measured {some_runs(measured)}: they are measured again")
        if trained := [run for run in edited if code not in measured_by[run.variant]]:
            lines.append(f"{code} has changed since {some_runs(trained)}")
    proposals = [proposal for of_variant in sweep.proposed().values() for proposal in of_variant]
    propose = definition.sweep.propose or ""
    if old := [each for each in proposals if each["code"] != definition.code.get(propose, each["code"])]:
        lines.append(f"{propose} has changed since it proposed {counted(len(old), 'setting')}")
    if lines and not definition.accept_changed_code:
        hint = "Use another --workdir, restore the code (each run has a copy in code/), or give --accept-changed-code"
        raise ConfigError([f"{sweep.path}: custom code was edited:", *(f"  {line}" for line in lines), hint])
    if other := [run for run, result in results if result.get("versions") != identifying_versions()]:
        lines.append(f"another version of the library or of JAX made {some_runs(other)}")
    for line in lines:
        tell(f"warning: {line}; the report mentions it")


def some_runs(runs: Sequence[SweepRun]) -> str:
    """ "54 runs, such as base, seed 0"."""
    return f"{counted(len(runs), 'run')}, such as {runs[0].name}" if len(runs) > 1 else runs[0].name


def prepare_data(sweep: SweepFolder, definition: ResolvedSweep, variants: Sequence[str]) -> None:
    """Prepares each data set once; raises for what could not be trained or evaluated on."""
    of_folder: dict[Path, SweepRun] = {}
    for run in sweep.all_runs(definition, variants):
        of_folder.setdefault(sweep.data(run.experiment), run)
    problems: list[str] = []
    for folder, run in of_folder.items():
        try:
            prepared = prepare(run.experiment, folder)
        except BadInput as problem:
            problems.append(f"variant {run.variant!r}: {problem}")
            continue
        known = [split for split in prepared.splits if split != "train" and len(prepared.pairs(split))]
        for split in definition.sweep.tests:
            if split not in known:
                hint = did_you_mean(str(split), known)
                problems.append(
                    f"variant {run.variant!r}: tests = {split!r}: its data has no such sentences; {hint} (data.tests "
                    "names test sets in files, TESTS in the file of a custom corpus its test sets)"
                )
        if definition.settings and "valid" not in known:
            problems.append(f"variant {run.variant!r}: settings are chosen by validation loss, and it has no such data")
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))


@dataclasses.dataclass
class Launcher:
    """One launch: first the runs that try settings, if the sweep has them, then the runs that are compared."""

    sweep: SweepFolder
    definition: ResolvedSweep
    variants: list[str]
    options: LaunchOptions
    signals: StopSignals
    statuses: list[RunStatus] = dataclasses.field(default_factory=list)  # of all runs so far

    def run(self) -> int:
        tried: dict[str, RunStatus] = {}
        while not self._is_over() and (runs := self.sweep.tuning_runs(self.definition, self.variants)):
            what = "settings" if self.definition.sweep.search else "learning rates"
            print(f"{counted(len(runs), 'run')} to choose {what}", flush=True)
            tried |= {status.run.run_id: status for status in self._run_missing(runs)}
            if not self._is_over():
                self._choose(runs)
        undecided = {at.run.variant for at in tried.values() if at.state not in ("finished", "diverged")}
        # A setting that diverges is no failure of a variant, unless none can be chosen.
        learned = {*map(self.definition.tuned_as, self.variants), *undecided}
        self.statuses = [at for at in tried.values() if at.state != "diverged" or at.run.variant not in learned]
        if self.variants and not self._is_over():
            self._run_missing(self.sweep.runs(self.definition, self.variants))
        return self._conclude()

    def _choose(self, tuning_runs: Sequence[SweepRun]) -> None:
        """Chooses the setting of each variant whose runs are over, or has the next one proposed; leaves out the other
        variants.

        A run that failed has not told how good its setting is, which may be the best.
        """
        definition = self.definition
        for name in dict.fromkeys(run.variant for run in tuning_runs):
            runs = [run for run in tuning_runs if run.variant == name]
            is_over = all(run.is_finished() or run.has_diverged() for run in runs)
            if is_over and len(runs) < definition.settings * len(TUNING_SEEDS):
                definition.refuse_edited()
                proposal = proposed(definition.sweep, name, definition.experiments[name], runs)
                self.sweep.record_proposed(name, proposal)
            elif is_over and (choice := best(runs)) is not None:
                self.sweep.record_tuned(definition.variant(name), choice)
                titles = {run.setting.name: run.setting.title for run in runs if run.setting is not None}
                losses = (f"{loss:.4g} at {titles[at]}" for at, loss in choice["losses"].items() if loss is not None)
                title = titles[f"{choice.get('setting', choice['factor']):g}"]
                print(f"{name}: {title} (validation loss {', '.join(losses)})", flush=True)
                factors, edge = definition.tune or (), f"x {choice['lowest']:g}; add a factor beyond it to --tune"
                if factors and choice["lowest"] in (min(factors), max(factors)):
                    tell(f"warning: {name}: the lowest loss is at the edge, {edge}")
            else:
                self.variants = [other for other in self.variants if definition.tuned_as(other) != name]

    def _run_missing(self, runs: Sequence[SweepRun]) -> list[RunStatus]:
        """Runs those that are not finished; returns how all stand then."""
        progress, options = Progress(runs), self.options
        missing = [run for run in runs if not run.is_finished() and not run.has_diverged()]
        if options.slurm is not None:
            pool: LocalPool | SlurmPool = SlurmPool(self.sweep, options.slurm, progress)
        else:
            pool = LocalPool(self.sweep, slots(options.jobs))
        jobs = in_order(grouped(missing, options.together), self.definition)
        run_jobs(pool, jobs, progress, self.signals, options.retries, options.fail_fast)
        statuses = progress.statuses()
        self.statuses += statuses
        for text in [table(statuses), *(failure(status) for status in statuses if status.state in BAD)]:
            print(f"\n{text}", flush=True)
        return statuses

    def _named(self, *states: str) -> list[str]:
        return [status.run.name for status in self.statuses if status.state in states]

    def _is_over(self) -> bool:
        return bool(self.signals.asked or self._is_detached() or (self.options.fail_fast and self._named("failed")))

    def _is_detached(self) -> bool:
        """Whether runs remain that this launch does not wait for."""
        return self.options.slurm is not None and self.options.slurm.detach and bool(self._named(*UNFINISHED))

    def _conclude(self) -> int:
        if self.signals.asked:
            tell(f"stopped {self.signals.asked}; the same command resumes the sweep")
            return EXIT_UNFINISHED
        unfinished = self._named(*UNFINISHED)
        if self._is_detached():
            then = "when they are done, the same command submits what is left, if anything"
            print(f"\nleft to the cluster: {counted(len(unfinished), 'run')}; {then}", flush=True)
            return 0
        for state, then in THEN.items():
            if names := self._named(state):
                raise Failed(f"{counted(len(names), 'run')} {state}; {then}: {'; '.join(names)}")
        if unfinished:
            tell(f"not finished: {counted(len(unfinished), 'run')}; the same command resumes the sweep")
            return EXIT_UNFINISHED
        print(f"\ntransformer-jax report {shlex.quote(name_of(str(self.sweep.path)))}    writes the report", flush=True)
        return 0


def in_order(jobs: Sequence[Job], definition: ResolvedSweep) -> list[Job]:
    """The order in which jobs start: seed by seed, so that a sweep that is cut short has whole comparisons.

    Within a seed the baseline is first, because all others are compared with it, and then the most expensive.
    """
    baselines = {variant.baseline or definition.sweep.baseline for variant in definition.sweep.variants}
    seeds = [*TUNING_SEEDS, *definition.seeds]

    def place(job: Job) -> tuple[int, bool, float]:
        first = min((seeds.index(run.seed), run.variant not in baselines) for run in job)
        return *first, -sum(training_flops(run.experiment) for run in job)

    return sorted(jobs, key=place)


def run_jobs(
    pool: LocalPool | SlurmPool,
    jobs: Sequence[Job],
    progress: Progress,
    signals: StopSignals,
    retries: int = 0,
    fail_fast: bool = False,
) -> None:
    """Returns when all runs have ended; after a stop signal, or a failure with `fail_fast`, when all are saved.

    A run that saved and stopped by itself, as after `train.hours`, is resumed if it came further.
    """
    pending, failures, reached = list(jobs), collections.Counter[str](), collections.Counter[str]()
    stopping = False
    progress.pending |= {run.run_id: "waiting" for job in jobs for run in job}
    while pending or pool.is_busy():
        too_many = fail_fast and any(count > retries for count in failures.values())
        if not stopping and (signals.asked or too_many):
            stopping = True
            pool.stop()
        pending = [] if stopping else pool.start(pending)
        again: set[str] = set()
        for run in pool.ended():
            progress.pending.pop(run.run_id, None)
            status = status_of(run)
            is_further = status.step > reached[run.run_id]
            reached[run.run_id] = status.step
            may_start = status.state == "stopped" and is_further and not run.attempt().get("asked", True)
            if status.state == "failed":
                failures[run.run_id] += 1
                may_start = failures[run.run_id] <= retries
            if may_start and not stopping:
                reason = status.error.partition("\n")[0]
                progress.print(f"{run.name}: {status.state}, starting it again: {reason}")
                progress.pending[run.run_id] = "waiting"
                again.add(run.run_id)
        pending += filter(None, ([run for run in job if run.run_id in again] for job in jobs))
        progress.show_changes()
        if pending or pool.is_busy():
            time.sleep(pool.seconds_between_polls)
    progress.show_changes(now=True)


def grouped(runs: Sequence[SweepRun], at_most: int | None) -> list[list[SweepRun]]:
    """The runs that each process trains: one, or those that differ only in numbers."""
    if at_most is None:
        return [[run] for run in runs]
    from transformer_jax.training.together import incompatible

    groups: list[list[SweepRun]] = []
    for run in runs:
        open_groups = (group for group in groups if len(group) != at_most)
        fitting = (group for group in open_groups if not incompatible([group[0].experiment, run.experiment]))
        if (group := next(fitting, None)) is not None:
            group.append(run)
        else:
            groups.append([run])
    return groups
