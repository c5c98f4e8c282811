"""The report of a sweep: everything that it says, gathered once for all of its formats. words.txt has its words."""

import collections
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer_jax.files.remote import name_of
from transformer_jax.report import figures, sections, table
from transformer_jax.report.findings import TestFindings, families_of, find
from transformer_jax.report.metrics import BLEU, EXACT_MATCH, PERPLEXITY
from transformer_jax.report.results import RunResult, SweepResult
from transformer_jax.report.sections import Section
from transformer_jax.report.table import STATE_NAMES, TRAINING_TIME
from transformer_jax.report.text import some, words
from transformer_jax.runs.folder import CONFIG_DIGEST, EARLIER, HAD_CHECKPOINT, IDENTIFYING, LAST_STEP
from transformer_jax.runs.metrics import duration

# The most runs named in the list of those that never started.
MOST_NEVER_STARTED = 4
STATES = ("finished", "not evaluated", "running", "interrupted", "stopped", "diverged", "failed", "damaged", "waiting")
# The most runs named that were made by one version of something; and the digits of a digest of custom code.
SHOWN_RUNS = SHOWN_DIGITS = 8
# In versions.json, but not versions.
NO_VERSIONS = ("command", "directory", CONFIG_DIGEST, EARLIER, HAD_CHECKPOINT, LAST_STEP)


class TestReport:
    """What is said of one test set."""

    def __init__(self, sweep: SweepResult, findings: TestFindings):
        self.findings = findings
        is_main = findings.split == sweep.tests[0]  # the one that published scores are of
        self.published = sections.published(sweep, findings) if is_main else sections.Section(facts=[])
        self.summary = summary(sweep, findings)  # what was found, in about three sentences
        # What a reader must know to judge it.
        self.notes = words("notes", findings, self.published.facts) if findings.runs else []
        self.words = [*self.summary, *self.notes]
        self.rows = table.records(sweep, findings)  # as in table.csv
        self.table = table.main_table(sweep, findings, self.rows)
        # Contrasts besides the differences from the baseline.
        self.families = [(family, table.family_table(findings, family)) for family in findings.families[1:]]
        self.forests = figures.forests(findings, sweep)  # by the key of the family and of the metric


class Report:
    """The contents of a report; every format is written from this."""

    def __init__(self, sweep: SweepResult):
        self.sweep = sweep
        findings = find(sweep)
        self.state = state_sentence(sweep)
        self.mixtures = code_mixtures(sweep)  # that the runs were not all made by the same code
        self.unfinished = unfinished(sweep.runs)  # the name and state of each such run
        self.analyses, problems = sections.analyses(sweep)
        self.problems = [*sweep.problems, *problems]  # damaged files
        self.is_complete = not (self.unfinished or self.problems or self.mixtures)
        self.tests = [TestReport(sweep, test) for test in findings]  # the main one first
        # Of each test set where any translation is right.
        self.exact_match = [sections.exact_match(sweep, test) for test in findings if EXACT_MATCH.key in test.by_metric]
        self.tuning = sections.tuning(sweep)
        self.scatter = figures.score_against_compute(sweep, findings[0])
        self.curves = figures.learning_curves(sweep)
        self.runs = table.runs_table(sweep)
        self.facts = facts(sweep, findings)
        self.remarks = remarks(sweep, findings)

    @property
    def plots(self) -> dict[str, figures.Plot]:
        """The figures by the names of their files."""
        plots: dict[str, figures.Plot] = {
            f"{family}_{metric}_{test.findings.split}": forest
            for test in self.tests
            for family, forests in test.forests.items()
            for metric, forest in forests.items()
        }
        if self.scatter is not None:
            plots["compute"] = self.scatter
        return plots | {f"curves_{curves.title}": curves for curves in self.curves}


def state_sentence(sweep: SweepResult) -> str:
    """How many of the sweep's runs are finished."""
    counts = collections.Counter("not evaluated" if run.unevaluated else run.state for run in sweep.runs)
    if counts["finished"] == counts.total():
        return f"All {counts.total()} runs are finished."
    parts = [f"{counts[state]} {STATE_NAMES.get(state, state)}" for state in STATES if counts[state]]
    return f"Of {counts.total()} runs: {', '.join(parts)}."


def unfinished(runs: Sequence[RunResult]) -> list[tuple[str, str]]:
    """The name and state of every run that is not finished; those that never started share a line."""
    lines = []
    for run in runs:
        if run.unevaluated:
            lines.append((run.name, f"finished, not evaluated on {', '.join(run.unevaluated)}"))
        elif run.state not in ("finished", "waiting"):
            step = "" if run.step is None else f" after {run.step:,} updates"
            lines.append((run.name, f"{run.state}{step}" + (f": {run.reason}" if run.reason else "")))
    if never := [run.name for run in runs if run.state == "waiting"]:
        lines.append((STATE_NAMES["waiting"], some(never, MOST_NEVER_STARTED)))
    return lines


def summary(sweep: SweepResult, test: TestFindings) -> list[str]:
    if not test.runs:
        return [f"On {test.split}, nothing is measured yet."]
    compared = [found for found in test.by_metric.values() if any(found.families.values())]
    if not sweep.primary:
        compared.sort(key=lambda found: found.metric.key != EXACT_MATCH.key)
    seeds = sorted({count for difference in test.differences.values() for count in difference.seeds})
    keys = (BLEU.key, EXACT_MATCH.key)
    of_100 = [found.mean(sweep.baseline) or 0 for key, found in test.by_metric.items() if key in keys]
    return words("findings", sweep, test, compared, seeds, test.by_metric[BLEU.key].mean(sweep.baseline), max(of_100))


