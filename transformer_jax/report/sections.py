"""The sections of a report after its main tables: published scores, exact match by group, tuning, analyses."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.report.figures import Curve, Curves
from transformer_jax.report.findings import TestFindings
from transformer_jax.report.metrics import EXACT_MATCH, decimals_for, deviation
from transformer_jax.report.results import Measured, SweepResult, number, parsing
from transformer_jax.report.statistics import mean_interval
from transformer_jax.report.table import UNVERIFIED, Cell, Column, Row, Table, number_cell, score_cells
from transformer_jax.runs.metrics import count_text, duration
from transformer_jax.sweeps.definition import Tuning
from transformer_jax.sweeps.search import chosen

# More lengths are joined into ranges, at most this many on each side of the longest training target.
MOST_RANGES = 12
# The limits of a table or a curve of an analysis.
MOST_POINTS = 200
YES_NO = {True: "yes", False: "no", None: "–"}
# The right examples and all of them, by group.
Counts = Mapping[str, tuple[int, int]]
# The values of a cell of an analysis, one for each seed.
Cells = Sequence[Any]
# Such a cell: the first seed's text, the numbers of the seeds that have one, and how many seeds there are.
Seeds = tuple[str, Sequence[float], int]


class Section(NamedTuple):
    title: str = ""
    text: str = ""
    tables: Sequence[Table] = ()
    plots: Mapping[str, Sequence[Curves]] = {}  # by variant
    facts: Any = None  # the same in report.json


def published(sweep: SweepResult, findings: TestFindings) -> Section:
    """Our differences from the baseline beside the literature's, for each metric of which any is published."""
    from scipy.stats import spearmanr  # here, because it loads slowly

    variants = {variant.name: variant for variant in sweep.variants}
    tables, facts = [], []
    for key, compared in findings.by_metric.items():
        metric = compared.metric
        rows: list[dict[str, Any]] = []
        for name, ours in compared.differences.items():
            pair = (variants[name], variants[variants[name].baseline])
            if all(key in variant.published for variant in pair):
                theirs = metric.published_difference(*(variant.published[key] for variant in pair))
                row = {"variant": name, "difference": ours.value, "published": theirs}
                row["verified"] = not any(key in variant.unverified for variant in pair)
                row["agrees"] = ours.value * theirs > 0 if ours.value * theirs else None
                rows.append({**row, "significant": ours.significant})
        if rows:
            pairs = [(row["difference"], row["published"]) for row in rows]
            is_ranked = all(len(set(values)) > 1 for values in zip(*pairs, strict=True))
            correlation = float(spearmanr(pairs).statistic) if is_ranked else None
            facts.append({"measure": key, "rank_correlation": correlation, "n": len(rows), "rows": rows})
            columns = [
                Column(f"Δ {metric.title} ours", [number_cell(ours, metric.change) for ours, _ in pairs]),
                Column(
                    f"Δ {metric.title} published",
                    [number_cell(r["published"], metric.change, UNVERIFIED * (not r["verified"])) for r in rows],
                ),
                Column("same sign", [Cell(YES_NO[row["agrees"]]) for row in rows]),
                Column("significant", [Cell(YES_NO[row["significant"]]) for row in rows]),
            ]
            tables.append(Table([Row(row["variant"]) for row in rows], columns))
    return Section(tables=tables, facts=facts)


