"""The findings of a sweep in sentences."""

import collections
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from transformer_jax.report.findings import Compared, TestFindings
from transformer_jax.report.literature import comparisons
from transformer_jax.report.metrics import BLEU, EXACT_MATCH, PERPLEXITY, Metric, percent
from transformer_jax.report.results import RunResult, SweepResult
from transformer_jax.report.statistics import CONFIDENCE, POWER, Difference

# From here on, BLEU leaves hardly any room for improvement.
CEILING = 98.0
# Below this BLEU and this percentage of exact matches, a model has hardly learned anything.
FLOOR = 1.0
# The most variants named in a sentence, and groups of runs in a list; tables have them all.
MOST_NAMES, MOST_NEVER_STARTED = 3, 4
ONE_SEED = "What is significant may still be a difference between seeds."
STATES = ("finished", "not evaluated", "running", "interrupted", "stopped", "diverged", "failed", "damaged", "waiting")


def _state(run: RunResult) -> str:
    """The state of a run; finished ones without scores on a test set are not done."""
    return "not evaluated" if run.finished and run.unevaluated else run.state


def state_name(state: str) -> str:
    return {"waiting": "never started", "not evaluated": "not evaluated on all test sets"}.get(state, state)


def state_sentence(sweep: SweepResult) -> str:
    """How many of the sweep's runs are finished."""
    counts = collections.Counter(_state(run) for run in sweep.all_runs)
    if counts["finished"] == counts.total():
        return f"All {counts.total()} runs are finished."
    states = dict.fromkeys([*STATES, *counts])
    parts = ", ".join(f"{counts[state]} {state_name(state)}" for state in states if counts[state])
    return f"Of {counts.total()} runs: {parts}."


def unfinished(runs: Sequence[RunResult]) -> list[tuple[str, str]]:
    """The name and state of every run that is not finished; those that never started share a line."""
    lines = []
    never: dict[str, list[str]] = {}
    for run in runs:
        if run.state == "waiting":
            never.setdefault(run.variant + ", untuned" * run.is_untuned, []).append(str(run.seed))
        elif run.finished and run.unevaluated:
            lines.append((run.name, f"finished, not evaluated on {', '.join(run.unevaluated)}"))
        elif not run.finished:
            step = "" if run.step is None else f" after {run.step:,} updates"
            lines.append((run.name, f"{run.state}{step}" + (f": {run.reason}" if run.reason else "")))
    if never:
        seeds = [f"{name} (seed{'s' * (len(seeds) > 1)} {', '.join(seeds)})" for name, seeds in never.items()]
        lines.append((state_name("waiting"), some(seeds, MOST_NEVER_STARTED)))
    return lines


class Summary(NamedTuple):
    """What was found on a test set, in about three sentences, and what a reader must know to judge it."""

    findings: list[str]
    notes: list[str]


def summary(sweep: SweepResult, findings: TestFindings) -> Summary:
    if not findings.runs:
        return Summary([f"On {findings.split}, nothing is measured yet."], [])
    lines: list[str] = []
    notes: list[str] = []
    compared = [found for found in findings.by_metric.values() if found.differences]
    compared.sort(key=lambda found: found.metric is not EXACT_MATCH)
    if compared:
        baseline = baseline_of(sweep, findings.differences(BLEU))
        base = findings.by_metric[BLEU.key].mean(sweep.baseline)
        scores = [found.mean(sweep.baseline) or 0 for found in compared if found.metric is not PERPLEXITY]
        if base is not None and max(scores) < FLOOR:
            lines.append(
                f"The baseline's BLEU is {base:.2f}: it has hardly learned to translate, and differences from it say "
                "little about models that have. It may need more updates or another learning rate."
            )
        for found in compared:
            lines.append(significant(found.differences, found.metric, _title(found.metric, findings.unit), baseline))
        lines.append(_power(sweep, findings, compared))
        if base is not None and base >= CEILING:
            lines.append(
                f"The baseline's BLEU is {base:.2f}, close to its maximum: variants can hardly be better. "
                "Perplexity says more here."
            )
        notes = [intervals(findings), *(comparison.sentence() for comparison in comparisons(sweep, findings))]
    reasons: dict[str, list[str]] = {}
    for name, why in findings.not_compared.items():
        reasons.setdefault(why, []).append(name)
    if reasons:
        notes.append(f"Not compared: {'; '.join(f'{some(names)}: {why}' for why, names in reasons.items())}.")
    return Summary(lines, notes)


def _title(metric: Metric, unit: str) -> str:
    return {PERPLEXITY: f"Perplexity per {unit}", EXACT_MATCH: "Exact match (points)"}.get(metric, metric.name)


