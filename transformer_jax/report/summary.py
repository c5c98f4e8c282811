"""The findings of a sweep in sentences."""

import collections
from collections.abc import Mapping, Sequence

import numpy as np

from transformer_jax.report.findings import TestFindings
from transformer_jax.report.metrics import BLEU, PERPLEXITY, Metric, percent
from transformer_jax.report.published import comparisons
from transformer_jax.report.results import RunResult, SweepResult
from transformer_jax.report.statistics import CONFIDENCE, POWER, Difference

# From here on, BLEU leaves hardly any room for improvement.
CEILING = 98.0
STATES = ("finished", "running", "interrupted", "stopped", "failed", "damaged", "waiting")


def state_name(state: str) -> str:
    return "never started" if state == "waiting" else state


def state_sentence(sweep: SweepResult) -> str:
    """How many of the sweep's runs are finished."""
    counts = collections.Counter(run.state for run in sweep.all_runs)
    if counts["finished"] == counts.total():
        return f"All {counts.total()} runs are finished."
    parts = ", ".join(f"{counts[state]} {state_name(state)}" for state in STATES if counts[state])
    return f"Of {counts.total()} runs: {parts}."


def unfinished(runs: Sequence[RunResult]) -> list[tuple[str, str]]:
    """The name and state of every run that is not finished; those that never started share a line."""
    lines = []
    never: dict[str, list[str]] = {}
    for run in runs:
        if run.state == "waiting":
            never.setdefault(run.variant + ", untuned" * run.is_untuned, []).append(str(run.seed))
        elif not run.finished:
            step = "" if run.step is None else f" at step {run.step:,}"
            lines.append((run.name, f"{run.state}{step}" + (f": {run.reason}" if run.reason else "")))
    if never:
        seeds = "; ".join(f"{name}, seeds {', '.join(seeds)}" for name, seeds in never.items())
        lines.append((state_name("waiting"), seeds))
    return lines


def summary(sweep: SweepResult, findings: TestFindings) -> list[str]:
    """What is significant on a test set, how small a difference would have been, and whether published scores agree."""
    if findings.empty:
        return [f"On {findings.split}, nothing is measured yet."]
    lines = []
    if findings.bleu_differences:
        lines.append(_significant(findings.bleu_differences, BLEU, "BLEU"))
        base = findings.mean(BLEU, sweep.baseline)
        if base is not None and base >= CEILING:
            lines.append(
                f"The baseline's BLEU is {base:.2f}, close to its maximum: variants can hardly be better. "
                "Perplexity says more here."
            )
        lines.append(_significant(findings.perplexity_differences, PERPLEXITY, f"Perplexity per {findings.unit}"))
        lines.append(_uncertainty(findings.bleu_differences))
        lines += [comparison.sentence() for comparison in comparisons(sweep, findings)]
    if findings.not_compared:
        reasons = "; ".join(f"{name}: {why}" for name, why in findings.not_compared.items())
        lines.append(f"Not compared: {reasons}.")
    return lines


def _significant(differences: Mapping[str, Difference], metric: Metric, title: str) -> str:
    names: dict[str, list[str]] = {"better": [], "worse": [], "": []}
    for name, difference in differences.items():
        mark = metric.mark(difference)
        names[mark].append(f"{name} ({metric.change(difference.value)})" if mark else name)
    count, few = len(differences), len(names["better"] + names["worse"])
    text = f"{title}: {few} of {count} {'difference is' if count == 1 else 'differences are'} significant. "
    for mark, words in (("better", "Better than its baseline"), ("worse", "Worse"), ("", "Not significant")):
        if names[mark]:
            text += f"{words}: {', '.join(names[mark])}. "
    typical = metric.change(float(np.median([d.detectable for d in differences.values()]))).removeprefix("+")
    median = " (the median of the comparisons)" if count > 1 else ""
    return text + f"A true difference of {typical} would have been found in {percent(POWER)} of such sweeps{median}."


def _uncertainty(differences: Mapping[str, Difference]) -> str:
    """What the intervals account for."""
    count = len(differences)
    family, account = f"The {count} intervals of a column are simultaneous, with", "they account"
    if count == 1:
        family, account = "The interval has", "it accounts"
    text = f"{family} {percent(CONFIDENCE)} confidence; {account} for "
    if {difference.seed_spread for difference in differences.values()} == {"none"}:
        return text + (
            "the choice of sentences ONLY: with one seed per variant, a significant difference may be due to the seeds."
        )
    text += "both the choice of seeds and of sentences."
    borrowed = [name for name, difference in differences.items() if difference.seed_spread == "borrowed"]
    if borrowed:
        text += (
            f" Where only one seed is finished, the spread of other variants is used ({', '.join(borrowed)}): "
            "these intervals hold only if its seeds vary as much, which this sweep cannot show."
        )
    if any(min(difference.seeds) == 2 for difference in differences.values()):
        text += (
            " Two seeds say very little about how much seeds vary, so their intervals are very wide; with three they "
            "are much narrower."
        )
    return text
