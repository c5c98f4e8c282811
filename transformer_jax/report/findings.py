"""What a sweep found: how every variant differs from its baseline on each test set, and what that comes to in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from transformer_jax.report.results import Measured, RunResult, SweepResult, VariantResult
from transformer_jax.report.statistics import (
    CONFIDENCE,
    POWER,
    Difference,
    Scores,
    bleu_scores,
    compare,
    log_perplexity_scores,
)

# From here on, BLEU has hardly any room left above the baseline.
CEILING = 98.0
# Why a variant is not compared.
OTHER_TEST_SET = "another test set, or none"
# States that are told in other words.
TOLD = {"waiting": "never started"}


class TestFindings(NamedTuple):
    """One test set: every variant's scores, and the differences, by the variants' names."""

    split: str
    name: str
    sentences: int
    signature: str
    unit: str  # what perplexity is compared by: token, or word where vocabularies differ
    bleu: Mapping[str, Sequence[float]]
    perplexity: Mapping[str, Sequence[float]]  # per token
    word_perplexity: Mapping[str, Sequence[float]]
    bleu_differences: Mapping[str, Difference]
    perplexity_differences: Mapping[str, Difference]  # of the logarithms
    not_compared: Mapping[str, str]  # variant -> why

    @property
    def empty(self) -> bool:
        return not self.bleu


def find(sweep: SweepResult) -> list[TestFindings]:
    """Findings on each test set, the main one first."""
    return [_on(sweep, split) for split in sweep.tests]


def _on(sweep: SweepResult, split: str) -> TestFindings:
    runs = {variant.name: _measured_runs(variant, split) for variant in sweep.variants}
    runs = {name: measured for name, measured in runs.items() if measured}
    if not runs:
        nothing: dict[str, list[float]] = {}
        return TestFindings(split, split, 0, "", "token", nothing, nothing, nothing, {}, {}, {})
    first = (runs.get(sweep.baseline) or next(iter(runs.values())))[0]
    comparable = {
        name: [run for run in measured if run.digest == first.digest and len(run.tokens_N) == len(first.tokens_N)]
        for name, measured in runs.items()
    }
    comparable = {name: measured for name, measured in comparable.items() if measured}
    one_vocabulary = all(
        np.array_equal(run.tokens_N, first.tokens_N) for measured in comparable.values() for run in measured
    )
    unit = "token" if one_vocabulary else "word"
    pairs, not_compared = _pairs(sweep, comparable)
    not_compared |= _of_another_test_set(runs, comparable)
    # A mean is of one test set: the baseline's, or where a variant has none of that, of its first run's.
    runs = {name: comparable.get(name, _alike(measured)) for name, measured in runs.items()}
    bleu, perplexity = _differences(comparable, pairs, unit) if len(first.tokens_N) > 1 else ({}, {})
    return TestFindings(
        split=split,
        name=first.test_set,
        sentences=len(first.tokens_N),
        signature=" and ".join(dict.fromkeys(run.signature for measured in runs.values() for run in measured)),
        unit=unit,
        bleu={name: [run.bleu for run in measured] for name, measured in runs.items()},
        perplexity={name: [run.perplexity for run in measured] for name, measured in runs.items()},
        word_perplexity={name: [_per_word(run) for run in measured] for name, measured in runs.items()},
        bleu_differences=bleu,
        perplexity_differences=perplexity,
        not_compared=not_compared,
    )


def _alike(measured: Sequence[Measured]) -> list[Measured]:
    return [run for run in measured if run.digest == measured[0].digest]


def _of_another_test_set(
    runs: Mapping[str, Sequence[Measured]], comparable: Mapping[str, Sequence[Measured]]
) -> dict[str, str]:
    """Variants of which only some runs were measured on the test set of the others."""
    missing = {name: len(runs[name]) - len(measured) for name, measured in comparable.items()}
    return {name: f"{count} of its runs: another test set" for name, count in missing.items() if count}


def _measured_runs(variant: VariantResult, split: str) -> list[Measured]:
    return [run.measured[split] for run in variant.finished if split in run.measured]


def _per_word(run: Measured) -> float:
    return math.exp(min(-float(run.log_probabilities_N.sum()) / run.words, 700.0))


def _pairs(
    sweep: SweepResult, comparable: Mapping[str, Sequence[Measured]]
) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Who is compared with whom, and why others are not."""
    pairs, not_compared = [], {}
    for variant in sweep.variants:
        if not variant.baseline:
            continue
        if not variant.finished:
            not_compared[variant.name] = "no finished run"
        elif variant.name not in comparable:
            not_compared[variant.name] = OTHER_TEST_SET
        elif variant.baseline not in comparable:
            not_compared[variant.name] = f"its baseline {variant.baseline} has no finished run"
        else:
            pairs.append((variant.name, variant.baseline))
    return pairs, not_compared