def exact_match(sweep: SweepResult, findings: TestFindings) -> Section:
    """Exact match on one test set by group of examples, and by length of the target where some are longer than any in
    training."""
    compared = findings.by_metric[EXACT_MATCH.key]
    runs = {name: findings.runs[name] for name in compared.scores}
    # The lengths are in tokens of the first variant; others may divide the same targets into other tokens.
    variant = next(variant for variant in sweep.variants if variant.name in runs)
    first = runs[variant.name][0]
    lengths_N = first.tokens_N.astype(int) - 1  # without <eos>
    limits = [limit for run in variant.finished if (limit := run.number("longest_target")) is not None]
    longest = int(max(limits)) - 1 if limits else None
    tables = []
    for label in dict.fromkeys(label for seeds in runs.values() for seed in seeds for label in seed.groups):
        groups = {name: [seed.groups.get(label, {}) for seed in seeds] for name, seeds in runs.items()}
        values = sorted({value for seeds in groups.values() for counts in seeds for value in counts})
        tables.append(_by_group(label, groups, values, sweep.decimals))
    if longest is not None and lengths_N.max() > longest:
        ranges = _ranges(lengths_N, longest)
        alike = {name: seeds for name, seeds in runs.items() if seeds[0].digest == first.digest}
        by_length = {name: [_counts(seed, ranges) for seed in seeds] for name, seeds in alike.items()}
        tables.append(_by_group("tokens of the target", by_length, [*ranges], sweep.decimals))
    facts = {
        "split": findings.split,
        "total": findings.sentences,
        "longest_training_target": longest,
        "right": {name: [int(seed.right_N.sum()) for seed in seeds] for name, seeds in runs.items()},
        "groups": {name: [seed.groups for seed in seeds] for name, seeds in runs.items()},
        "differences": compared.to_json(),
    }
    return Section(findings.title, tables=tables, facts=facts)


def _by_group(label: str, groups: Mapping[str, Sequence[Counts]], values: Sequence[str], decimals: int | None) -> Table:
    """The values of one label by variants, in percent."""
    examples = []
    for value in values:  # several totals where groups depend on what a run was trained on
        totals = sorted({counts[value][1] for seeds in groups.values() for counts in seeds if value in counts})
        examples.append(Cell(" or ".join(f"{total:,}" for total in totals), totals[-1]))
    columns = [Column("examples", examples)]
    for name, seeds in groups.items():
        rates = [[100 * c[value][0] / max(c[value][1], 1) for c in seeds if value in c] for value in values]
        columns.append(Column(name, score_cells(rates, decimals)))
    return Table([Row(value) for value in values], columns, label, f"Exact match by {label}, %")


def _ranges(lengths_N: np.ndarray, longest: int) -> dict[str, np.ndarray]:
    """The examples of each range of lengths, by its name; ranges end where the training's lengths do."""
    lengths = np.unique(lengths_N)
    known = lengths.searchsorted(longest, side="right")
    ranges = {}
    for side, note in ((lengths[:known], ""), (lengths[known:], " (longer than in training)")):
        for part in np.array_split(side, min(MOST_RANGES, len(side))) if len(side) else ():
            name = f"{part[0]:,}" if len(part) == 1 else f"{part[0]:,} to {part[-1]:,}"
            ranges[name + note] = np.isin(lengths_N, part)
    return ranges


def _counts(run: Measured, ranges: Mapping[str, np.ndarray]) -> Counts:
    return {name: (int(run.right_N[in_N].sum()), int(in_N.sum())) for name, in_N in ranges.items()}


def tuning(sweep: SweepResult) -> Section:
    """The settings that were chosen, and what that took."""
    spent = {
        name: sum(variant["cost"].get(name, 0) for variant in sweep.tuned.values())
        for name in ("runs", "updates", "train_seconds", "training_flops")
    }
    facts: dict[str, Any] = {"factors": sweep.tune, "variants": dict(sweep.tuned), "cost": spent}
    facts |= {"search": sweep.search, "trials": sweep.trials, "propose": sweep.propose} if sweep.search else {}
    if not sweep.tuned:
        return Section(facts=facts)
    runs = [run for run in sweep.runs if run.finished]
    numbers = ("steps", "train_seconds", "training_flops")
    of_runs = (len(runs), *(sum(run.number(name) or 0 for run in runs) for name in numbers))
    costs = [
        f"{count:g} runs, {updates:,.0f} updates, {duration(seconds)}, {count_text(flops)} FLOPs"
        for count, updates, seconds, flops in (spent.values(), of_runs)
        if count
    ]
    note = f"Tuning took {costs[0]}; the compared runs took {costs[1]}." if len(costs) == 2 else ""
    tuned = {variant.name: sweep.tuned[variant.name] for variant in sweep.variants if variant.name in sweep.tuned}
    columns = (_settings if sweep.search else _rates)(sweep, [*tuned.values()])
    return Section(text=note, tables=[Table([Row(name) for name in tuned], columns)], facts=facts)


