"""All that a report says, gathered once for every form it takes: page, Markdown, JSON, CSV, terminal."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.report import analyses, curves, samples
from transformer_jax.report.findings import TestFindings, find, in_words, percent, reasons, state_sentence
from transformer_jax.report.results import SweepResult, listed, number
from transformer_jax.report.size_view import COSTS, SizeView, size_view
from transformer_jax.report.statistics import CONFIDENCE, POWER, SAMPLES
from transformer_jax.report.table import Table, table
from transformer_jax.runs.folder import CONFIG_DIGEST, EARLIER, IDENTIFYING, LAST_STEP
from transformer_jax.schema import is_address
from transformer_jax.sweeps.provenance import Made, mixtures
from transformer_jax.sweeps.spec import BY_SEED

METHOD = (
    "A difference is that of the means over seeds. Its variance is the variance between seeds of both sides plus what "
    f"another choice of test sentences would add (paired bootstrap of the sentences, {SAMPLES:,} samples); the degrees "
    "of freedom are Satterthwaite's. Variants need not scatter alike: a variant's own variance counts wherever it is "
    "larger than what is typical of the others, and a smaller one is drawn towards that.",
    f"All intervals of one column are simultaneous, with {percent(CONFIDENCE)} confidence, and p-values are corrected "
    "within the column (Bonferroni). Simulated for 2 to 5 seeds, up to 20 comparisons, and whichever variants' seeds "
    "scatter more: docs/experiments.md has the rates of false alarms. Each measure on each test set is a family of its "
    "own.",
    f"A difference is called resolved where the corrected p is below {1 - CONFIDENCE:.2g}. What is not resolved is not "
    f"shown to be absent: the size that would have been found in {percent(POWER)} of such sweeps is given beside.",
    "± is the standard deviation over seeds. Perplexities are compared by their logarithms.",
)
PERPLEXITY_BY_WORD = (
    "The variants' vocabularies differ, so perplexity is compared per word; perplexities per token of different "
    "vocabularies do not compare."
)


class Content(NamedTuple):
    sweep: SweepResult
    state: str
    mixtures: Sequence[str]  # that the runs were not all made by the same code
    tests: Sequence[TestFindings]
    tables: Sequence[Table]
    words: Sequence[Sequence[str]]  # of each test set
    unfinished: Sequence[tuple[str, str]]
    sizes: Sequence[SizeView]  # on the main test set
    curves: Sequence[curves.Chart]
    analyses: Sequence[analyses.Analysis]
    pictures: Sequence[analyses.Picture]
    samples: Sequence[samples.Sample]
    remarks: Sequence[str]
    facts: Mapping[str, str]
    base: str


def gather(sweep: SweepResult) -> Content:
    tests = find(sweep)
    shown, left_out = analyses.pictures(sweep)
    remarks = [*sweep.notes, *_remarks(sweep, tests)]
    if left_out:
        remarks.append(f"{left_out} pictures of analyses are too big for this page; they lie in the runs' folders.")
    return Content(
        sweep=sweep,
        state=state_sentence(sweep),
        mixtures=_mixtures(sweep),
        tests=tests,
        tables=[table(sweep, findings) for findings in tests],
        words=[in_words(sweep, findings) for findings in tests],
        unfinished=reasons(sweep.runs),
        sizes=[size_view(sweep, tests[0], cost, measure) for cost in COSTS for measure in ("bleu", "perplexity")],
        curves=curves.charts(sweep),
        analyses=analyses.analyses(sweep),
        pictures=shown,
        samples=samples.samples(sweep, tests[0].split),
        remarks=remarks,
        facts=_facts(sweep, tests),
        base=json.dumps(sweep.definition.get("base", {}), indent=1, ensure_ascii=False),
    )


def _mixtures(sweep: SweepResult) -> list[str]:
    names_code = any(is_address(value) for value in _texts(sweep.definition))
    made = [
        Made(
            name=f"{run.variant}, seed {run.seed}",
            code=_texts_of(run.result.get("code")) if "code" in run.result or not names_code else None,
            versions=_texts_of(run.result.get("versions"))
            or {n: v for n, v in run.versions.items() if n in IDENTIFYING},
            notes=tuple(run.notes),
        )
        for run in sweep.runs
        if run.finished
    ]
    return mixtures(made)


def _texts(value: Any) -> list[str]:
    """Every text in nested plain values."""
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []


def _texts_of(value: Any) -> dict[str, str]:
    return {str(name): str(text) for name, text in value.items()} if isinstance(value, dict) else {}


def _remarks(sweep: SweepResult, tests: Sequence[TestFindings]) -> list[str]:
    """What a reader must know of how the runs were made."""
    remarks = [_varied(sweep), _tuning(sweep)]
    if _together(sweep):
        remarks.append("Runs of one shape trained together in one program, on the same batches.")
    if any(findings.unit == "word" for findings in tests):
        remarks.append(PERPLEXITY_BY_WORD)
    return remarks


def _varied(sweep: SweepResult) -> str:
    """What differs from one seed to the next."""
    kept = "Which pairs are held out for validation and testing is the same for all seeds"
    if sweep.definition.get("data_order") == BY_SEED:
        return (
            "Between the seeds of a variant the initial parameters, dropout and the order of the training pairs "
            f"differ. {kept}."
        )
    return (
        "Between the seeds of a variant the initial parameters and dropout differ; the order of the training pairs is "
        "the same for all seeds, so that what another order would have changed is not among what the intervals count. "
        f"{kept}."
    )


def _together(sweep: SweepResult) -> bool:
    return any((run.number("together") or 1) > 1 for run in sweep.runs)


def _tuning(sweep: SweepResult) -> str:
    factors = _factors(sweep)
    if not factors:
        return (
            "Learning rates were not tuned: every variant trains at the rate its config says, which may suit some "
            "better than others."
        )
    tried = ", ".join(factors)
    text = f"Each variant's learning rate was chosen on validation loss, with one seed, among {tried} times its own."
    chosen = [
        f"{name} x {facts['factor']:g}"
        for name, facts in sweep.tuned.items()
        if isinstance(facts, dict) and number(facts.get("factor")) is not None
    ]
    if not chosen:
        return f"{text} None is chosen yet."
    at_edge = _at_the_edge(sweep, [float(factor) for factor in factors])
    edge = (
        f" At the edge of what was tried, so that a better one may lie beyond: {', '.join(at_edge)}." if at_edge else ""
    )
    return f"{text} Chosen: {', '.join(chosen)}.{edge}"


def _at_the_edge(sweep: SweepResult, factors: Sequence[float]) -> list[str]:
    """The variants whose chosen rate is the lowest or the highest that was tried, with how it lies."""
    ends = {min(factors): "lowest", max(factors): "highest"}
    return [
        f"{name} ({ends[factor]})"
        for name, facts in sweep.tuned.items()
        if isinstance(facts, dict) and (factor := number(facts.get("factor"))) in ends
    ]


def _factors(sweep: SweepResult) -> list[str]:
    """Of the learning rate, those that were tried."""
    return [f"{factor:g}" for item in listed(sweep.definition.get("tune")) if (factor := number(item)) is not None]


def _facts(sweep: SweepResult, tests: Sequence[TestFindings]) -> dict[str, str]:
    """What a reader needs to do the same again."""
    finished = [run for run in sweep.runs if run.finished]
    facts = {"command": command(sweep)}
    for findings in tests:
        if not findings.empty:
            facts[f"test set {findings.split}"] = f"{findings.name}: {findings.sentences:,} sentences"
            facts["BLEU"] = findings.signature
    facts["seeds"] = ", ".join(map(str, sweep.seeds))
    devices = dict.fromkeys(str(run.result["devices"]) for run in finished if "devices" in run.result)
    if devices:
        facts["devices of a run"] = "; ".join(devices)
    seconds = [value for run in finished if (value := run.number("train_seconds")) is not None]
    if seconds:
        facts["training time"] = f"{sum(seconds) / 3600:.2f} hours in all, {np.mean(seconds):.0f} s a run"
    return facts | _versions(sweep)


def command(sweep: SweepResult) -> str:
    """The command that makes this sweep; what was given by --config.* stands in the base."""
    definition = sweep.definition
    words = ["transformer-jax", "sweep", str(definition.get("file", "?")), f"--workdir={sweep.path}"]
    if definition.get("scale"):
        words.append(f"--scale={definition['scale']}")
    words.append(f"--seeds={','.join(map(str, sweep.seeds))}" + ("," if len(sweep.seeds) == 1 else ""))
    if _factors(sweep):
        words.append(f"--tune={','.join(_factors(sweep))}")
    if sweep.definition.get("data_order") != BY_SEED and sweep.base.get("data.order_seed") is None:
        # A sweep that begins with --together has one order of the data for all seeds; any other must ask for that.
        words.append("--together" if _together(sweep) else f"--config.data.order_seed={sweep.base.get('data.seed', 0)}")
    return shlex.join(words)


def _versions(sweep: SweepResult) -> dict[str, str]:
    """Of the programs that made the runs; more than one, if the runs are not of one make."""
    found: dict[str, dict[str, None]] = {}
    for run in sweep.runs:
        for name, version in run.versions.items():
            if name not in ("command", "directory", CONFIG_DIGEST, EARLIER, LAST_STEP):
                found.setdefault(name, {})[str(version)] = None
    return {name: " and ".join(versions) for name, versions in found.items()}


def to_json(content: Content) -> dict[str, Any]:
    """Everything that was found, for other programs."""
    sweep = content.sweep
    return {
        "format": 1,
        "name": sweep.name,
        "question": sweep.question,
        "state": content.state,
        "mixtures": list(content.mixtures),
        "baseline": sweep.baseline,
        "remarks": list(content.remarks),
        "facts": dict(content.facts),
        "problems": list(sweep.problems),
        "runs": [
            {"variant": run.variant, "seed": run.seed, "state": run.state, "reason": run.reason, "step": run.step}
            for run in sweep.runs
        ],
        "tests": [_test_json(*parts) for parts in zip(content.tests, content.words, strict=True)],
        "sizes": [
            {
                **view._asdict(),
                "front": sorted(view.front),
                "shown": sorted(view.shown),
                "beyond": {name: view.beyond(name) for name in view.points},
            }
            for view in content.sizes
        ],
        "base": sweep.definition.get("base", {}),
    }


def _test_json(findings: TestFindings, words: Sequence[str]) -> dict[str, Any]:
    differences = {
        name: {variant: {**d._asdict(), "resolved": d.resolved} for variant, d in getattr(findings, name).items()}
        for name in ("bleu_differences", "perplexity_differences")
    }
    return {**findings._asdict(), **differences, "words": list(words)}
