"""The rows of expected.toml: reading, checking and recording them."""

import json
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.support.places import ROOT

FILE = Path(__file__).with_name("expected.toml")
TOLERANCE = 0.03  # of memory and traffic
RECORDED = ("temporary", "traffic", "copied", "messages", "kernels")
Row = dict[str, Any]


def load(text: str) -> dict[str, Any]:
    """The matrix: `options` of all rows, `small` those of the rows that are quick, `compilers`, and `rows`."""
    return tomllib.loads(text)


def options(matrix: dict[str, Any], row: Row) -> list[tuple[str, str]]:
    """The options of a row's config, with their values."""
    small = matrix["small"] if row.get("quick") else []
    return [tuple(option.split("=", 1)) for option in [*matrix["options"], *small, *row.get("options", [])]]


def command(matrix: dict[str, Any], row: Row) -> list[str]:
    """The arguments of `tests.accelerators.examine` for a row."""
    config = str(ROOT / "configs" / f"{row['config']}.py")
    changes = [f"{name}={value}" for name, value in options(matrix, row)]
    return [config, row["target"], row.get("program", "train"), *changes]


def compilers(platform: str) -> str:
    """The versions, in this environment, that figures depend on."""
    found = {each.metadata["Name"]: each.version for each in metadata.distributions()}
    plugin = {"tpu": "libtpu", "cuda": "jax-cuda13-plugin"}[platform]
    return ", ".join(f"{name} {found.get(name, 'is missing')}" for name in ("jax", plugin))


def platform(row: Row) -> str:
    return "tpu" if ":" in row["target"] else "cuda"


def figures(report: dict[str, Any]) -> Row:
    """What is recorded of a report: MB, and the messages and kernels."""
    return {
        "temporary": round(report["memory"]["temporary"] / 1e6, 1),
        "traffic": round(report["accessed"] / 1e6, 1),
        "copied": round(report["copied_in_loops"] / 1e6, 1),
        "messages": [
            f"{each['count']} x {each['kind']}{' in a loop' if each['in_loop'] else ''} "
            f"over {' and '.join(each['axes'])}, {each['asynchronous']} asynchronous"
            for each in report["collectives"]
        ],
        "kernels": [f"{count} x {name}" for name, count in sorted(report["attention_kernels"].items())],
    }


def broken(row: Row, report: dict[str, Any]) -> list[str]:
    """The expectations of a row that a report does not meet, each with what was found."""
    peak, problems = sum(report["memory"].values()), []
    if peak > report["capacity"]:
        problems.append(f"needs {peak / 1e9:.3g} GB of {report['capacity'] / 1e9:.3g} GB")
    if report["host_transfers"]:
        problems.append(f"waits for the host {report['host_transfers']} times")
    for name, found in figures(report).items():
        expected = row.get(name)
        if expected is None or isinstance(expected, list):
            as_expected = found == expected
        else:
            as_expected = found <= expected * (1 + TOLERANCE)
        if not as_expected:
            problems.append(f"{name} is {found}; expected {expected}")
    return problems


def recorded(row: Row, report: dict[str, Any]) -> Row:
    """The row with what a report has found."""
    return {name: value for name, value in row.items() if name not in RECORDED} | figures(report)


def text(matrix: dict[str, Any], old: str) -> str:
    """The file with these rows, and the comments that the old one begins with."""
    comments = [line for line in old.splitlines() if line.startswith("#")]
    top = [f"{name} = {_value(value)}" for name, value in matrix.items() if name != "rows"]
    rows = ["\n".join(["[[rows]]", *(f"{name} = {_value(row[name])}" for name in row)]) for row in matrix["rows"]]
    return "\n\n".join(["\n".join([*comments, *top]), *rows]) + "\n"


def _value(value: Any) -> str:
    """In TOML, which for strings, numbers and short lists is like JSON; long lists have a line for each item."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_value(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list) and len(json.dumps(value)) > 100:
        return "[\n" + "".join(f"  {json.dumps(item)},\n" for item in value) + "]"
    return json.dumps(value)


if __name__ == "__main__":  # asked by another interpreter
    print(compilers(sys.argv[1]))
