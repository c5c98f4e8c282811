"""Reports the results of a sweep: in the terminal, and as files with all details.

  transformer-jax report runs/table3
  transformer-jax report runs/table3 --output=docs/results/table3
  transformer-jax report runs/table3 --format=latex,pdf --output=paper/table3

Writes into SWEEP/report/: index.html (opens in a browser without a network), report.md, report.json, table.csv,
runs.csv (a line for each score of each run), curves.csv (losses during training), contrasts.csv (effects, contrasts and
controls), settings.csv (what was tried before), analyses.csv and checklist.md.
--format=latex writes tables with booktabs and graphicx instead, --format=svg or pdf figures one column wide,
--format=latex,pdf both. SWEEP/looks.json keeps which seeds the sweep had when a report was made.
Also works on an unfinished sweep: runs that failed, are running or waiting are shown as such.
"""

import argparse
import shutil

from transformer_jax.commands.arguments import path
from transformer_jax.errors import BadInput, visible
from transformer_jax.files.remote import name_of

FORMATS = ("html", "latex", "svg", "pdf")
IN_TERMINAL = ("primary", "command", "commit", "cpu", "devices")  # of what the page has about how the runs were made


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="SWEEP", type=path, help="the folder of a sweep")
    parser.add_argument("--output", type=path, metavar="DIR", help="where to write the report (default: SWEEP/report)")
    parser.add_argument("--json", action="store_true", help="print report.json, and no tables")
    about = (
        "columns of LaTeX tables, separated by commas: bleu*,perplexity_difference,bleu_p,parameters,model.num_heads"
    )
    parser.add_argument("--columns", type=lambda text: text.split(","), default=(), metavar="NAMES", help=about)
    about = (
        "decimals of scores and differences; by default 2, 3 where scores are below 10, 1 in percent, and of custom "
    )
    about += "metrics those of the spread over seeds"
    parser.add_argument("--decimals", type=int, choices=range(10), metavar="N", help=about)
    about = "html (the default), latex, svg, pdf, or several, separated by commas"
    parser.add_argument("--format", dest="formats", type=formats, default=("html",), metavar="FORMAT", help=about)


def formats(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in FORMATS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}: must be {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    return names


def run(arguments: argparse.Namespace) -> None:
    from transformer_jax.report import write
    from transformer_jax.report.report import to_json
    from transformer_jax.report.text import terminal_table

    if arguments.columns and "latex" not in arguments.formats:
        raise BadInput("--columns: has no effect without --format=latex")
    report, files = write.write_report(
        arguments.folder, arguments.output, arguments.formats, arguments.columns, arguments.decimals
    )
    if arguments.json:
        print(write.json_text(to_json(report)), end="")
        return
    width = shutil.get_terminal_size((160, 24)).columns
    lines = [*report.mixtures]
    for test in report.tests:
        lines += [test.findings.title, *terminal_table(test.table, width).splitlines(), ""]
        for family, table in test.families:
            lines += [f"{family.title}: {family.help}.", *terminal_table(table, width).splitlines(), ""]
        lines += [*test.words, ""]
    lines += [f"{name}: {report.facts[name]}" for name in IN_TERMINAL if name in report.facts]
    lines += [report.state, *(f"  {name}: {state}" for name, state in report.unfinished)]
    lines += [f"  damaged: {problem}" for problem in report.problems]
    print(*map(visible, lines), "", *map(name_of, map(str, files)), sep="\n")
