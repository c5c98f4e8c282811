"""How the runs of a sweep were made: by which code, with which caveats, and how to make them again."""

import shlex
from collections.abc import Sequence

import numpy as np

from transformer_jax.report.findings import TestFindings
from transformer_jax.report.results import RunResult, SweepResult
from transformer_jax.report.table import TRAINING_TIME
from transformer_jax.report.text import words
from transformer_jax.runs.folder import CONFIG_DIGEST, EARLIER, IDENTIFYING, LAST_STEP
from transformer_jax.runs.metrics import duration
from transformer_jax.sweeps.provenance import Made, mixtures

# In versions.json, but not versions.
NO_VERSIONS = ("command", "directory", CONFIG_DIGEST, EARLIER, LAST_STEP)


def code_mixtures(sweep: SweepResult) -> list[str]:
    """That the runs were not all made by the same code; empty if they were."""
    return mixtures(_made(run) for run in sweep.all_runs if run.finished)


def _made(run: RunResult) -> Made:
    evaluated, trained = run.result.get("versions", {}), {name: str(version) for name, version in run.versions.items()}
    changed = [
        name for name in IDENTIFYING if name in evaluated and trained.get(name, evaluated[name]) != evaluated[name]
    ]
    by = [", ".join(f"{name} {versions[name]}" for name in changed) for versions in (trained, evaluated)]
    notes = [*run.notes, *([f"trained by {by[0]}, evaluated by {by[1]}"] if changed else [])]
    return Made(run.name, run.result.get("code", {}), evaluated or trained, tuple(notes))


def remarks(sweep: SweepResult, tests: Sequence[TestFindings]) -> list[str]:
    """What a reader must know about how the runs were made."""
    is_vmapped = any((run.number("together") or 1) > 1 for run in sweep.runs)
    custom = []  # variants with modules that the formula for FLOPs does not know
    for variant in sweep.variants:
        options = {**sweep.base, **variant.changes}
        if any(value is not None for path, value in options.items() if path.startswith("model.parts.")):
            custom.append(variant.name)
    return words("remarks", sweep, tests, is_vmapped, custom)


def facts(sweep: SweepResult, tests: Sequence[TestFindings]) -> dict[str, str]:
    """What is needed to reproduce the sweep."""
    finished = [run for run in sweep.runs if run.finished]
    found = {"command": shlex.join(["transformer-jax", *sweep.command, f"--workdir={sweep.path}"])}
    for test in tests:
        if test.runs:
            found[f"test set {test.split}"] = f"{test.name}: {test.sentences:,} sentences{test.in_clusters}"
            found["BLEU"] = test.signature
    found["seeds"] = ", ".join(map(str, sweep.seeds))
    found["devices of a run"] = "; ".join(dict.fromkeys(str(run.result.get("devices")) for run in finished))
    if seconds := [run.seconds for run in finished]:
        found["training time"] = (
            f"{duration(sum(seconds))} in all, {duration(float(np.mean(seconds)))} per run: {TRAINING_TIME}"
        )
    for name in dict.fromkeys(name for run in sweep.runs for name in run.versions if name not in NO_VERSIONS):
        found[name] = " and ".join(dict.fromkeys(str(r.versions[name]) for r in sweep.runs if name in r.versions))
    return found
