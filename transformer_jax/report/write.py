"""The report of a sweep's folder as files, from templates: a page, Markdown and LaTeX; CSV, JSON and figures."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from transformer_jax.errors import BadInput, visible
from transformer_jax.files import paths
from transformer_jax.files.atomic import explained, write_atomically
from transformer_jax.files.record import read_object
from transformer_jax.pictures.pages import image_url, render
from transformer_jax.report import tuning
from transformer_jax.report.figures import Plot, drawn
from transformer_jax.report.method import METHOD, variance_of_seeds
from transformer_jax.report.metrics import BLEU, METRICS, percent
from transformer_jax.report.report import Report, TestReport, report_of, to_json
from transformer_jax.report.results import load_sweep
from transformer_jax.report.statistics import CONFIDENCE
from transformer_jax.report.summary import ONE_SEED, baseline_of, intervals
from transformer_jax.report.text import KNOWN, latex, markdown, runs_csv, table_csv

# The files of "html"; the first marks the others as those of a report.
PAGES = ("report.json", "report.md", "table.csv", "runs.csv", "index.html")
# All other files contain it, so that a file of the user's is recognized.
MADE_BY = "transformer-jax report"
TEMPLATES = Path(__file__).parent / "templates"
LONGEST_NAME = 80
# What Jinja's own delimiters mean in LaTeX is something else.
LATEX: Mapping[str, Any] = {
    "block_start_string": "<%",
    "block_end_string": "%>",
    "variable_start_string": "<<",
    "variable_end_string": ">>",
    "comment_start_string": "<#",
    "comment_end_string": "#>",
}
LEGENDS = {
    "asterisk": "*: a significant difference (p below 0.05, corrected where several are compared).",
    "best": "Bold: not significantly worse than the best mean of its column, where others are.",
    "unverified": "?: a published score that was not verified against its source.",
}


def write_report(
    folder: str | Path, output: str | Path | None = None, formats: Sequence[str] = ("html",)
) -> tuple[Report, Path]:
    """Writes SWEEP/report/, or `output`, as "html", "latex", "svg" or "pdf"; returns the report and the directory."""
    report = read(folder)
    return report, write(report, output, formats)[0].parent


def read(folder: str | Path) -> Report:
    return report_of(load_sweep(folder))


def write(report: Report, output: str | Path | None, formats: Sequence[str]) -> list[Path]:
    """Writes the files of these formats; returns their paths."""
    files = {name: content for form in formats for name, content in _files(report, form)}
    if not files:
        raise BadInput(f"{report.sweep.path}: nothing is measured yet, so there are no figures")
    return write_files(files, report.sweep.path, output)


def write_files(files: dict[str, bytes], folder: Path, output: str | Path | None) -> list[Path]:
    """Writes the files of a report into `output`, or into the report/ of the folder."""
    directory = folder / "report" if output is None else Path(paths.expanded(output))
    with explained(directory):
        directory.mkdir(parents=True, exist_ok=True)
        if output is not None:
            _refuse_foreign(directory, list(files))
        for name, content in files.items():
            with write_atomically(directory / name) as file:
                file.write(content)
    return [directory / name for name in files]


def _files(report: Report, form: str) -> Iterator[tuple[str, bytes]]:
    """The name and content of every file of a format."""
    if form == "html":
        # Bytes of a file name that are not UTF-8 are written as JSON escapes.
        found = json.dumps(to_json(report), ensure_ascii=False, indent=1) + "\n"
        yield PAGES[0], found.encode(errors="backslashreplace")
        texts = (markdown_page(report), table_csv(report), runs_csv(report), html_page(report))
        for name, text in zip(PAGES[1:], texts, strict=True):
            yield name, encoded(text)
    elif form == "latex":
        for test in report.tests:
            yield f"table_{_named(test.findings.split)}.tex", encoded(latex_table(report, test))
    else:
        for test in report.tests:
            for metric, plot in test.forests.items():
                yield f"differences_{metric}_{_named(test.findings.split)}.{form}", drawn(plot, form, MADE_BY)
        if report.scatter is not None:
            yield f"compute.{form}", drawn(report.scatter, form, MADE_BY)
        for curves in report.curves:
            yield f"curves_{_named(curves.title)}.{form}", drawn(curves, form, MADE_BY)


def encoded(text: str) -> bytes:
    """A lone surrogate, which JSON can hold and UTF-8 cannot, becomes a question mark."""
    return text.encode("utf-8", "replace")


def html_page(report: Report) -> str:
    def image(plot: Plot) -> str:
        return image_url(drawn(plot, "svg", MADE_BY))

    return render(
        TEMPLATES / "report.html", title=report.sweep.name, report=report, method=METHOD, image=image, **LEGENDS
    )


def markdown_page(report: Report) -> str:
    """The report as Markdown, without figures and folded details."""
    return render_markdown("report.md", report=report, method=METHOD, **LEGENDS)


def render_markdown(template: str, **values: Any) -> str:
    def code(text: str) -> Markup:
        return Markup("`" + text.replace("`", " ") + "`")

    text = _render(template, markdown, code=code, **values)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r" +\n", "\n", text)).strip() + "\n"


def latex_table(report: Report, test: TestReport) -> str:
    """The table of a test set for \\input: a float with booktabs, with caption and label."""
    sweep, findings = report.sweep, test.findings
    keys = _latex_keys(report, test)
    table = test.table._replace(columns=[column for column in test.table.columns if column.key in keys])
    # A value and its interval are two columns, so that values are aligned.
    is_split = [column.kind == "differences" for column in table.columns]
    seeds = {len(variant.measured(findings.split)) for variant in sweep.variants}
    updates = {run.step for run in sweep.runs if run.finished}
    over = f"over {max(seeds)} seeds" if len(seeds) == 1 else "over seeds"
    differences = findings.differences(BLEU)
    marks = {
        row.name: chr(ord("a") + number % 26) * (1 + number // 26)
        for number, row in enumerate(row for row in table.rows if row.note)
    }
    text = _render(
        "report.tex",
        latex,
        LATEX,
        report=report,
        findings=findings,
        table=table,
        columns=table.columns,
        comments=[visible(" ".join(line.split())) for line in (f"Made by {MADE_BY}.", report.state, *report.mixtures)],
        sentences=f"{findings.sentences:,}",
        spread=f"mean ± standard deviation {over}" if max(seeds) > 1 else "one seed",
        trained=f"; training: {updates.pop():,} updates" if len(updates) == 1 else "",
        baseline=baseline_of(sweep, differences) if differences else "",
        level=percent(CONFIDENCE),
        best=LEGENDS["best"],
        label=f"{_label(sweep.name)}-{_label(findings.split)}",
        form="l" + "".join(r"r@{\hspace{0.7em}}l" if split else "r" for split in is_split),
        width=1 + len(is_split) + sum(is_split),
        marks=marks,
        notes=[(marks[row.name], row.note) for row in table.rows if row.note],
        scope=_scope(report, test) if differences else "",
    )
    unknown = "".join(sorted({*text} - KNOWN))
    about = f"% pdflatex needs a package for these letters, lualatex a font: {unknown}\n" if unknown else ""
    return about + text


def _latex_keys(report: Report, test: TestReport) -> set[str]:
    """The columns of the report's table that a paper has room for."""
    perplexity = "perplexity" if test.findings.unit == "token" else "word_perplexity"
    runs = [len(variant.measured(test.findings.split)) for variant in report.sweep.variants]
    counts = {"seeds"} if len(set(runs)) > 1 else set()
    steps = {"steps"} if len({run.step for run in report.sweep.runs if run.finished}) > 1 else set()
    return {"bleu", perplexity, "parameters", *(f"{metric.key}_difference" for metric in METRICS), *counts, *steps}


