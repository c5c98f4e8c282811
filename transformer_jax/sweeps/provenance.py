"""Which code made the runs of a sweep: compared before more are made, and reported if it is not the same for all."""

from __future__ import annotations

import collections
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
    """What made one run: a digest for each reference to custom code, and versions of packages."""

    name: str
    code: Mapping[str, str]
    versions: Mapping[str, str]
    notes: tuple[str, ...] = ()  # about a run that was itself made by several versions


def digests(definition: ResolvedSweep) -> dict[str, str]:
    """A digest for each reference to custom code in a sweep, its analyses included."""
    references = {code for config in definition.experiments.values() for _, code in addresses(config)}
    return _digests(references | set(definition.sweep.analyses.values()))


def digests_of_run(run: SweepRun, definition: ResolvedSweep) -> dict[str, str]:
    """A digest for each reference to custom code in one run."""
    analyses = {definition.sweep.analyses[name] for name in run.analyses}
    return _digests(analyses.union(code for _, code in addresses(run.experiment)))


def _digests(references: Iterable[str]) -> dict[str, str]:
    return {code: read_code(code).digest for code in sorted(references)}


def refuse_edited(run: SweepRun, definition: ResolvedSweep) -> None:
    """Raises if code was edited since the sweep was launched."""
    for code, digest in digests_of_run(run, definition).items():
        if digest != definition.code.get(code, digest):
            raise Failed(f"{file_of(code)} was edited after the sweep was launched; launch it again")


def check(sweep: SweepFolder, definition: ResolvedSweep) -> None:
    """Raises if runs were made by other custom code, unless that is accepted; warns of another library version."""
    other_code: dict[str, list[str]] = collections.defaultdict(list)
    other_library: list[str] = []
    for run in sweep.all_runs(definition):
        result = run.result()
        code = _begun_with(run) if result is None else result["code"]
        for reference, digest in code.items():
            if digest != definition.code.get(reference, digest):
                other_code[reference].append(run.name)
        if result is not None and result["versions"] != identifying_versions():
            other_library.append(run.name)
    lines = [f"{code} has changed since these were made: {_some(names)}" for code, names in other_code.items()]
    if lines and not definition.accept_changed_code:
        raise ConfigError(
            [
                f"{sweep.path}: custom code of the sweep was edited:",
                *(f"  {line}" for line in lines),
                "Use another --workdir, restore the code (each run has a copy in its folder code/), or give "
                "--accept-changed-code, which the report will mention",
            ]
        )
    for line in lines:
        tell(f"warning: {line}; accepted, and the report mentions it")
    if other_library:
        tell(f"warning: made by another version of the library or of JAX: {_some(other_library)}; reports mention it")


def _begun_with(run: SweepRun) -> dict[str, str]:
    """The digests of the code that an unfinished run was trained with, as far as they were recorded."""
    by_key = {f"{option}:{code.rpartition(':')[2]}": code for option, code in addresses(run.experiment)}
    begun = run.folder.code.latest()
    return {by_key[key]: code.digest for key, code in begun.items() if key in by_key}


def mixtures(runs: Iterable[Made]) -> list[str]:
    """Warnings that the runs were not all made by the same code; empty if they were."""
    runs, lines = list(runs), []
    for code in dict.fromkeys(code for run in runs for code in run.code):
        by_digest = collections.defaultdict(list)
        for run in runs:
            if code in run.code:
                by_digest[run.code[code][:SHOWN_DIGITS]].append(run.name)
        if len(by_digest) > 1:
            lines.append(f"The custom code {code} is not the same in all runs: {_listed(by_digest)}.")
    by_versions = collections.defaultdict(list)
    differing = [name for name in IDENTIFYING if len({run.versions.get(name) for run in runs if run.versions}) > 1]
    for run in runs:
        if run.versions and differing:
            versions = (
                f"{name.replace('_sha256', ' source')} {run.versions.get(name, 'not recorded')}" for name in differing
            )
            by_versions[", ".join(versions)].append(run.name)
    if by_versions:
        lines.append(f"The runs were not all made by the same versions: {_listed(by_versions)}.")
    return lines + [f"{run.name}: {note}." for run in runs for note in run.notes]


def _listed(groups: Mapping[str, list[str]]) -> str:
    """What made the runs, the fewest first; the largest group needs no names."""
    *few, (most, names) = sorted(groups.items(), key=lambda group: len(group[1]))
    lines = [f"{maker} in {_some(some)}" for maker, some in few]
    lines.append(f"{most} in {names[0] if len(names) == 1 else f'the other {len(names)} runs'}")
    return "; ".join(lines)


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN_RUNS
    return "; ".join(names[:SHOWN_RUNS]) + (f" and {more} more" if more > 0 else "")
