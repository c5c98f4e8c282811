"""A sweep's report as one self-contained HTML page: it needs no network, and escapes all it was given."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

import numpy as np

from transformer_jax.pictures.plots import COLOURS
from transformer_jax.pictures.run_page import PAGE
from transformer_jax.report import analyses
from transformer_jax.report.analyses import Analysis, AnalysisTable
from transformer_jax.report.content import METHOD, Content
from transformer_jax.report.findings import (
    TOLD,
    TestFindings,
    bleu_change,
    bleu_text,
    perplexity_change,
    perplexity_text,
)
from transformer_jax.report.plots import Interval, Point, forest, scatter
from transformer_jax.report.results import SweepResult
from transformer_jax.report.samples import Sample, Version
from transformer_jax.report.size_view import COSTS, RULE, SizeView
from transformer_jax.report.statistics import Difference
from transformer_jax.report.style import SCRIPT, STYLE
from transformer_jax.report.table import Cell, Column, Table, count_text
from transformer_jax.runs.metrics import duration

KINDS = {"options": "options", "differences": "differences", "published": "published figures", "cost": "cost"}
MEASURES = {"bleu": "BLEU", "perplexity": "PPL"}

escape = html.escape


def page(content: Content) -> str:
    """The page, as HTML."""
    sections = {
        "Results": _results(content),
        "Size and compute": _sizes(content),
        "Learning curves": _figures([(chart.title, chart.svg) for chart in content.curves]),
        "Analyses": _analyses(content),
        "Translations": _samples(content.samples),
        "Runs": _runs(content),
        "How it was done": _method(content),
    }
    shown = {title: body for title, body in sections.items() if body}
    links = "".join(f'<a href="#{_anchor(title)}">{title}</a>' for title in shown)
    parts = [_head(content), f"<nav>{links}</nav>"]
    parts += [f'<section id="{_anchor(title)}"><h2>{title}</h2>{body}</section>' for title, body in shown.items()]
    parts.append(f'<div id="tip"></div><script>{SCRIPT}</script>')
    return PAGE.format(title=escape(content.sweep.name), style=STYLE, body="\n".join(parts))


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _head(content: Content) -> str:
    sweep = content.sweep
    partial = " partial" if content.unfinished or sweep.problems or content.mixtures else ""
    problems = "".join(f"<li>{escape(problem)}</li>" for problem in sweep.problems)
    troubled = "".join(f"<li><b>{escape(name)}</b>: {escape(what)}</li>" for name, what in content.unfinished)
    more = _bullets(content.mixtures) + (f"<ul>{troubled}</ul>" if troubled else "")
    more += f"<p>Damaged files:</p><ul>{problems}</ul>" if problems else ""
    return (
        f"<h1>{escape(sweep.name)}</h1><p>{escape(sweep.question)}</p>"
        f'<div class="state{partial}">{escape(content.state)}{more}</div>'
    )


def _results(content: Content) -> str:
    parts = [_bullets(content.words[0]), _table(content.sweep, content.tables[0], 0)]
    parts.append(_forests(content.sweep, content.tests[0]))
    for number, (findings, table) in enumerate(zip(content.tests, content.tables, strict=True)):
        if number:
            parts += [f"<h3>On {escape(findings.split)}: {escape(findings.name)}</h3>", _bullets(content.words[number])]
            parts += [_table(content.sweep, table, number), _forests(content.sweep, findings)]
    if content.remarks:
        parts.append(f"<h3>What to bear in mind</h3>{_bullets(content.remarks)}")
    return "".join(parts)


def _bullets(texts: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>" if texts else ""


def _table(sweep: SweepResult, table: Table, number: int) -> str:
    """The main table, with what filters it and shows and hides its columns."""
    name = f"table-{number}"
    kinds = {column.kind for column in table.columns}
    boxes = "".join(
        f'<label><input type="checkbox" data-of="{name}" data-hides="{kind}"{" checked" if kind != "cost" else ""}> '
        f"{label}</label>"
        for kind, label in KINDS.items()
        if kind in kinds
    )
    search = f'<input type="search" placeholder="filter: words of a row" data-filters="{name}" aria-label="filter">'
    heads = "".join(_heading(column) for column in table.columns)
    rows, group = [], ""
    for row in table.rows:
        variant = row.variant
        if variant.group != group:
            group = variant.group
            width = len(table.columns) + 1
            rows.append(f'<tr class="group"><td colspan="{width}"><span>{escape(group) or "others"}</span></td></tr>')
        base = ' class="base"' if variant.name == sweep.baseline else ""
        note = f"<small>{escape(variant.note)}</small>" if variant.note else ""
        cells = "".join(_cell(row.cells[column.key], column.kind) for column in table.columns)
        head = f'<th scope="row" data-value="{escape(variant.name)}">{escape(variant.name)}{note}</th>'
        rows.append(f'<tr data-group="{escape(variant.group)}"{base}>{head}{cells}</tr>')
    return (
        f'<div class="controls">{search}{boxes}</div>'
        f'<div class="scroll"><table class="sortable" id="{name}"><thead><tr>'
        f"<th><button>variant</button></th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _heading(column: Column) -> str:
    return f'<th class="{column.kind}" title="{escape(column.help)}"><button>{escape(column.title)}</button></th>'


def _cell(cell: Cell, kind: str = "") -> str:
    value = "" if cell.value is None else escape(str(cell.value))
    text, bracket, interval = cell.text.partition(" [")
    below = f"<small>{escape(bracket.strip() + interval)}</small>" if interval and kind == "differences" else ""
    shown = escape(text) + below if below else escape(cell.text)
    return f'<td class="{kind} {cell.mark}" data-value="{value}">{shown}</td>'


def _forests(sweep: SweepResult, findings: TestFindings) -> str:
    figures = []
    kinds = (
        ("BLEU", "bleu", findings.bleu_differences, 1, "difference in BLEU"),
        ("Perplexity", "perplexity", findings.perplexity_differences, -1, f"log-perplexity per {findings.unit}"),
    )
    for title, key, differences, sign, axis in kinds:
        if differences:
            rows = [_interval(sweep, name, found, key, sign) for name, found in differences.items()]
            better = "right" if sign > 0 else "left"
            diamonds = "; ◇ is the published one" if any(row.published is not None for row in rows) else ""
            figures.append(
                (f"{title}: differences from the baseline ({better} is better{diamonds})", forest(rows, axis))
            )
    return _figures(figures, "large")


def _interval(sweep: SweepResult, name: str, found: Difference, key: str, sign: int) -> Interval:
    by_name = {variant.name: variant for variant in sweep.variants}
    theirs, base = (by_name[which].published.get(key) for which in (name, by_name[name].baseline))
    told = (bleu_text if key == "bleu" else perplexity_text)(found)
    told += f", p = {found.corrected_p:.3g}, seeds {found.seeds[0]} and {found.seeds[1]}"
    mark = ("better" if sign * found.value > 0 else "worse") if found.resolved else ""
    if theirs is None or base is None or min(theirs, base) <= 0:
        return Interval(name, found.value, found.low, found.high, told, mark)
    published = theirs - base if key == "bleu" else math.log(theirs / base)
    told += f"; published {(bleu_change if key == 'bleu' else perplexity_change)(published)}"
    return Interval(name, found.value, found.low, found.high, told, mark, published)


def _figures(figures: Sequence[tuple[str, str]], kind: str = "") -> str:
    shown = "".join(f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>" for title, svg in figures)
    return f'<div class="pictures {kind}">{shown}</div>' if shown else ""


def _sizes(content: Content) -> str:
    """Scores against what they cost, and what a usual model of a variant's cost would reach."""
    if not any(view.points for view in content.sizes):
        return ""
    figures = [(_size_title(view), _size_plot(content, view)) for view in content.sizes if view.points]
    text = (
        f"A ring, and ◇ in the table, marks those that lead by their means; ◆ those that are shown to be best. {RULE}"
    )
    resized = next((view.resized for view in content.sizes if view.line), ())
    if resized:
        text += (
            f" The dashed line runs through the models that differ from the baseline in size alone "
            f"({', '.join(resized)}): what a usual model of that cost would reach. "
            "The columns tell how far each variant lies from it."
        )
    return f"<p>{escape(text)}</p>{_figures(figures, 'large')}{_size_table(content)}"