def _differences(
    comparable: Mapping[str, Sequence[Measured]], pairs: Sequence[tuple[str, str]], unit: str
) -> tuple[dict[str, Difference], dict[str, Difference]]:
    runs = [run for measured in comparable.values() for run in measured]
    starts = np.cumsum([0, *(len(measured) for measured in comparable.values())])
    groups = [list(range(starts[i], starts[i + 1])) for i in range(len(comparable))]
    places = {name: place for place, name in enumerate(comparable)}
    numbered = [(places[variant], places[baseline]) for variant, baseline in pairs]
    names = [variant for variant, _ in pairs]

    def named(scores: Scores) -> dict[str, Difference]:
        return dict(zip(names, compare(scores, groups, numbered), strict=True))

    bleu = named(bleu_scores(np.stack([run.statistics_N10 for run in runs])))
    units = runs[0].tokens_N
    if unit == "word":
        # Words a sentence: those BLEU counts in the reference, and its end, scaled to the whole set's words.
        units = runs[0].statistics_N10[:, 1] + 1
        units = units * (runs[0].words / units.sum())
    return bleu, named(log_perplexity_scores(np.stack([run.log_probabilities_N for run in runs]), units))


def state_sentence(sweep: SweepResult) -> str:
    """How much of the sweep there is."""
    counts: dict[str, int] = {}
    for run in sweep.runs:
        counts[run.state] = counts.get(run.state, 0) + 1
    total = len(sweep.runs)
    if counts == {"finished": total}:
        return f"All {total} runs are finished."
    order = ("finished", "running", "interrupted", "stopped", "failed", "damaged", "waiting")
    told = ", ".join(f"{counts[state]} {TOLD.get(state, state)}" for state in order if state in counts)
    return f"Of {total} runs: {told}."


def in_words(sweep: SweepResult, findings: TestFindings) -> list[str]:
    """What is resolved on a test set and what is not, how fine the design is, and whether the literature agrees."""
    if findings.empty:
        return [f"On {findings.split}, nothing is measured yet."]
    lines = []
    if findings.bleu_differences:
        lines.append(_resolved(findings.bleu_differences, "BLEU", bleu_change, higher_is_better=True))
        base = findings.bleu.get(sweep.baseline, [])
        if base and np.mean(base) >= CEILING:
            lines.append(
                f"The baseline's BLEU is {np.mean(base):.2f}: next to the ceiling, where variants can only be worse; "
                "perplexity tells more here."
            )
        ppl = findings.perplexity_differences
        lines.append(_resolved(ppl, f"Perplexity per {findings.unit}", perplexity_change, higher_is_better=False))
        lines.append(_how_sure(findings.bleu_differences))
        lines += _agreement(sweep, findings)
    if findings.not_compared:
        lines.append(
            "Not compared: " + "; ".join(f"{name}: {why}" for name, why in findings.not_compared.items()) + "."
        )
    return lines


def _resolved(
    differences: Mapping[str, Difference], measure: str, told: Callable[[float], str], higher_is_better: bool
) -> str:
    better: list[str] = []
    worse: list[str] = []
    open_: list[str] = []
    for name, difference in differences.items():
        if not difference.resolved:
            open_.append(name)
        else:
            (better if (difference.value > 0) == higher_is_better else worse).append(
                f"{name} ({told(difference.value)})"
            )
    count = len(differences)
    are = "difference is" if count == 1 else "differences are"
    text = f"{measure}: {len(better) + len(worse)} of {count} {are} resolved. "
    if better:
        text += f"Better than its baseline: {', '.join(better)}. "
    if worse:
        text += f"Worse: {', '.join(worse)}. "
    if open_:
        text += f"Not resolved: {', '.join(open_)}. "
    detectable = [difference.detectable for difference in differences.values()]
    typical = float(np.median(detectable))
    size = told(typical).removeprefix("+")
    median = " (the median of the comparisons)" if count > 1 else ""
    return text + f"A true difference of {size} would have been found in {percent(POWER)} of such sweeps{median}."


