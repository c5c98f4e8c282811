"""What `--dry-run` prints: every variant, what differs in it, its size, and an estimate of the time it takes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.prepared import MANIFEST
from transformer_jax.runs.metrics import count_text, duration
from transformer_jax.schema import is_address
from transformer_jax.sweeps.estimate import Work, left, pace_of, total
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.local import slots
from transformer_jax.sweeps.spec import LENGTH, Definition, Variant, parameters, training_flops
from transformer_jax.sweeps.variance import listed
from transformer_jax.training.setup import updates
from transformer_jax.update.optimizer import peak_rate

LONGEST_DIFFERENCE = 60
UNCOUNTED = "train.epochs is counted once the data is prepared; until then a run is taken to have train.steps updates"


def plan(
    sweep: SweepFolder,
    definition: Definition,
    variants: Sequence[str],
    jobs: int | None = None,
    together: int | None = None,
) -> Iterator[str]:
    """A table of the variants; then, once programs were timed, how long what is not finished yet will take."""
    runs, experiments = sweep.all_runs(definition, variants), definition.experiments
    counted = {name: updates(experiments[name], functools.partial(sweep.data, experiments[name])) for name in variants}
    flops = {name: training_flops(experiments[name], counted[name]) for name in variants}
    works = left(runs, counted)
    rows = [("variant", "differs in", "parameters", "FLOPs a run", "peak rate")]
    for name in variants:
        count = f"{parameters(experiments[name].model):,}"
        rows.append(
            (name, changes(definition.variant(name)), count, count_text(flops[name]), _peak_rate(experiments[name]))
        )
    seeds = ", ".join(map(str, definition.seeds))
    tune = f" and {len(definition.tune)} learning rates" if definition.tune else ""
    unchosen = (
        {work.run.variant for work in works if work.run.factor is not None} if definition.sweep.untuned else set()
    )
    at_most = f" (and at most {len(unchosen) * len(definition.seeds)} without tuned rates)" if unchosen else ""
    yield "\n".join(
        [
            f"{definition.sweep.name}: {definition.sweep.question}",
            "",
            _aligned(rows, texts=2),
            "",
            f"{number(len(variants), 'variant')}, seeds {seeds}{tune}: {number(len(works), 'run')} to train{at_most}, "
            f"{len(runs) - len(works)} finished",
            f"differences between seeds include: {listed(definition.vary)}",
            f"FLOPs are of full batches of {LENGTH}-token sentences (a report has those of the tokens trained on), "
            "parameters of the vocabulary asked for",
            *([UNCOUNTED] if None in counted.values() else []),
        ]
    )
    if works:
        yield _times(sweep, definition, works, jobs, together)


def _times(
    sweep: SweepFolder,
    definition: Definition,
    works: Sequence[Work],
    jobs: int | None,
    together: int | None,
) -> str:
    """How long the next run of each variant takes, and all that is left."""
    runs = sweep.all_runs(definition)
    pace = pace_of(sweep, definition, runs, works, jobs)
    following: dict[str, Work] = {}
    for work in works:
        following.setdefault(work.run.variant, work)
    rows = [("variant", "time of the next run")]
    rows += [(name, duration(pace.start + pace.seconds(work))) for name, work in following.items()]
    data = {place for work in works if not ((place := sweep.data(work.run.experiment)) / MANIFEST).is_file()}
    processes = len(slots(jobs))
    seconds = total(works, pace, processes, together) + pace.start + (pace.preparation or 0) * len(data)
    how = f"with {processes} processes at a time" if processes > 1 else "one after the other"
    return "\n".join(
        [
            "",
            _aligned(rows, texts=1),
            "",
            f"about {duration(seconds)} {how} on this machine, if no run ends early and it stays as busy as now",
            *(f"  {words}" for words in pace.words()),
        ]
    )


def _peak_rate(config: ExperimentConfig) -> str:
    if is_address(config.optimizer.schedule):
        return "custom"  # only the user's function knows
    return f"{peak_rate(config.optimizer, config.model.base_d_model):.3g}"


def number(count: int, what: str) -> str:
    """A number of things: "1 run", "2 runs"."""
    return f"{count} {what}{'s' * (count != 1)}"


def changes(variant: Variant) -> str:
    """The changes of a variant in a short line."""
    text = ", ".join(f"{path.partition('.')[2] or path}={_short(value)}" for path, value in variant.changes.items())
    return text if len(text) <= LONGEST_DIFFERENCE else text[: LONGEST_DIFFERENCE - 4] + " ..."


def _short(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _aligned(rows: Sequence[Sequence[str]], texts: int) -> str:
    """A table: so many columns of text aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [[*map(str.ljust, row[:texts], widths), *map(str.rjust, row[texts:], widths[texts:])] for row in rows]
    return "\n".join(map("  ".join, aligned))
