"""The report of a sweep's folder as files, from templates: a page, Markdown and LaTeX; CSV, JSON and figures."""

import contextlib
import csv
import dataclasses
import fnmatch
import io
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import BadInput, did_you_mean, visible
from transformer_jax.files import paths
from transformer_jax.files.atomic import explained, write_atomically, write_json
from transformer_jax.pictures.pages import image_url, render
from transformer_jax.report import text
from transformer_jax.report.figures import Plot, drawn
from transformer_jax.report.findings import DIFFERENCES, Family
from transformer_jax.report.metrics import metrics_of
from transformer_jax.report.report import Report, TestReport, to_json
from transformer_jax.report.results import SweepResult, load_sweep
from transformer_jax.report.sections import setting_records
from transformer_jax.report.table import Table, contrast_records, curve_records, score_records
from transformer_jax.report.text import TEMPLATES, latex, markdown, words
from transformer_jax.runs.metrics import count_text
from transformer_jax.sweeps.folder import SweepFolder

# The first of the files marks all as files of a report; files of other formats contain MADE_BY.
JSON = "report.json"
MADE_BY = "transformer-jax report"
LONGEST_NAME = 80  # bytes
Content = bytes | str  # of a file
# The facts that are comments of a LaTeX table.
IN_LATEX = ("primary", "command", "transformer_jax", "transformer_jax_sha256", "commit", "jax", "cpu", "devices")


def write_report(
    folder: str | Path,
    output: str | Path | None = None,
    formats: Sequence[str] = ("html",),
    columns: Sequence[str] = (),
    decimals: int | None = None,
) -> tuple[Report, list[Path]]:
    """Writes SWEEP/report/, or `output`, as "html", "latex", "svg" or "pdf"; returns the report and its files.

    `columns` are patterns of the columns of LaTeX tables: ("bleu*", "parameters"); `decimals` are those of scores and
    differences.
    """
    report = Report(dataclasses.replace(load_sweep(folder), decimals=decimals))
    known = dict.fromkeys(column.key for test in report.tests for column in test.table.columns)
    for pattern in columns:
        if not fnmatch.filter(known, pattern):
            raise BadInput(f"--columns={pattern}: matches no column; {did_you_mean(pattern, known)}")
    files = {name: content for form in formats for name, content in _files(report, form, columns)}
    if not files:
        raise BadInput(f"{report.sweep.path}: nothing is measured yet, so there are no tables and figures")
    paths = write_files(files, report.sweep.path, output)
    if any(test.findings.differences for test in report.tests):
        record_look(report.sweep)
    return report, paths


