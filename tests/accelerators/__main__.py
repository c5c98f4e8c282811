"""Compiles the rows of tests/accelerators/expected.toml, one process each, and checks what is expected of them.

    python -m tests.accelerators --tpu=PYTHON --cuda=PYTHON
    python -m tests.accelerators --tpu=PYTHON --cuda=PYTHON --only="v5e base" --record

PYTHON is the interpreter of an environment with this library and jax[tpu] or jax[cuda13].
"""

import argparse
import concurrent.futures
import difflib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.accelerators import matrix
from tests.support.places import ROOT


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.accelerators", description=__doc__)
    for name in ("tpu", "cuda"):
        parser.add_argument(
            f"--{name}", default=sys.executable, metavar="PYTHON", help=f"has the {name.upper()} plugin"
        )
    parser.add_argument("--only", default="", metavar="WORDS", help="rows that have all these words")
    parser.add_argument("--quick", action="store_true", help="only the small models")
    parser.add_argument("--record", action="store_true", help="write what is found into expected.toml")
    parser.add_argument("--reports", type=Path, metavar="DIR", help="keep each row's report as a JSON file there")
    parser.add_argument("--jobs", type=int, default=1, help="how many compile at a time (default: %(default)s)")
    chosen = parser.parse_args()
    old = matrix.FILE.read_text()
    table = matrix.load(old)
    rows = [row for row in table["rows"] if wanted(row, chosen)]
    if not rows:
        parser.error("there is no such row")
    begin = time.monotonic()
    versions = {
        name: run(getattr(chosen, name), "tests.accelerators.matrix", name).stdout.strip()
        for name in sorted({matrix.platform(row) for row in rows})
    }
    for name, here in versions.items():
        if here != table["compilers"].get(name) and not chosen.record:
            print(f"{name}: recorded with {table['compilers'].get(name)}, here is {here}: figures may differ")
    problems, results = compile_all(table, rows, chosen)
    took, used = time.monotonic() - begin, os.times().children_user + os.times().children_system
    print(f"\n{summary(rows, results)}\n\n{len(rows)} rows in {took / 60:.1f} minutes, {used / 60:.1f} of a core's")
    if chosen.record:
        table["compilers"].update(versions)
        for row in rows:
            if row["name"] in results:
                table["rows"][table["rows"].index(row)] = matrix.recorded(row, results[row["name"]])
        new = matrix.text(table, old)
        matrix.FILE.write_text(new)
        print("".join(difflib.unified_diff(*(each.splitlines(True) for each in (old, new)), n=3)) or "nothing changed")
    for problem in problems:
        print(f"BROKEN {problem}")
    return 1 if problems else 0


def wanted(row: matrix.Row, chosen: argparse.Namespace) -> bool:
    words = " ".join([row["name"], row["target"], row.get("program", "train")])
    return (not chosen.quick or row.get("quick", False)) and all(word in words for word in chosen.only.split())


def run(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A module of this checkout, run by another interpreter."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([python, "-m", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


def compile_all(
    table: dict[str, Any], rows: list[matrix.Row], chosen: argparse.Namespace
) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """What is broken, and the reports of the rows that compile, by name."""
    problems, results = [], {}
    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        started = {pool.submit(compiled, table, row, chosen): row for row in rows}
        for number, done in enumerate(concurrent.futures.as_completed(started), 1):
            row = started[done]
            report, error = done.result()
            if error:
                found = [f"does not compile: {error}"]
            else:
                results[row["name"]] = report
                found = [] if chosen.record else matrix.broken(row, report)
            problems += [f"{row['name']}: {problem}" for problem in found]
            state = "recorded" if chosen.record and not found else "as expected" if not found else "; ".join(found)
            print(f"[{number}/{len(rows)}] {report.get('seconds', 0):>5.0f} s  {row['name']}: {state}", flush=True)
    return problems, results


def compiled(table: dict[str, Any], row: matrix.Row, chosen: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The report of a row, or the last line that its compiler printed."""
    begin = time.monotonic()
    made = run(getattr(chosen, matrix.platform(row)), "tests.accelerators.examine", *matrix.command(table, row))
    if made.returncode:
        return {}, (made.stderr.strip() or "no message").splitlines()[-1]
    report = json.loads(made.stdout) | {"seconds": time.monotonic() - begin}
    if chosen.reports:
        chosen.reports.mkdir(parents=True, exist_ok=True)
        name = "".join(letter if letter.isalnum() else "-" for letter in row["name"])
        (chosen.reports / f"{name}.json").write_text(json.dumps(report, indent=2))
    return report, ""


def summary(rows: list[matrix.Row], results: dict[str, dict[str, Any]]) -> str:
    """A line for each row that compiled."""
    lines = [f"{'':<44}{'state':>8}{'temporary':>11}{'traffic':>9} MB{'products':>10}{'hidden':>8}{'messages':>10}"]
    for row in rows:
        if report := results.get(row["name"]):
            found = matrix.figures(report)
            lines.append(
                f"{row['name']:<44}{report['memory']['state'] / 1e6:>8,.0f}{found['temporary']:>11,.0f}"
                f"{found['traffic']:>9,.0f}   {report['flops'] / 1e12:>5.3f} TF{found['hidden']:>6} %"
                f"{sum(each['count'] for each in report['messages']):>10}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
