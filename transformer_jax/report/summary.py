"""The findings of a sweep in sentences (words.txt has their words), and the state of its runs."""

import collections
from collections.abc import Sequence
from typing import NamedTuple

from transformer_jax.report.findings import TestFindings
from transformer_jax.report.literature import Comparison
from transformer_jax.report.metrics import BLEU, EXACT_MATCH, PERPLEXITY
from transformer_jax.report.results import RunResult, SweepResult
from transformer_jax.report.text import some, words

# The most runs named in the list of those that never started.
MOST_NEVER_STARTED = 4
STATES = ("finished", "not evaluated", "running", "interrupted", "stopped", "diverged", "failed", "damaged", "waiting")
STATE_NAMES = {"waiting": "never started", "not evaluated": "not evaluated on all test sets"}


def state_sentence(sweep: SweepResult) -> str:
    """How many of the sweep's runs are finished."""
    counts = collections.Counter("not evaluated" if run.unevaluated else run.state for run in sweep.all_runs)
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


class Summary(NamedTuple):
    """What was found on a test set, in about three sentences, and what a reader must know to judge it."""

    findings: list[str]
    notes: list[str]


def summary(sweep: SweepResult, test: TestFindings, comparisons: Sequence[Comparison]) -> Summary:
    if not test.runs:
        return Summary([f"On {test.split}, nothing is measured yet."], [])
    compared = [found for found in test.by_metric.values() if found.differences]
    compared.sort(key=lambda found: found.metric is not EXACT_MATCH)
    facts: dict[str, object] = {}
    if compared:
        mdes = {found.metric.name: found.mde(sweep.baseline) for found in compared}
        counts = sorted({count for difference in compared[0].differences.values() for count in difference.seeds})
        plural = "s" * (counts[-1] > 1)
        facts = {
            "base": test.by_metric[BLEU.key].mean(sweep.baseline),
            "best": max(found.mean(sweep.baseline) or 0 for found in compared if found.metric is not PERPLEXITY),
            "seeds": " to ".join(f"{count}" for count in dict.fromkeys((counts[0], counts[-1]))) + f" seed{plural}",
            "possible": [text for text in mdes.values() if text],
            "impossible": [name for name, text in mdes.items() if text == ""],
            "ties": [name for name, text in mdes.items() if text is None],
        }
    return Summary(words("findings", sweep, test, compared, facts), words("notes", test, comparisons))