def record_look(sweep: SweepResult) -> None:
    """Keeps in looks.json which seeds the sweep has, so that a later report knows which came after this one."""
    folder = SweepFolder(sweep.path)
    found = {"compared": sweep.compared_seeds, "finished": sweep.finished_seeds}
    if not any(found.items() <= look.items() for look in sweep.looks):
        look = {
            "seeds": sweep.seeds,
            **found,
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        with contextlib.suppress(OSError, BadInput):  # an archive may be read-only
            write_json(folder.looks_file, {"looks": [*folder.looks(), look]})


def write_files(files: Mapping[str, Content], folder: Path, output: str | Path | None) -> list[Path]:
    """Writes the files of a report into `output`, or into the report/ of the folder."""
    directory = folder / "report" if output is None else Path(paths.expanded(output))
    with explained(directory):
        if output is None:
            paths.plain_folder(directory)
        directory.mkdir(parents=True, exist_ok=True)
        taken = [name for name in files if (directory / name).exists()]
        if output is not None and not (JSON in taken and b'"facts"' in (directory / JSON).read_bytes()):
            taken = [name for name in taken if MADE_BY.encode() not in (directory / name).read_bytes()]
            if taken:
                raise BadInput(f"{directory}: has {', '.join(taken)}, not of a report; give another --output")
        for name, content in files.items():
            if isinstance(content, str):
                # A lone surrogate, which JSON can hold and UTF-8 cannot, is written as an escape.
                content = content.encode(errors="backslashreplace")
            write_atomically(directory / name, content)
    return [directory / name for name in files]


def _files(report: Report, form: str, columns: Sequence[str] = ()) -> Iterator[tuple[str, Content]]:
    """The name and content of every file of a format."""
    if form == "html":
        facts: dict[str, Any] = {"report": report, "words": words}
        yield JSON, json_text(to_json(report))
        yield "report.md", render_markdown("report.md", **facts)
        yield "checklist.md", _checklist(report)
        yield "table.csv", _csv([row for test in report.tests for row in test.rows])
        yield "runs.csv", _csv(score_records(report.sweep))
        yield "curves.csv", _csv(curve_records(report.sweep))
        if contrasts := [row for test in report.tests for row in contrast_records(test.findings)]:
            yield "contrasts.csv", _csv(contrasts)
        if analyses := [row for section in report.analyses for row in section.facts]:
            yield "analyses.csv", _csv(analyses)
        if settings := setting_records(report.sweep):
            yield "settings.csv", _csv(settings)
        facts["base"] = json_text(report.sweep.base)
        yield "index.html", render(TEMPLATES / "report.html", title=report.sweep.name, image=_image, **facts)
    elif form == "latex":
        for test in (test for test in report.tests if test.findings.runs):
            for family, table in [(None, test.table), *test.families]:
                shown = table.for_latex(columns)
                if shown.columns:
                    name = f"{family.key if family else 'table'}_{_named(test.findings.split)}.tex"
                    yield name, latex_table(report, test, shown, family)
    else:
        taken: list[str] = []
        for title, plot in report.plots.items():
            name, number = _named(title), 1
            while name.lower() in taken:  # titles that differ in punctuation only; some file systems ignore case
                number += 1
                name = f"{_named(title)}-{number}"
            taken.append(name.lower())
            yield f"{name}.{form}", drawn(plot, form, MADE_BY)


def _checklist(report: Report) -> str:
    """The answers to the ML reproducibility checklist that the records have."""
    code = {name: digest for run in report.sweep.runs for name, digest in run.result.get("code", {}).items()}
    code |= {str(report.sweep.propose): p["code"] for given in report.sweep.proposed.values() for p in given}
    sizes = {}
    for name, key in {"Parameters": "parameters", "FLOPs of training": "training_flops"}.items():
        means = [mean for variant in report.sweep.variants if (mean := variant.mean(key)) is not None]
        ends = dict.fromkeys(map(count_text, (min(means), max(means)))) if means else ["not known yet"]
        sizes[name] = " to ".join(ends)
    by_key = {metric.key: metric for metric in metrics_of(report.sweep)}
    margins = [by_key[key].margin_text(margin) for key, margin in report.sweep.margin.items() if key in by_key]
    return render_markdown(
        "checklist.md", report=report, words=words, custom=code, sizes=sizes, margins=", ".join(margins)
    )


def json_text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def render_markdown(template: str, **values: Any) -> str:
    page = text.render(template, markdown, **values)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r" +\n", "\n", page)).strip() + "\n"


def latex_table(report: Report, test: TestReport, table: Table, family: Family | None = None) -> str:
    """The table of a test set, or of a family of contrasts, for \\input: a float with booktabs, caption and label."""
    sweep, findings = report.sweep, test.findings
    has_differences = any(column.kind == "differences" for column in table.columns)
    contrasts = findings.contrasts(family.key if family else DIFFERENCES) if has_differences else {}
    labels = {variant.name: variant.shown_name for variant in sweep.variants}
    baseline = sweep.baseline_of(contrasts)
    shown = {labels.get(name, name): difference for name, difference in contrasts.items()}
    names = [sweep.name, findings.split, *([family.key] if family else [])]
    facts = [f"{name}: {report.facts[name]}" for name in IN_LATEX if name in report.facts]
    lines = (f"Made by {MADE_BY}.", report.state, *report.mixtures, *facts)
    return text.render(
        "report.tex",
        latex,
        report=report,
        findings=findings,
        family=family,
        table=table,
        comments=[visible(" ".join(line.split())) for line in lines],
        seeds={row["seeds"] for row in test.rows},
        updates={run.step for run in sweep.runs if run.finished},
        contrasts=contrasts,
        baseline=labels.get(baseline, baseline),
        label="-".join(filter(None, (re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") for name in names))),
        notes=list(dict.fromkeys(row.note for row in table.rows if row.note)),
        scope=" ".join(words("scope", sweep, findings, shown)) if shown else "",
    )


def _image(plot: Plot) -> str:
    return image_url(drawn(plot, "svg", MADE_BY))


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = dict.fromkeys(name for row in rows for name in row)  # test sets may differ in what is measured
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writerow({name: text.cell(name) for name in columns})
    for row in rows:
        writer.writerow({name: text.cell(value) for name, value in row.items()})
    return file.getvalue()


def _named(title: str) -> str:
    """A title as part of a file's name."""
    return paths.file_name(title, "_").encode()[:LONGEST_NAME].decode(errors="ignore")