def _rates(sweep: SweepResult, tuned: Sequence[Tuning]) -> list[Column]:
    """The factor of each variant's learning rate, and the losses at all of them."""
    columns = [Column("rate x", [Cell(f"{each['factor']:g}", each["factor"]) for each in tuned])]
    for factor in sweep.tune:
        columns.append(Column(f"validation loss x {factor:g}", [_loss(each, f"{factor:g}") for each in tuned]))
    return columns


def _settings(sweep: SweepResult, tuned: Sequence[Tuning]) -> list[Column]:
    """The setting of each variant that a search has chosen, and its loss beside that of the variant's own."""
    columns = [Column("chosen of", [Cell(f"{t['setting']} of {len(t['losses'])}", t["setting"]) for t in tuned])]
    for path in sweep.search:
        values = [chosen(each).values.get(path, "its own") for each in tuned]
        texts = [f"{value:g}" if number(value) is not None else str(value) for value in values]
        columns.append(Column(path, [Cell(text) for text in texts]))
    columns.append(Column("validation loss", [_loss(each, chosen(each).name) for each in tuned]))
    columns.append(Column("its own", [_loss(each, "0") for each in tuned]))
    diverged = [sum(loss is None for loss in each["losses"].values()) for each in tuned]
    return [*columns, Column("no loss", [Cell(str(count)) for count in diverged])]


def setting_records(sweep: SweepResult) -> list[dict[str, Any]]:
    """The rows of settings.csv: each setting that was tried for a variant, with its mean validation loss."""
    return [
        {"variant": name, "setting": setting, "chosen": setting == chosen(found).name, "validation_loss": loss}
        | {path: found.get("settings", {}).get(setting, {}).get(path) for path in sweep.search}
        for name, found in sweep.tuned.items()
        for setting, loss in found["losses"].items()
    ]


def _loss(tuned: Tuning, setting: str) -> Cell:
    loss = tuned["losses"].get(setting)
    if loss is None:
        return Cell("no loss" if setting in tuned["losses"] else "")  # it diverged, or was not tried
    return Cell(f"{loss:.4f}", loss, "chosen" * (setting == chosen(tuned).name))


def analyses(sweep: SweepResult) -> tuple[list[Section], list[str]]:
    """Every analysis: tables of all variants, averaged over seeds, and the first seed's plots. The second value has a
    line for each that cannot be understood."""
    sections: list[Section] = []
    problems: list[str] = []
    for name in dict.fromkeys(name for run in sweep.runs if run.finished for name in run.analyses):
        title, text = name, ""
        # By the title and columns of a table, and its number among those with the same.
        lines: dict[tuple[tuple[str, ...], int], list[tuple[str, list[Cells]]]] = {}
        records: list[dict[str, Any]] = []
        tables: list[Table] = []
        finished = {variant.name: len(variant.finished) for variant in sweep.variants}
        plots: dict[str, list[Curves]] = {}
        for variant in sweep.variants:
            runs = [run for run in variant.finished if name in run.analyses]
            if not runs:
                continue
            first, by_seed = runs[0].analyses[name], [run.analyses[name].get("tables", ()) for run in runs]
            with parsing(runs[0].path / "analysis" / f"{name}.json", problems):
                aligned = [_aligned(same) for same in zip(*by_seed, strict=True)]
                plots[variant.name] = [_plot(plot) for plot in first.get("plots", ()) if plot["series"]]
                met: Counter[tuple[str, ...]] = Counter()
                for heads, rows in aligned:
                    lines.setdefault((heads, met[heads]), []).extend((variant.name, row) for row in rows)
                    met[heads] += 1
                title, text = str(first.get("title", name)), str(first.get("text", ""))
        for (heads, _), found in lines.items():
            # Such as the number of a layer: the same whole number for all seeds, in all rows.
            labels = {at for at in range(len(heads) - 1) if all(_is_one_whole_number(row[at]) for _, row in found)}
            shown = [
                [_seeds(cells, finished[variant_name], at in labels) for at, cells in enumerate(row)]
                for variant_name, row in found
            ]
            columns = [Column(head, _cells([row[at] for row in shown])) for at, head in enumerate(heads[1:])]
            tables.append(Table([Row(variant_name) for variant_name, _ in found], columns, title=heads[0]))
            for variant_name in plots:
                own = [row for (of, _), row in zip(found, shown, strict=True) if of == variant_name]
                known = {"analysis": name, "table": heads[0], "variant": variant_name}
                records += [known | record for record in _records(heads[1:], own)]
        if plots:
            sections.append(Section(title, text, tables, plots, records))
    return sections, problems


