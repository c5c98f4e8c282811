"""Which code made the runs of a sweep: compared before more are made, and reported if it is not the same for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from transformer_jax.config import addresses
from transformer_jax.errors import ConfigError, Failed
from transformer_jax.extension import file_of, read_code
from transformer_jax.files.progress import tell
from transformer_jax.runs.folder import IDENTIFYING, identifying_versions
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.run import SweepRun
from transformer_jax.sweeps.spec import ResolvedSweep

# The most runs that are named in a line.
SHOWN_RUNS = 8
# Digits of a digest that are shown.
SHOWN_DIGITS = 8


class Made(NamedTuple):
    """The code of one run: a digest for each reference to custom code, and versions of packages."""

    name: str
    code: Mapping[str, str]
    versions: Mapping[str, str]
    notes: tuple[str, ...] = ()  # about a run that was itself made by several versions


def digests(definition: ResolvedSweep, run: SweepRun | None = None) -> dict[str, str]:
    """A digest for each reference to custom code in a sweep or in one of its runs, analyses included."""
    configs = definition.experiments.values() if run is None else [run.experiment]
    analyses = definition.sweep.analyses if run is None else run.analyses
    references = {code for config in configs for _, code in addresses(config)}
    references |= {definition.sweep.analyses[name] for name in analyses}
    return {code: read_code(code).digest for code in sorted(references)}


def refuse_edited(run: SweepRun, definition: ResolvedSweep) -> None:
    """Raises if code was edited since the sweep was launched."""
    for code, digest in digests(definition, run).items():
        if digest != definition.code.get(code, digest):
            raise Failed(f"{file_of(code)} was edited after the sweep was launched; launch it again")


def check(sweep: SweepFolder, definition: ResolvedSweep) -> None:
    """Raises if finished runs were made by other custom code, unless that is accepted; warns of another library.

    Unfinished runs compare their code themselves when they are resumed.
    """
    results = [(run.name, result) for run in sweep.all_runs(definition) if (result := run.result()) is not None]
    lines = []
    for code, digest in definition.code.items():
        if edited := [name for name, result in results if result["code"].get(code, digest) != digest]:
            lines.append(f"{code} has changed since these were made: {_some(edited)}")
    if lines and not definition.accept_changed_code:
        hint = "Use another --workdir, restore the code (each run has a copy in code/), or give --accept-changed-code"
        raise ConfigError([f"{sweep.path}: custom code was edited:", *(f"  {line}" for line in lines), hint])
    if other := [name for name, result in results if result["versions"] != identifying_versions()]:
        lines.append(f"made by another version of the library or of JAX: {_some(other)}")
    for line in lines:
        tell(f"warning: {line}; the report mentions it")


def mixtures(runs: Iterable[Made]) -> list[str]:
    """Warnings that the runs were not all made by the same code; empty if they were."""
    runs, lines = list(runs), []
    groups: dict[str, dict[str, list[str]]] = {}  # what it is -> its digest or version -> names of runs
    for run in runs:
        facts = {f"custom code {code}": digest[:SHOWN_DIGITS] for code, digest in run.code.items()}
        facts |= {name: str(run.versions.get(name, "not recorded")) for name in IDENTIFYING if run.versions}
        for kind, fact in facts.items():
            groups.setdefault(kind, {}).setdefault(fact, []).append(run.name)
    for kind, names_of in groups.items():
        if len(names_of) > 1:
            made = "; ".join(f"{fact} in {_some(names)}" for fact, names in names_of.items())
            lines.append(f"The runs were not all made by the same {kind.replace('_sha256', ' source')}: {made}.")
    return lines + [f"{run.name}: {note}." for run in runs for note in run.notes]


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN_RUNS
    return "; ".join(names[:SHOWN_RUNS]) + (f" and {more} more" if more > 0 else "")
