"""How the runs of a sweep were made and compared: caveats, and how to make them again."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.report import tuning
from transformer_jax.report.findings import TestFindings
from transformer_jax.report.metrics import percent
from transformer_jax.report.results import RunResult, SweepResult
from transformer_jax.report.statistics import CONFIDENCE, POWER, SAMPLES
from transformer_jax.report.table import TRAINING_TIME
from transformer_jax.runs.folder import CONFIG_DIGEST, EARLIER, IDENTIFYING, LAST_STEP, SOURCE_DIGEST
from transformer_jax.runs.metrics import duration
from transformer_jax.sweeps.definition import SOURCES
from transformer_jax.sweeps.provenance import Made, mixtures

METHOD = (
    "A difference is that of the means over seeds. Its variance is the variance between seeds of both sides plus that "
    f"of the choice of test sentences (paired bootstrap over sentences, {SAMPLES:,} samples), with Welch-Satterthwaite "
    "degrees of freedom. Variants may differ in variance: a variance larger than is typical of the other variants is "
    "used as it is, a smaller one is shrunk towards the typical one.",
    f"Confidence intervals of one column are simultaneous, {percent(CONFIDENCE)} for all together, and p-values are "
    "corrected within the column (Bonferroni), which bounds the family-wise error rate. Rates simulated for 2 to 5 "
    "seeds, up to 20 comparisons and different patterns of variances are in docs/experiments.md. Each metric on each "
    "test set is a family of its own.",
    f"A difference is called significant where the corrected p is below {1 - CONFIDENCE:.2g}. One that is not is "
    "not shown to be zero: the minimum detectable difference is the true difference that such a sweep would find "
    f"significant with {percent(POWER)} power, by simulation of its design.",
    "± is the standard deviation over seeds. Perplexities are compared by their logarithms.",
)
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


def sources(run: RunResult) -> list[str]:
    """Digests of the library's source, as far as it was recorded, and of the custom code that made a run."""
    made = _made(run)
    return [*filter(None, [made.versions.get(SOURCE_DIGEST)]), *made.code.values()]


def remarks(sweep: SweepResult, tests: Sequence[TestFindings]) -> list[str]:
    """What a reader must know about how the runs were made."""
    lines = [*sweep.notes, variance_of_seeds(sweep), tuning.remark(sweep)]
    if _trained_together(sweep):
        lines.append("Runs of one shape trained together in one program, on the same batches.")
    if any(findings.unit == "word" for findings in tests):
        lines.append(
            "The variants' vocabularies differ, so perplexity is compared per word; perplexities per token are not "
            "comparable."
        )
    if custom := [each.name for each in sweep.variants if _computes_otherwise({**sweep.base, **each.changes})]:
        lines.append(
            "FLOPs are those of the built-in modules. Custom ones may take more or fewer, and so are not compared "
            f"fairly by FLOPs: {', '.join(custom)}."
        )
    for findings in tests:
        split = findings.split
        cut = [(each.cut, len(each.tokens_N)) for run in sweep.runs if (each := run.measured.get(split)) and each.cut]
        if cut:
            number, of = (sum(column) for column in zip(*cut, strict=True))
            lines.append(
                f"On `{split}`, {number:,} of {of:,} translations of {len(cut)} runs were cut off at the maximum "
                "length (decode.extra_length, decode.max_length)."
            )
        unknown = {run.measured[split].unknown for run in sweep.runs if split in run.measured}
        if len(unknown) > 1 or (findings.unit == "word" and any(unknown)):
            count = " to ".join(f"{number:,}" for number in sorted({min(unknown), max(unknown)}))
            lines.append(
                f"On `{split}`, {count} tokens of the references are unknown to a run's vocabulary. No model has to "
                "spell what is unknown to it, so perplexities do not compare."
            )
    return lines


def _computes_otherwise(options: Mapping[str, Any]) -> bool:
    """Whether a variant has custom modules, which the formula for FLOPs does not know."""
    return any(value is not None for path, value in options.items() if path.startswith("model.parts."))


def variance_of_seeds(sweep: SweepResult) -> str:
    """Which sources of variance differ between seeds, and which the intervals therefore cannot account for."""
    varied, constant = (
        "; ".join(text for source, text in SOURCES.items() if (source in sweep.vary) == varies)
        for varies in (True, False)
    )
    text = f"Differences between seeds include: {varied}."
    if constant:
        text += f" The same for all seeds, so that the intervals do not account for it: {constant}."
    return f"{text} All runs are tested on the same pairs; the intervals do account for the choice of these."


def _trained_together(sweep: SweepResult) -> bool:
    return any((run.number("together") or 1) > 1 for run in sweep.runs)


def facts(sweep: SweepResult, tests: Sequence[TestFindings]) -> dict[str, str]:
    """What is needed to reproduce the sweep."""
    finished = [run for run in sweep.runs if run.finished]
    found = {"command": shlex.join(["transformer-jax", *sweep.command, f"--workdir={sweep.path}"])}
    for findings in tests:
        if findings.runs:
            clusters = "" if findings.clusters == findings.sentences else f" in {findings.clusters:,} clusters"
            found[f"test set {findings.split}"] = f"{findings.name}: {findings.sentences:,} sentences{clusters}"
            found["BLEU"] = findings.signature
    found["seeds"] = ", ".join(map(str, sweep.seeds))
    if devices := dict.fromkeys(str(run.result["devices"]) for run in finished if "devices" in run.result):
        found["devices of a run"] = "; ".join(devices)
    if seconds := [value for run in finished if (value := run.seconds) is not None]:
        found["training time"] = (
            f"{duration(sum(seconds))} in all, {duration(float(np.mean(seconds)))} per run: {TRAINING_TIME}"
        )
    names = dict.fromkeys(name for run in sweep.runs for name in run.versions if name not in NO_VERSIONS)
    for name in names:
        versions = dict.fromkeys(str(run.versions[name]) for run in sweep.runs if name in run.versions)
        found[name] = " and ".join(versions) or "none"
    return found
