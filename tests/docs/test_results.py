"""The numbers of result pages are those of the archived reports."""

import json
import math
import re
import statistics
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.places import ROOT

RESULTS = ROOT / "docs/results"
PAGES = sorted(path.parent for path in RESULTS.glob("*/report.json"))
NUMBER = r"[+−]?\d[\d,]*(?:\.\d+)?"
SPREAD = re.compile(rf"({NUMBER}) ± ({NUMBER})")
INTERVAL = re.compile(rf"({NUMBER})( %)? \[({NUMBER}), ({NUMBER})\]")


def archived(page: str) -> str:
    """The page without what it says is not archived: such a paragraph or item, and the commands and table after it."""
    kept, is_missing = [], False
    for block in re.split(r"\n\s*\n|\n(?=- )", page):
        if not (is_missing and block.lstrip().startswith(("|", "```"))):
            is_missing = "not archived" in block or "not in the report" in block
        if not is_missing:
            kept += [line for line in block.splitlines() if "published" not in line.lower()]
    return "\n".join(kept)


def inside(value: Any) -> Iterator[Any]:
    yield value
    for member in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from inside(member)


def shown(value: float, like: str) -> bool:
    """Whether a number is written as `like`, rounded to its decimals."""
    text = like.replace("−", "-").replace(",", "")
    decimals = len(text.partition(".")[2])
    return abs(value - float(text)) <= 0.5 * 10**-decimals + 1e-9


def scores(report: dict[str, Any]) -> list[list[float]]:
    """All lists of scores by seed."""
    found = [values for values in inside(report) if isinstance(values, list) and len(values) > 1]
    lists = [values for values in found if all(isinstance(value, float) for value in values)]
    for test in report.get("exact_match", ()):
        lists += [[100 * count / test["total"] for count in counts] for counts in test["right"].values()]
        for seeds in test["groups"].values():
            for label in seeds[0]:
                lists += [[100 * right / total for right, total in by_seed] for by_seed in transposed(seeds, label)]
    return lists


def transposed(seeds: list[dict[str, dict[str, list[int]]]], label: str) -> list[list[list[int]]]:
    return [[seed[label][value] for seed in seeds] for value in seeds[0][label]]


def differences(report: dict[str, Any]) -> list[tuple[float, float, float]]:
    """Estimates with their intervals: of differences, and of rank correlations by Fisher's transformation."""
    found = [(v["value"], v["low"], v["high"]) for v in inside(report) if isinstance(v, dict) and "low" in v]
    for measure in report.get("published", ()):
        if (correlation := measure["rank_correlation"]) is not None:
            center, half = math.atanh(correlation), 1.96 / math.sqrt(measure["n"] - 3)
            found.append((correlation, math.tanh(center - half), math.tanh(center + half)))
    return found


@pytest.mark.parametrize("folder", PAGES, ids=[page.name for page in PAGES])
def test_scores_and_differences_are_those_of_the_report(folder):
    report, text = json.loads((folder / "report.json").read_text()), archived((folder / "README.md").read_text())
    spreads = [(statistics.mean(values), statistics.stdev(values)) for values in scores(report)]
    wrong = [
        f"{mean} ± {deviation}"
        for mean, deviation in SPREAD.findall(text)
        if not any(shown(m, mean) and shown(s, deviation) for m, s in spreads)
    ]
    for value, is_percent, low, high in INTERVAL.findall(text):
        known = differences(report)
        if is_percent:
            known = [tuple(100 * math.expm1(number) for number in numbers) for numbers in known]
        if not any(all(map(shown, numbers, (value, low, high))) for numbers in known):
            wrong.append(f"{value}{is_percent} [{low}, {high}]")
    assert not wrong
