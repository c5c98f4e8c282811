"""What `--dry-run` prints: every variant, what differs in it, its size, and an estimate of the time it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.config import ExperimentConfig
from transformer_jax.runs.metrics import count_text, duration
from transformer_jax.schema import is_address
from transformer_jax.sweeps import estimate
from transformer_jax.sweeps.definition import Variant
from transformer_jax.sweeps.estimate import Counts, Work
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.local import slots
from transformer_jax.sweeps.spec import LENGTH, ResolvedSweep, parameters, training_flops
from transformer_jax.sweeps.status import RunStatus, status_of
from transformer_jax.sweeps.variance import listed
from transformer_jax.training.steps import updates
from transformer_jax.update.optimizer import peak_rate

LONGEST_DIFFERENCE = 60
UNCOUNTED = "train.epochs is counted once the data is prepared; until then a run is taken to have train.steps updates"


def plan(
    sweep: SweepFolder,
    definition: ResolvedSweep,
    variants: Sequence[str],
    places: Mapping[Path, Path],
    jobs: int | None = None,
) -> Iterator[str]:
    """A table of the variants; then, once updates were timed, how long what is not finished yet will take.

    `places`: where the data of each data folder is now, of data that is prepared.
    """
    experiments = {name: definition.experiments[name] for name in variants}
    data = {name: places.get(sweep.data(config)) for name, config in experiments.items()}
    counted = {name: updates(config, lambda place=data[name]: place) for name, config in experiments.items()}  # type: ignore[misc]
    counts = {name: estimate.counts(config, data[name], definition.sweep.tests) for name, config in experiments.items()}
    statuses = [status_of(run) for run in sweep.all_runs(definition, variants)]
    works = [_work(status, counted) for status in statuses if status.state not in ("finished", "diverged")]
    rows = [("variant", "differs in", "parameters", "FLOPs a run", "programs", "peak rate")]
    for name, config in experiments.items():
        flops = count_text(training_flops(config, counted[name]))
        programs = str(counts[name].programs + counts[name].other_programs)
        shown = changes(definition.variant(name))
        rows.append((name, shown, f"{parameters(config.model):,}", flops, programs, _peak_rate(config)))
    yield "\n".join(
        [
            f"{definition.sweep.name}: {definition.sweep.question}",
            "",
            _aligned(rows, texts=2),
            "",
            _runs_text(definition, variants, works, len(statuses) - len(works)),
            f"differences between seeds include: {listed(definition.vary)}",
            f"FLOPs are of full batches of {LENGTH}-token sentences (a report has those of the tokens trained on), "
            "parameters of the vocabulary asked for",
            *([UNCOUNTED] if None in counted.values() else []),
            *_unchecked(data),
        ]
    )
    if works:
        yield _times(sweep, definition, works, counts, data, jobs)


def _work(status: RunStatus, counted: Mapping[str, int | None]) -> Work:
    whole = counted[status.run.variant] or status.run.experiment.train.steps
    return Work(status.run, max(whole - status.step, 0))


def _runs_text(definition: ResolvedSweep, variants: Sequence[str], works: Sequence[Work], finished: int) -> str:
    seeds = ", ".join(map(str, definition.seeds))
    tune = f" and {len(definition.tune)} learning rates" if definition.tune else ""
    unchosen = {work.run.variant for work in works if work.run.factor is not None} if definition.sweep.untuned else ()
    at_most = f" (and at most {len(unchosen) * len(definition.seeds)} without tuned rates)" if unchosen else ""
    runs = f"{number(len(works), 'run')} to train{at_most}, {finished} finished"
    return f"{number(len(variants), 'variant')}, seeds {seeds}{tune}: {runs}"


def _unchecked(data: Mapping[str, Path | None]) -> list[str]:
    missing = [name for name, place in data.items() if place is None]
    if not missing:
        return []
    return [
        f"the data of {number(len(missing), 'variant')} is not prepared, and is missing or large: what it may "
        "not support, such as the size of a vocabulary, is not checked now"
    ]


def _times(
    sweep: SweepFolder,
    definition: ResolvedSweep,
    works: Sequence[Work],
    counts: Mapping[str, Counts],
    data: Mapping[str, Path | None],
    jobs: int | None,
) -> str:
    """How long the next run of each variant takes, and all that is left."""
    here = slots(jobs, definition.cores)
    names = list(dict.fromkeys(work.run.variant for work in works))
    known = [(run, estimate.seconds_taken(run)) for run in sweep.all_runs(definition) if run.is_finished()]
    finished = [(run, seconds) for run, seconds in known if seconds is not None]
    if finished:
        seconds = [estimate.seconds_by_finished(work, finished) for work in works]
    else:
        timed = estimate.timed_updates({name: definition.experiments[name] for name in names}, data, here[0])
        seconds, compiled = [], set[str]()
        for work in works:
            name = work.run.variant
            seconds.append(estimate.seconds_by_timing(work, counts[name], timed[name], name not in compiled))
            compiled.add(name)
    of_variant = dict(reversed([(work.run.variant, taken) for work, taken in zip(works, seconds, strict=True)]))
    rows = [("variant", "time of the next run"), *((name, duration(of_variant[name])) for name in names)]
    whole = max(sum(seconds) / len(here), *seconds)
    how = f"with {len(here)} processes at a time" if len(here) > 1 else "one after the other"
    by = f"by {number(len(finished), 'finished run')}" if finished else "by one update of each variant, timed now"
    return "\n".join(
        [
            "",
            _aligned(rows, texts=1),
            "",
            f"about {duration(whole)} {how} on this machine, {by}; right within a factor of two, if no run ends early",
        ]
    )


def _peak_rate(config: ExperimentConfig) -> str:
    if is_address(config.optimizer.schedule):
        return "custom"  # only the user's function knows
    return f"{peak_rate(config.optimizer, config.model.base_d_model):.3g}"


def number(count: int, noun: str) -> str:
    """A number of things: "1 run", "2 runs"."""
    return f"{count} {noun}{'s' * (count != 1)}"


def changes(variant: Variant) -> str:
    """The changes of a variant in a short line."""
    text = ", ".join(f"{path.partition('.')[2] or path}={_short(value)}" for path, value in variant.changes.items())
    return text if len(text) <= LONGEST_DIFFERENCE else text[: LONGEST_DIFFERENCE - 4] + " ..."


def _short(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _aligned(rows: Sequence[Sequence[str]], texts: int) -> str:
    """A table whose first columns, `texts` of them, are aligned left, and the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [[*map(str.ljust, row[:texts], widths), *map(str.rjust, row[texts:], widths[texts:])] for row in rows]
    return "\n".join(map("  ".join, aligned))