def _scope(report: Report, test: TestReport) -> str:
    """What the intervals account for, and what they cannot; and how learning rates were chosen."""
    spreads = {found.seed_spread for found in test.findings.differences(BLEU).values()}
    seeds = ONE_SEED if spreads == {"none"} else variance_of_seeds(report.sweep)
    return f"{intervals(test.findings)} {seeds} {tuning.remark(report.sweep)}"


def _render(
    template: str,
    escape: Callable[[str], str],
    delimiters: Mapping[str, Any] | None = None,
    **values: Any,
) -> str:
    """A template of text, filled; everything is escaped unless it is `Markup`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # here, because it loads slowly

    environment = Environment(
        **(delimiters or {}),
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else escape(str(value)),
    )
    return environment.get_template(template).render(values)


def _named(title: str) -> str:
    """A title as part of a file's name."""
    return re.sub(r"[^\w.=+-]+", "_", title)[:LONGEST_NAME]


def _label(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")


def _refuse_foreign(directory: Path, names: Sequence[str]) -> None:
    """Raises an error instead of replacing files that are not those of an earlier report."""
    taken = [name for name in names if (directory / name).exists()]
    pages = [name for name in taken if name in PAGES]
    with contextlib.suppress(BadInput):
        if pages and read_object(directory / PAGES[0]).keys() >= {"format", "state", "facts"}:
            pages = []
    foreign = pages + [n for n in taken if n not in PAGES and MADE_BY.encode() not in (directory / n).read_bytes()]
    if foreign:
        raise BadInput(
            f"{directory}: has {', '.join(foreign)}, not of a report; give another --output, or move them away"
        )