def baseline_of(sweep: SweepResult, compared: Collection[str]) -> str:
    """What variants are compared with."""
    baselines = {variant.baseline for variant in sweep.variants if variant.baseline and variant.name in compared}
    return sweep.baseline if baselines == {sweep.baseline} else "its baseline"


def some(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """The first names, and how many there are besides."""
    more = len(names) - most
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:most])} and {more} more"


def significant(differences: Mapping[str, Difference], metric: Metric, title: str, baseline: str) -> str:
    """Which variants are significantly better or worse, the largest differences first."""
    count = len(differences)
    parts: list[str] = []
    for mark in ("better", "worse"):
        found = {name: d for name, d in differences.items() if metric.mark(d) == mark}
        if found:
            largest = sorted(found.items(), key=lambda item: -abs(item[1].value))
            names = some([f"{name}: {metric.change(difference.value)}" for name, difference in largest])
            than = f" than {baseline}" if not parts else ""
            parts.append(f"{len(found)} {'is' if len(found) == 1 else 'are'} significantly {mark}{than} ({names})")
    if parts:
        return f"{title}: of {count} variant{'s' * (count > 1)}, {' and '.join(parts)}."
    if count == 1:
        return f"{title}: the difference from {baseline} is not significant."
    return f"{title}: none of the {count} differences from {baseline} is significant."


def _power(sweep: SweepResult, findings: TestFindings, compared: Sequence[Compared]) -> str:
    """The minimum detectable differences, without which "not significant" says nothing."""
    seeds = sorted({count for d in compared[0].differences.values() for count in d.seeds})
    many = f"{seeds[0]} seed{'s' * (seeds[0] > 1)}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    clusters = "" if findings.clusters == findings.sentences else f" in {findings.clusters:,} clusters"
    sizes: list[str] = []
    impossible: list[str] = []
    ties: list[str] = []
    for found in compared:
        known = [d.mde for d in found.differences.values() if d.mde is not None]
        if not known:
            ties.append(found.metric.name)
        elif text := mde_text(found.metric, float(np.median(known)), found.mean(sweep.baseline)):
            sizes.append(text)
        else:
            impossible.append(found.metric.name)
    median = ", the median of the comparisons" if len(compared[0].differences) > 1 else ""
    text = f"With {many} and {findings.sentences:,} sentences{clusters}, "
    if sizes:
        text += (
            f"the minimum detectable difference ({percent(POWER)} power{median}) is {', '.join(sizes)}: smaller ones "
            "are found less often."
        )
    else:
        text += "no difference that is possible would be found reliably."
    if impossible:
        text += f" In {' and '.join(impossible)}, this design cannot detect any possible difference."
    if ties:
        text += f" In {' and '.join(ties)}, all runs tie, so what would be detected is not known."
    return text + f" {ONE_SEED}" * (seeds == [1])


def mde_text(metric: Metric, size: float, baseline: float | None) -> str:
    """A minimum detectable difference in the directions in which a score can change so much; "" if in none."""
    room = metric.room(baseline)
    changes = [metric.change(sign * size) for sign, most in zip((-1, 1), room, strict=True) if size <= most]
    if metric is PERPLEXITY:
        return f"{' or '.join(changes)} of perplexity"
    kind = "BLEU" if metric is BLEU else "points of exact match"
    return f"{changes[0] if len(changes) == 1 else changes[1].replace('+', '±')} {kind}" if changes else ""


def intervals(findings: TestFindings) -> str:
    """What the intervals account for."""
    differences = findings.differences(BLEU)
    count, level = len(differences), percent(CONFIDENCE)
    sentences = "sentences" if findings.clusters == findings.sentences else "clusters of sentences"
    text = f"Intervals are simultaneous {level} confidence intervals for {count} comparisons (Bonferroni)"
    text = text if count > 1 else f"The interval is a {level} confidence interval"
    they = "they account" if count > 1 else "it accounts"
    if {difference.seed_spread for difference in differences.values()} == {"none"}:
        return f"{text}; {they} for the choice of {sentences}, not for that of seeds."
    text += f"; {they} for both the choice of seeds and of {sentences}."
    if any(difference.is_pooled for difference in differences.values()):
        text += (
            " They also use the spread of the other variants: more seeds of one variant can "
            "change the interval and p-value of another."
        )
    borrowed = [name for name, difference in differences.items() if difference.seed_spread == "borrowed"]
    if borrowed:
        text += (
            f" Where only one seed is finished, the spread of other variants is used ({some(borrowed)}): "
            "these intervals hold only if its seeds vary as much, which this sweep cannot show."
        )
    if any(min(difference.seeds) == 2 for difference in differences.values()):
        text += (
            " Two seeds say very little about how much seeds vary, so their intervals are very wide; with three they "
            "are much narrower."
        )
    return text
