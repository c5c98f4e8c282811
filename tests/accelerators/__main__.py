"""Compiles the rows of tests/accelerators/expected.toml, one process each, and checks what is expected of them.

    python -m tests.accelerators --tpu=PYTHON --cuda=PYTHON
    python -m tests.accelerators --tpu=PYTHON --cuda=PYTHON --only="v5e base" --record

PYTHON is the interpreter of an environment with this library and jax[tpu] or jax[cuda13].
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import time
from typing import Any

from tests.accelerators import matrix
from tests.support.places import ROOT


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.accelerators", description=__doc__)
    for name in ("tpu", "cuda"):
        help = f"has the {name.upper()} plugin"
        parser.add_argument(f"--{name}", default=sys.executable, metavar="PYTHON", help=help)
    parser.add_argument("--only", default="", metavar="WORDS", help="rows that have all these words")
    parser.add_argument("--quick", action="store_true", help="only the small models")
    parser.add_argument("--record", action="store_true", help="write what is found into expected.toml")
    parser.add_argument("--jobs", type=int, default=1, help="how many compile at a time (default: %(default)s)")
    chosen = parser.parse_args()
    old = matrix.FILE.read_text()
    table = matrix.load(old)
    rows = [row for row in table["rows"] if wanted(row, chosen)]
    versions = {
        name: run(getattr(chosen, name), "tests.accelerators.matrix", name).stdout.strip()
        for name in sorted({matrix.platform(row) for row in rows})
    }
    for name, here in versions.items():
        if here != table["compilers"].get(name) and not chosen.record:
            print(f"{name}: recorded with {table['compilers'].get(name)}, here is {here}: figures may differ")
    problems = 0
    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        started = {pool.submit(compiled, table, row, chosen): row for row in rows}
        for number, done in enumerate(concurrent.futures.as_completed(started), 1):
            row, (report, error) = started[done], done.result()
            if chosen.record and not error:
                table["rows"][table["rows"].index(row)] = matrix.recorded(row, report)
            found = [f"does not compile: {error}"] if error else [] if chosen.record else matrix.broken(row, report)
            state = "; ".join(["BROKEN", *found]) if found else "recorded" if chosen.record else "as expected"
            print(f"[{number}/{len(rows)}] {report.get('seconds', 0):>5.0f} s  {row['name']}: {state}", flush=True)
            problems += len(found)
    if chosen.record:
        table["compilers"].update(versions)
        matrix.FILE.write_text(matrix.text(table, old))
    return 1 if problems or not rows else 0


def wanted(row: matrix.Row, chosen: argparse.Namespace) -> bool:
    words = " ".join([row["name"], row["target"], row.get("program", "train")])
    return (not chosen.quick or row.get("quick", False)) and all(word in words for word in chosen.only.split())


def run(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A module of this checkout, run by another interpreter."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([python, "-m", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


def compiled(table: dict[str, Any], row: matrix.Row, chosen: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The report of a row, or the last line that its compiler printed."""
    begin = time.monotonic()
    made = run(getattr(chosen, matrix.platform(row)), "tests.accelerators.examine", *matrix.command(table, row))
    if made.returncode:
        return {}, (made.stderr.strip() or "no message").splitlines()[-1]
    return json.loads(made.stdout) | {"seconds": time.monotonic() - begin}, ""


if __name__ == "__main__":
    raise SystemExit(main())