def code_mixtures(sweep: SweepResult) -> list[str]:
    """A warning if the runs were not all made by the same code, else empty."""
    names: dict[str, dict[str, list[str]]] = {}  # what it is -> its version or digest -> names of runs
    notes: list[str] = []
    for run in (run for run in sweep.runs if run.finished):
        trained, evaluated = run.versions, run.result.get("versions", {})
        both = [name for name in IDENTIFYING if name in trained and name in evaluated]
        changed = [f"{n}: {trained[n]}, evaluated: {evaluated[n]}" for n in both if str(trained[n]) != evaluated[n]]
        notes += [f"{run.name}: {note}." for note in (*run.notes, *(f"trained with {change}" for change in changed))]
        versions = evaluated or trained
        facts = {f"custom code {code}": digest[:SHOWN_DIGITS] for code, digest in run.result.get("code", {}).items()}
        facts |= {name: str(versions.get(name, "not recorded")) for name in IDENTIFYING if versions}
        for kind, fact in facts.items():
            names.setdefault(kind.replace("_sha256", " source"), {}).setdefault(fact, []).append(run.name)
    for variant, proposals in sweep.proposed.items():
        for number, proposal in enumerate(proposals, 1):
            by_digest = names.setdefault(f"custom code {sweep.propose}", {})
            by_digest.setdefault(proposal["code"][:SHOWN_DIGITS], []).append(f"{variant}, setting {number}")
    lines = []
    for kind, by_fact in names.items():
        if len(by_fact) > 1:
            made = "; ".join(
                f"{fact} in {'; '.join(found[:SHOWN_RUNS])}{' and others' * (len(found) > SHOWN_RUNS)}"
                for fact, found in by_fact.items()
            )
            lines.append(f"The runs were not all made by the same {kind}: {made}.")
    return lines + notes


def remarks(sweep: SweepResult, tests: Sequence[TestFindings]) -> list[str]:
    """Warnings about how the runs were made."""
    is_vmapped = any((run.number("together") or 1) > 1 for run in sweep.runs)
    custom = []  # variants with modules that the formula for FLOPs does not know
    for variant in sweep.variants:
        options = {**sweep.options, **variant.changes}
        if any(path.startswith("model.parts.") and value for path, value in options.items()):
            custom.append(variant.name)
    return words("remarks", sweep, tests, is_vmapped, custom)


def facts(sweep: SweepResult, tests: Sequence[TestFindings]) -> dict[str, str]:
    """The facts needed to reproduce the sweep."""
    finished = [run for run in sweep.runs if run.finished]
    found = {}
    if sweep.primary:
        (family,) = (family for family in families_of(sweep) if family.key == sweep.answered_by)
        found["primary"] = f"{sweep.primary} on {sweep.tests[0]}, {family.title_in_sentence}"
    if sweep.command:
        found["command"] = shlex.join(["transformer-jax", *sweep.command, f"--workdir={name_of(str(sweep.path))}"])
    for test in (test for test in tests if test.runs):
        found[f"test set {test.split}"] = f"{test.name}: {test.sentences:,} sentences{test.in_clusters}"
        found["BLEU"] = test.signature
    found["seeds"] = ", ".join(map(str, sweep.seeds))
    if sweep.weights != "latest":
        found["weights"] = sweep.weights
    found["devices of a run"] = "; ".join(dict.fromkeys(str(run.result.get("devices")) for run in finished))
    if seconds := [run.number("train_seconds") or 0 for run in finished]:
        total, mean = duration(sum(seconds)), duration(float(np.mean(seconds)))
        found["training time"] = f"{total} in all, {mean} per run: {TRAINING_TIME}"
    for name in dict.fromkeys(name for run in sweep.runs for name in run.versions if name not in NO_VERSIONS):
        values = dict.fromkeys(str(run.versions[name] or "none") for run in sweep.runs if name in run.versions)
        if list(values) != ["none"]:
            found[name] = " and ".join(values)
    return found


def to_json(report: Report) -> dict[str, Any]:
    """Everything that was found, for other programs."""
    sweep = report.sweep
    return {
        "format": 1,
        **{key: getattr(sweep, key) for key in ("name", "question", "baseline", "primary", "answered_by", "margin")},
        "looks": [look["compared"] for look in sweep.looks],
        **{key: getattr(report, key) for key in ("state", "mixtures", "remarks", "facts", "problems")},
        "runs": [
            {"variant": run.variant, "seed": run.seed, "state": run.state, "reason": run.reason, "step": run.step}
            | ({"unevaluated": run.unevaluated} if run.unevaluated else {})
            for run in sweep.runs
        ],
        "tests": [_test_json(test) for test in report.tests],
        "tuning": report.tuning.facts,
        "published": report.tests[0].published.facts,
        "exact_match": [section.facts for section in report.exact_match],
        "analyses": [_analysis_json(section) for section in report.analyses],
        "base": sweep.base,
    }


def _analysis_json(section: Section) -> dict[str, Any]:
    tables = [
        {
            "title": table.title,
            "columns": [table.names, *(column.title for column in table.columns)],
            "rows": [[row.name, *(cell.value for _, cell in cells)] for row, cells in table.lines],
        }
        for table in section.tables
    ]
    return {"title": section.title, "text": section.text, "tables": tables}


def _test_json(test: TestReport) -> dict[str, Any]:
    keys = ("split", "name", "sentences", "clusters", "signature", "unit", "not_compared")
    found = {key: getattr(test.findings, key) for key in keys}
    for metric in dict.fromkeys((BLEU.key, PERPLEXITY.key, *test.findings.by_metric)):
        compared = test.findings.by_metric.get(metric)
        for family in test.findings.families:
            found[f"{metric}_{family.key}"] = compared.to_json(family.key) if compared else {}
    return {**test.findings.scores, **found, "rows": test.rows, "words": test.words}
