"""Reports the results of a sweep: a table in the terminal, and files with all details. Only reads the sweep.

  transformer-jax report runs/table3
  transformer-jax report runs/table3 --output=docs/results/table3
  transformer-jax report runs/table3 --format=latex,pdf --output=paper/table3

Writes index.html (opens in a browser without a network), report.md, table.csv and report.json into SWEEP/report/.
--format=latex writes a table with booktabs for each test set instead, --format=svg or pdf figures that are one column
wide, --format=latex,pdf both.
Also works on an unfinished sweep: runs that failed, are running or waiting are shown as such.
"""

import argparse
import shutil

from transformer_jax.commands.arguments import path
from transformer_jax.errors import visible

FORMATS = ("html", "latex", "svg", "pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sweep", metavar="SWEEP", type=path, help="the sweep's folder")
    parser.add_argument("--output", type=path, metavar="DIR", help="where to write the report (default: SWEEP/report)")
    about = "html (the default), latex, svg, pdf, or several, separated by commas"
    parser.add_argument("--format", dest="formats", type=formats, default=("html",), metavar="FORMAT", help=about)


def formats(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in FORMATS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}: must be {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    return names


def run(arguments: argparse.Namespace) -> None:
    from transformer_jax.report import write
    from transformer_jax.report.texts import terminal_table

    content = write.read(arguments.sweep)
    files = write.write(content, arguments.output, arguments.formats)
    width = shutil.get_terminal_size((160, 24)).columns
    for line in content.mixtures:
        print(f"{visible(line)}\n")
    for findings, table, words in zip(content.tests, content.tables, content.words, strict=True):
        print(f"{visible(findings.title)}\n")
        print(terminal_table(table, width))
        print("", *(visible(line) for line in words), "", sep="\n")
    print(content.state)
    for name, what in content.unfinished:
        print(f"  {visible(name)}: {visible(what)}")
    for problem in content.sweep.problems:
        print(f"  damaged: {visible(problem)}")
    print("", *files, sep="\n")