def _size_title(view: SizeView) -> str:
    return f"{MEASURES[view.measure]} against {COSTS[view.cost]}"


def _size_plot(content: Content, view: SizeView) -> str:
    groups = dict.fromkeys(v.group for v in content.sweep.variants if v.name != content.sweep.baseline)
    colours = {group: COLOURS[number % len(COLOURS)] for number, group in enumerate(groups)}
    points = []
    for variant in content.sweep.variants:
        if variant.name in view.points:
            cost, score = view.points[variant.name]
            shown = score if view.measure == "bleu" else math.exp(min(score, 700.0))
            told = f"{variant.name}: {MEASURES[view.measure]} {shown:.4g}, {count_text(cost)} {COSTS[view.cost]}"
            ringed = variant.name in view.front
            colour = "var(--ink)" if variant.name == content.sweep.baseline else colours[variant.group]
            points.append(Point(cost, shown, told, colour, ringed))
    line = []
    for cost in np.geomspace(*view.reach, 20).clip(*view.reach) if view.line else ():
        if (expected := view.expected(float(cost))) is not None:
            line.append((float(cost), expected if view.measure == "bleu" else math.exp(min(expected, 700.0))))
    unit = " per word" if view.measure == "perplexity" and content.tests[0].unit == "word" else ""
    names = [
        (content.sweep.baseline, "var(--ink)"),
        *((group or "others", colour) for group, colour in colours.items()),
    ]
    return scatter(points, COSTS[view.cost], MEASURES[view.measure] + unit, line, names)


