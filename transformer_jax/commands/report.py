"""Reports the results of a sweep: a table in the terminal, and a page with all details. Only reads files.

  transformer-jax report runs/table3
  transformer-jax report runs/table3 --output=docs/results/table3
  transformer-jax report runs/kor --with runs/tur runs/kat

Writes index.html (opens in a browser without a network), report.md, table.csv and report.json into SWEEP/report/.
--with adds the test sets of other sweeps to the part about all test sets, for the variants that all sweeps have.
Also works on an unfinished sweep: runs that failed, are running or waiting are shown as such.
"""

import argparse
import shutil

from transformer_jax.commands.arguments import path
from transformer_jax.errors import visible


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sweep", metavar="SWEEP", type=path, help="the sweep's folder")
    parser.add_argument("--output", type=path, metavar="DIR", help="where to write the report (default: SWEEP/report)")
    about = "other sweeps with the same variants, for the part about all test sets"
    parser.add_argument("--with", dest="others", nargs="+", default=(), type=path, metavar="SWEEP", help=about)


def run(arguments: argparse.Namespace) -> None:
    from transformer_jax.report.texts import terminal_table
    from transformer_jax.report.write import write_report

    content, directory = write_report(arguments.sweep, arguments.output, arguments.others)
    width = shutil.get_terminal_size((160, 24)).columns
    for line in content.mixtures:
        print(f"{visible(line)}\n")
    for findings, table, words in zip(content.tests, content.tables, content.words, strict=True):
        print(f"{visible(findings.split)}: {visible(findings.name)}\n")
        print(terminal_table(table, width))
        print("", *(visible(line) for line in words), "", sep="\n")
    print(content.state)
    for name, what in content.unfinished:
        print(f"  {visible(name)}: {visible(what)}")
    for problem in content.sweep.problems:
        print(f"  damaged: {visible(problem)}")
    print(f"\n{directory / 'index.html'}, report.md, table.csv, report.json")