def _aligned(tables: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], list[list[Cells]]]:
    """The title and columns of a table, and in each row the cells of all seeds that have it.

    Rows of different seeds are the same if their texts are; of several with the same texts, the order decides.
    """
    columns, rows = [*map(str, tables[0]["columns"])], [row for table in tables for row in table["rows"]]
    texts = [at for at in range(len(columns)) if all(isinstance(row[at], str) for row in rows)]
    same: dict[Any, list[Sequence[Any]]] = {}
    for table in tables:
        met: Counter[Any] = Counter()
        for row in table["rows"]:
            key = tuple(row[at] for at in texts)
            same.setdefault((key, met[key]), []).append(row)
            met[key] += 1
    aligned: list[list[Cells]] = [
        [list(cells) for _, cells in zip(columns, zip(*each, strict=True), strict=True)] for each in same.values()
    ]
    return (str(tables[0].get("title", "")), *columns), aligned


def _is_one_whole_number(cells: Cells) -> bool:
    return all(isinstance(cell, int) for cell in cells) and len(set(cells)) == 1


def _seeds(cells: Cells, finished: int, is_label: bool) -> Seeds:
    """The first value, the numbers, and how many seeds there are: an analysis may lack some."""
    numbers = [value for cell in cells if (value := number(cell)) is not None]
    return str(cells[0]), [] if is_label else numbers, finished


def _cells(column: Sequence[Seeds]) -> list[Cell]:
    """The means over seeds with the standard deviations; the first seed's value of what is no measured number."""
    rows = [numbers for _, numbers, _ in column]
    cells = score_cells(rows, decimals_for(rows))
    for at, (first, numbers, seeds) in enumerate(column):
        if not numbers:
            cells[at] = Cell(first, first)
        elif len(numbers) < seeds:
            cells[at] = cells[at]._replace(text=f"{cells[at].text} ({len(numbers)} of {seeds} seeds)")
    return cells


def _records(columns: Sequence[str], rows: Sequence[Sequence[Seeds]]) -> Iterator[dict[str, Any]]:
    """The rows of analyses.csv: a line for each mean, with the cells that name its row."""
    for number_, row in enumerate(rows, 1):
        label = " ".join(first for first, numbers, _ in row if not numbers)
        for column, (_, numbers, _) in zip(columns, row, strict=True):
            if numbers:
                low, high = mean_interval(numbers)
                known = {"row": number_, "label": label, "column": column, "seeds": len(numbers)}
                yield known | {"mean": float(np.mean(numbers)), "sd": deviation(numbers), "low": low, "high": high}


def _plot(plot: Mapping[str, Any]) -> Curves:
    curves = []
    for name, points in plot["series"].items():
        pairs = [(number(x), number(y)) for x, y in points]
        known = [(x, y) for x, y in pairs if x is not None and y is not None]
        shown = known[:: max(1, -(-len(known) // MOST_POINTS))]
        curves.append(Curve(str(name), [x for x, _ in shown], [y for _, y in shown]))
    return Curves(str(plot.get("title", "")), curves, str(plot.get("x", "")), str(plot.get("y", "")))