def _size_table(content: Content) -> str:
    """Sorted by size, each with its place on the fronts and its distance from the line."""
    heads = ["parameters", "FLOPs"]
    for view in content.sizes:
        heads.append(f"{_size_title(view)}: best")
        heads += [f"{MEASURES[view.measure]} beyond its {'size' if view.cost == 'parameters' else 'compute'}"] * bool(
            view.line
        )
    rows = []
    known = [variant for variant in content.sweep.variants if any(variant.name in v.points for v in content.sizes)]
    costs = {view.cost: view.points for view in content.sizes}
    for variant in sorted(known, key=lambda v: costs["parameters"].get(v.name, (0.0, 0.0))[0]):
        prices = [costs[cost].get(variant.name, (None, None))[0] for cost in COSTS]
        cells = [_cell(Cell() if price is None else Cell(count_text(price), price)) for price in prices]
        for view in content.sizes:
            place = (variant.name in view.front) + (variant.name in view.shown)
            cells.append(_cell(Cell(("", "◇", "◆")[place], place)))
            if view.line:
                cells.append(_cell(_beyond(view, variant.name)))
        name = escape(variant.name)
        rows.append(f'<tr><th scope="row" data-value="{name}">{name}</th>{"".join(cells)}</tr>')
    head = "".join(f"<th><button>{escape(title)}</button></th>" for title in ["variant", *heads])
    table = (
        f'<table class="sortable plain" id="sizes"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )
    return f'<details><summary>By size and compute</summary><div class="scroll">{table}</div></details>'


def _beyond(view: SizeView, name: str) -> Cell:
    beyond = view.beyond(name)
    if beyond is None:
        return Cell()
    return Cell((bleu_change if view.measure == "bleu" else perplexity_change)(beyond), beyond)


def _analyses(content: Content) -> str:
    """Of each analysis what can be compared, then each variant's whole one, and pictures that were left beside them."""
    parts = []
    for overview in analyses.overviews(content.analyses):
        parts.append(f"<h3>{escape(overview.title)}</h3><p>{escape(overview.text)}</p>")
        parts += [_analysis_table(table) for table in overview.tables]
        parts += [_analysis(analysis) for analysis in content.analyses if analysis.name == overview.name]
    shown = "".join(
        f"<figure><figcaption>{escape(picture.variant)}: {escape(picture.name)}</figcaption>"
        f'<img src="{picture.address}" alt="{escape(picture.name)}" loading="lazy"></figure>'
        for picture in content.pictures
    )
    return "".join(parts) + (f'<div class="pictures">{shown}</div>' if shown else "")


def _analysis(analysis: Analysis) -> str:
    parts = [_figures([(plot.title, plot.svg) for plot in analysis.plots])]
    if analysis.seeds > 1:
        about = f"Numbers in tables are means over {analysis.seeds} seeds; plots are the first's."
        parts.append(f'<p class="soft">{about}</p>')
    parts += [_analysis_table(table) for table in analysis.tables]
    return f"<details><summary>{escape(analysis.variant)}</summary>{''.join(parts)}</details>"


def _analysis_table(table: AnalysisTable) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    body = f'<table class="plain"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<h4>{escape(table.title)}</h4><div class="scroll">{body}</div>'


def _samples(samples: Sequence[Sample]) -> str:
    if not samples:
        return ""
    about = (
        '<p class="soft">The first sentences of the test set, and then those on which the variants disagree most; one '
        "seed of each. Words that the reference does not have there are marked.</p>"
    )
    return about + "".join(_sample(sample) for sample in samples)


def _sample(sample: Sample) -> str:
    parts = [
        f'<p class="soft">line {sample.number}: {escape(sample.source)}</p><p><b>{escape(sample.reference)}</b></p>'
    ]
    parts += [_version(version) for version in sample.versions]
    parts += [f'<p class="soft">and {sample.more} more</p>'] if sample.more else []
    return f'<div class="sample">{"".join(parts)}</div>'


def _version(version: Version) -> str:
    words = " ".join(
        escape(word) if shared else f'<span class="off">{escape(word)}</span>' for word, shared in version.words
    )
    right = ' class="right"' if version.right else ""
    who = escape(", ".join(version.variants))
    return f'<p><span{right}>{words or "(nothing)"}</span> <span class="who">{who}</span></p>'


def _runs(content: Content) -> str:
    """Every run, in whatever state."""
    heads = ("run", "state", "step", "time", "tokens/s", *(f"BLEU {split}" for split in content.sweep.tests))
    rows = []
    for run in content.sweep.runs:
        seconds, rate = run.number("train_seconds"), run.number("tokens_per_second")
        cells = [
            f'<td class="left">{escape(TOLD.get(run.state, run.state))}</td>',
            _cell(Cell() if run.step is None else Cell(f"{run.step:,}", run.step)),
            _cell(Cell() if seconds is None else Cell(duration(seconds), seconds)),
            _cell(Cell() if rate is None else Cell(f"{rate:,.0f}", rate)),
        ]
        for split in content.sweep.tests:
            measured = run.measured.get(split) if run.finished else None
            cells.append(_cell(Cell() if measured is None else Cell(f"{measured.bleu:.2f}", measured.bleu)))
        name = escape(f"{run.variant}, seed {run.seed}")
        rows.append(f'<tr><th scope="row" data-value="{name}">{name}</th>{"".join(cells)}</tr>')
    head = "".join(f"<th><button>{escape(title)}</button></th>" for title in heads)
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    table = f'<table class="sortable plain" id="runs-table">{body}</table>'
    return f'<details><summary>Every run</summary><div class="scroll">{table}</div></details>'


def _method(content: Content) -> str:
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in content.facts.items())
    base = f"<details><summary>The base's config</summary><pre>{escape(content.base)}</pre></details>"
    return f"{_bullets(METHOD)}<dl>{facts}</dl>{base}"