def _how_sure(differences: Mapping[str, Difference]) -> str:
    """What the intervals count, in a sentence."""
    spreads = {difference.seed_spread for difference in differences.values()}
    count = len(differences)
    one = ("The interval has", "it counts")
    family, counts = one if count == 1 else (f"The {count} intervals of a column are simultaneous, with", "they count")
    text = f"{family} {percent(CONFIDENCE)} confidence; {counts}"
    if spreads == {"none"}:
        return text + (
            " the choice of sentences ONLY, with one seed a variant, and not what another seed would give: a "
            "difference called resolved may be one of seeds."
        )
    text += " both the choice of seeds and of sentences"
    borrowed = [name for name, difference in differences.items() if difference.seed_spread == "borrowed"]
    if borrowed:
        text += (
            f"; where only one seed is finished, its spread is taken from other variants ({', '.join(borrowed)}): "
            "these intervals hold only if it scatters as the others do, which nothing here shows"
        )
    if any(min(difference.seeds) == 2 for difference in differences.values()):
        text += (
            ". Two seeds say next to nothing about how much seeds scatter, and their intervals are very wide; with "
            "three they are a fraction of that"
        )
    return text + "."


def _agreement(sweep: SweepResult, findings: TestFindings) -> list[str]:
    """Whether what is resolved points where the published figures do."""
    by_name = {variant.name: variant for variant in sweep.variants}
    lines = []
    columns = (("BLEU", "bleu", findings.bleu_differences), ("PPL", "perplexity", findings.perplexity_differences))
    for title, key, differences in columns:
        agree: list[str] = []
        against: list[str] = []
        for name, difference in differences.items():
            theirs = by_name[name].published.get(key)
            base = by_name[by_name[name].baseline].published.get(key)
            if theirs is None or base is None or theirs == base or not difference.resolved:
                continue
            (agree if (theirs > base) == (difference.value > 0) else against).append(name)
        if agree or against:
            text = f"Of the resolved differences in {title}, {len(agree)} point where the published figures do"
            text += f" ({', '.join(agree)})" if agree else ""
            lines.append(text + (f"; {len(against)} the other way: {', '.join(against)}." if against else "."))
    return lines


def bleu_change(difference: float) -> str:
    return f"{difference:+.2f}".replace("-", "−")


def perplexity_change(difference: float) -> str:
    """A difference of logarithms, as the change in percent."""
    percents = 100 * math.expm1(min(difference, 700.0))
    return (f"{percents:+.1f} %" if percents < 1e5 else f"{percents:+.0e} %").replace("-", "−")


def bleu_text(difference: Difference) -> str:
    """The value and its interval."""
    return f"{bleu_change(difference.value)} [{bleu_change(difference.low)}, {bleu_change(difference.high)}]"


def perplexity_text(difference: Difference) -> str:
    """The value and its interval."""
    low, high = (perplexity_change(bound).removesuffix(" %") for bound in (difference.low, difference.high))
    return f"{perplexity_change(difference.value)} [{low}, {high}]"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation over seeds; one seed has none, and neither have perplexities beyond all numbers."""
    if len(values) < 2:
        return None
    with np.errstate(over="ignore"):
        found = float(np.std(values, ddof=1))
    return found if math.isfinite(found) else None


def mean_and_spread(values: Sequence[float], form: str) -> str:
    """Mean ± standard deviation over seeds."""
    spread = deviation(values)
    return f"{np.mean(values):{form}}" + ("" if spread is None else f" ± {spread:{form}}")


def reasons(runs: Sequence[RunResult]) -> list[tuple[str, str]]:
    """Of every run that is not finished: which it is, and what is the matter; those that never began in one line."""
    told = []
    never: dict[str, list[str]] = {}
    for run in runs:
        if run.state == "waiting":
            never.setdefault(run.variant, []).append(str(run.seed))
        elif not run.finished:
            at = "" if run.step is None else f" at step {run.step:,}"
            why = f": {run.reason}" if run.reason else ""
            told.append((f"{run.variant}, seed {run.seed}", f"{run.state}{at}{why}"))
    if never:
        told.append((TOLD["waiting"], "; ".join(f"{name}, seeds {', '.join(seeds)}" for name, seeds in never.items())))
    return told
