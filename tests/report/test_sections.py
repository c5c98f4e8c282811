"""The sections of a report: published scores, exact match by group and length, learning rates, analyses."""

import csv
import json
import shutil

import numpy as np
import pytest

from tests.support.finished_sweeps import (
    VARIANTS,
    Report,
    changed,
    edit,
    make_sweep,
    record_file,
    seed_folder,
    variant,
    write,
)
from transformer_jax.errors import BadInput
from transformer_jax.report.results import load_sweep
from transformer_jax.report.write import write_report

# Published scores


def test_every_format_has_the_published_differences_beside_ours(whole):
    """Of the variants with published scores, A h=1 was made clearly worse, as it is in the paper."""
    heading = "Compared with the published figures"
    first, second = (" ".join(test.words) for test in whole.content.tests)
    assert "Published differences in BLEU" in first and "Published" not in second, "it is of the main test set"
    assert heading in whole.page and f"## {heading}" in whole.markdown
    bleu, perplexity = whole.json["published"]
    assert [row["variant"] for row in bleu["rows"]] == ["A h=1", "A h=4"]
    one = bleu["rows"][0]
    assert one["published"] == pytest.approx(-0.9) and one["agrees"] and one["significant"]
    assert one["difference"] == whole.json["tests"][0]["bleu_differences"]["A h=1"]["value"]
    assert perplexity["measure"] == "perplexity" and perplexity["n"] == 2
    lines = [line for line in whole.markdown.partition(heading)[2].splitlines() if line.startswith("| A h=1 |")]
    cells = [[cell.strip(" *") for cell in line.split("|")[3:-1]] for line in lines]
    assert cells[0] == ["−0.90", "yes", "yes"] and cells[1][0] == "+7.5 %"


def test_opposite_signs_ranks_and_unverified_scores_are_named(tmp_path):
    """Of four differences, two have the published sign; one is significant with the opposite one."""
    theirs = {"base": 25.0, "a": 27.0, "b": 25.5, "c": 24.9, "d": 26.0}
    ours = {"base": 0.0, "a": 2.5, "b": -2.5, "c": 0.02, "d": 2.0}
    made = [variant(n, ours[n], slug=n, published={"bleu": theirs[n]}) for n in theirs]
    made[4]["unverified"] = ["bleu"]
    report = Report(make_sweep(tmp_path, made, sentences=30))
    (bleu,) = report.json["published"]
    assert [row["variant"] for row in bleu["rows"] if row["agrees"] is False and row["significant"]] == ["b"]
    assert "sign: b. Spearman's rank correlation: 0.80 (n = 4). Not verified against their source: d." in report.words
    (column,) = [c for c in report.content.tests[0].table.columns if c.key == "published_bleu"]
    assert [cell.text for cell in column.cells] == ["25", "27", "25.5", "24.9", "26 ?"]
    (table,) = report.content.tests[0].published.tables
    assert [cell.text.endswith("?") for cell in table.columns[1].cells] == [False, False, False, True]
    assert "not verified" in report.markdown and "not verified" in report.page


def test_a_published_score_of_zero_is_compared(tmp_path):
    made = [variant(name, quality, published={"bleu": score}) for name, quality, score in (("base", 0, 0), ("a", 2, 3))]
    (bleu,) = Report(make_sweep(tmp_path, made, sentences=20)).json["published"]
    assert [row["published"] for row in bleu["rows"]] == [3]


def test_nothing_published_nothing_compared(tmp_path):
    report = Report(make_sweep(tmp_path, (VARIANTS[0], variant("other", -1.0)), sentences=20))
    assert report.json["published"] == [] and report.content.tests[0].published.tables == []
    assert "exact publ." not in report.page + report.markdown  # empty columns are dropped


# Exact match

SHARES = {"base": (10, 12), "A h=1": (2, 3), "A h=4": (20, 20)}  # right of 20, by seed
SHORT = 8  # tokens of the longest training target


def add_matches(sweep):
    """Gives each record as many matches, those of the first examples; even ones are one group, odd ones another."""
    for name, by_seed in SHARES.items():
        for seed, count in enumerate(by_seed):
            path = record_file(sweep, name, seed)
            record = json.loads(path.read_text())
            right = [int(i < count) for i in range(20)]
            kinds = {kind: {"right": sum(right[first::2]), "total": 10} for first, kind in enumerate(("even", "odd"))}
            record["exact_match"] = {"right": count, "total": 20, "groups": {"kind": kinds}}
            record["sentences"]["exact_match"] = right
            write(path, record)
            edit(seed_folder(sweep, name, seed) / "result.json", longest_target=SHORT + 1)
    return sweep


def texts(table):
    return {row.name: [f"{cell.text} {cell.detail}".strip() for _, cell in cells] for row, cells in table.lines}


def test_exact_match_of_variants_and_groups(sweep):
    report = Report(add_matches(sweep))
    columns = {column.key: column.cells for column in report.content.tests[0].table.columns}
    assert [cell.text for cell in columns["exact_match"]] == ["55.00", "12.50", "100.00"]
    assert [cell.text for cell in columns["exact_match_difference"]] == ["", "−42.5", "+45.0"]
    assert [line["exact_match_difference_value"] for line in report.lines] == ["", "-42.5", "45.0"]
    assert report.content.tests[0].words[0].startswith("Exact match (points): none of the 2 differences")
    assert "points of exact match" in report.words or "In Exact match" in report.words
    (exact,) = report.json["exact_match"]
    assert exact["right"] == {name: list(counts) for name, counts in SHARES.items()} and exact["total"] == 20
    assert exact["differences"]["A h=1"]["low"] < -42.5 < exact["differences"]["A h=1"]["high"]
    table = report.content.exact_match[0].tables[0]
    assert (table.names, [column.title for column in table.columns]) == ("kind", ["examples", *SHARES])
    assert texts(table)["odd"] == ["10", "55.00 ± 7.07", "10.00 ± 0.00", "100.00 ± 0.00"]
    report, _ = write_report(sweep, decimals=0)
    assert texts(report.exact_match[0].tables[0])["odd"] == ["10", "55 ± 7", "10 ± 0", "100 ± 0"]


def test_groups_may_depend_on_what_a_variant_was_trained_on(sweep):
    add_matches(sweep)
    for seed in (0, 1):
        path = record_file(sweep, "A h=1", seed)
        record = json.loads(path.read_text())
        record["exact_match"]["groups"]["kind"] = {"even": {"right": 1, "total": 4}, "unseen": {"right": 0, "total": 2}}
        write(path, record)
    found = texts(Report(sweep).content.exact_match[0].tables[0])
    assert found["even"][0] == "4 or 10" and found["even"][2] == "25.00 ± 0.00"
    assert found["unseen"] == ["2", "", "0.00 ± 0.00", ""]


def test_lengths_by_variants_with_the_training_limit_marked(sweep):
    table = Report(add_matches(sweep)).content.exact_match[0].tables[1]
    lengths = load_sweep(sweep).runs[0].measured["test"].tokens_N - 1
    longer = " (longer than in training)"
    assert [row.name for row in table.rows] == [f"{n:.0f}{longer * int(n > SHORT)}" for n in np.unique(lengths)]
    assert sum(cell.value for cell in table.columns[0].cells) == 20
    counts, rates = (table.columns[at].cells for at in (0, 1))
    of_base = sum(count.value * rate.value for count, rate in zip(counts, rates, strict=True)) / 20
    assert of_base == pytest.approx(55)


def test_lengths_are_of_variants_on_one_test_set(sweep):
    """As where a variant changes data.task.cutoff of SCAN, and so has fewer test examples."""
    add_matches(sweep)
    for seed in (0, 1):
        path = record_file(sweep, "A h=1", seed)
        record = json.loads(path.read_text())
        fewer = {name: values[:15] for name, values in record["sentences"].items()}
        write(path, {**record, "test_set_sha256": "0", "sentences": fewer})
    by_kind, by_length = Report(sweep).content.exact_match[0].tables
    assert "A h=1" in [column.title for column in by_kind.columns]
    assert [column.title for column in by_length.columns] == ["examples", "base", "A h=4"]


# Tuning


def facts(factor, losses, **more):
    cost = {"runs": 3, "updates": 2000, "train_seconds": 120.0, "training_flops": 4e12}
    losses = dict(zip(("0.5", "1", "2"), losses, strict=True))
    lowest = min((loss, float(at)) for at, loss in losses.items() if loss)[1]
    return {"factor": factor, "lowest": lowest, "losses": losses, "seeds": [10**6, 10**6 + 1], "cost": cost}


def choose(sweep, chosen):
    """Records the factor and losses of each variant, and moves its runs to where that factor's are."""
    write(sweep / "tuned.json", {name: facts(*found) for name, found in chosen.items()})
    for name, (factor, _) in chosen.items():
        for run in (seed_folder(sweep, name, seed) for seed in (0, 1) if factor != 1):
            run.rename(run.with_name(f"rate-{factor:g}-{run.name}"))


@pytest.fixture
def tuned(sweep):
    """Of A h=1 another rate was chosen."""
    chosen = {"base": (1.0, (3.0, 2.0, 2.5)), "A h=1": (2.0, (3.0, 2.9, 2.8)), "A h=4": (1.0, (2.24, 2.25, None))}
    changed(sweep, tune=[0.5, 1, 2])
    choose(sweep, chosen)
    return sweep


def lines_of(report, name):
    """The cells of a variant in the table about learning rates, by column."""
    table = [line for line in report.markdown.partition("## Tuning")[2].splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    return dict(zip(rows[0], next(row for row in rows if row[0] == name), strict=True))


def test_what_was_tried_and_what_it_cost(tuned):
    for path in tuned.glob("runs/*/*seed-*/result.json"):
        edit(path, train_seconds=480.0, together=8)  # the time of one program counts once
    report = Report(tuned)
    base, one, four = (lines_of(report, name) for name in ("base", "A h=1", "A h=4"))
    losses = [base[f"validation loss x {factor}"] for factor in ("0.5", "1", "2")]
    assert losses == ["3.0000", "2.0000 chosen", "2.5000"]
    assert one["rate x"] == "2" and four["validation loss x 2"] == "no loss"
    assert "9 runs, 6,000 updates, 6 min, 12.0 T FLOPs;" in report.markdown
    assert "6 runs, 6,000 updates, 6 min" in report.markdown and report.json["tuning"]["cost"]["runs"] == 9
    assert "Chosen: base x 1, A h=1 x 2, A h=4 x 1." in report.markdown
    assert "beyond: A h=1 (highest), A h=4 (lowest)." in report.markdown
    assert "validation loss x 0.5" in report.page and "None is chosen" not in report.markdown
    write(tuned / "tuned.json", {"base": facts(1.0, (3.0, 2.0, 2.5))})  # tuning was added, and has not come further
    assert "None is chosen for A h=1, A h=4: their runs, if there are any, have" in Report(tuned).markdown


def test_what_was_added_and_not_tried_yet_is_not_said_to_be_tried(tuned):
    changed(tuned, tune=[0.5, 1, 2, 4])
    found = Report(tuned).markdown
    assert "Not all of these were tried yet for base, A h=1, A h=4." in found
    assert "may lie beyond: A h=1 (highest), A h=4 (lowest)." in found, "of what was tried"


def test_a_lowest_loss_at_a_factor_of_many_digits_is_at_the_edge(sweep):
    """Factors are written with six digits."""
    changed(sweep, tune=[0.5**0.5, 1, 2**0.5])
    found = facts(1.0, (2.0, 2.1, 2.2)) | {"lowest": 0.5**0.5, "losses": {"0.707107": 2.0, "1": 2.1, "1.41421": 2.2}}
    write(sweep / "tuned.json", {"base": found})
    assert "may lie beyond: base (lowest)." in Report(sweep).markdown


def test_a_variant_none_of_whose_rates_could_be_trained_is_shown_as_such(tuned):
    record = json.loads((tuned / "tuned.json").read_text())
    del record["A h=1"]
    write(tuned / "tuned.json", record)
    for run in (tuned / "runs/A-h-1").iterdir():
        shutil.rmtree(run)
    attempts = [tuned / f"runs/A-h-1/tuning-{factor}/attempt.json" for factor in ("0.5", "1")]
    for attempt in attempts:
        write(attempt, {"state": "diverged", "error": "NaN since step 7"})
    found = Report(tuned).markdown
    assert "4 finished, 2 diverged" in found and "while its setting was chosen: NaN since step 7" in found
    write(attempts[1], {"state": "running", "host": "here"})
    assert "4 finished, 2 never started" in Report(tuned).markdown


def test_a_plot_without_points_is_drawn(sweep):
    for seed in (0, 1):
        plot = {"title": "t", "x": "x", "y": "y", "series": {"a": [[1, 2], [2, 3]], "b": [], "c": [[1, None]]}}
        write(seed_folder(sweep, "base", seed) / "analysis/mine.json", {"plots": [plot], "tables": []})
    changed(sweep, analyses={"mine": "mine.py:f"})
    assert "mine" in Report(sweep).page


@pytest.fixture
def searched(sweep):
    """Of A h=1 the second drawn setting was chosen, of the others their own."""
    search = {"optimizer.learning_rate": ["log_uniform", 1e-4, 1e-2], "model.activation": ["choice", "relu", "gelu"]}
    changed(sweep, search=search, trials=3, propose=None)
    values = [{}, *({"optimizer.learning_rate": rate, "model.activation": "gelu"} for rate in (2e-3, 4e-3))]
    numbers = {"base": (0, (2.0, 2.5, None)), "A h=1": (2, (3.0, 2.9, 2.8)), "A h=4": (0, (2.24, 2.25, 2.3))}
    settings = {str(number): each for number, each in enumerate(values)}
    records = {}
    for name, (number, losses) in numbers.items():
        of_search = {"setting": number, "settings": settings, "losses": dict(zip(settings, losses, strict=True))}
        records[name] = facts(1.0, (3.0, 2.0, 2.5)) | of_search
    write(sweep / "tuned.json", records)
    for run in (seed_folder(sweep, "A h=1", seed) for seed in (0, 1)):
        run.rename(run.with_name(f"setting-2-{run.name}"))
    return sweep


def test_a_search_without_a_chosen_setting_is_damaged(searched):
    write(searched / "tuned.json", {"base": facts(1.0, (3.0, 2.0, 2.5))})
    with pytest.raises(BadInput, match=r"tuned\.json: is damaged: a variant has no setting"):
        Report(searched)


def test_the_settings_of_a_search(searched):
    report = Report(searched)
    base, one = (lines_of(report, name) for name in ("base", "A h=1"))
    assert one == {
        "variant": "A h=1",
        "chosen of": "2 of 3",
        "optimizer.learning\\_rate": "0.004",
        "model.activation": "gelu",
        "validation loss": "2.8000 chosen",
        "its own": "3.0000",
        "no loss": "0",
    }
    assert base["no loss"] == "1" and base["model.activation"] == "its own"
    assert (
        "3 settings were tried for each variant with seeds that no other run has: its own, and 2 drawn at random from "
        "optimizer.learning\\_rate (log\\_uniform, 0.0001, 0.01), model.activation (choice, relu, gelu)."
    ) in report.markdown
    assert "Chosen: base setting 0, A h=1 setting 2, A h=4 setting 0." in report.markdown
    assert "3 settings were tried" in (searched / "report/checklist.md").read_text()
    assert "its own" in report.page and "All 6 runs are finished" in report.markdown
    tuning = report.json["tuning"]
    assert tuning["trials"] == 3 and tuning["variants"]["A h=1"]["settings"]["2"]["model.activation"] == "gelu"
    rows = list(csv.DictReader((searched / "report/settings.csv").read_text().splitlines()))
    assert len(rows) == 9 and [row["setting"] for row in rows if row["chosen"] == "True"] == ["0", "2", "0"]
    assert [row["validation_loss"] for row in rows[:3]] == ["2.0", "2.5", ""]
    assert rows[5]["optimizer.learning_rate"] == "0.004"
    changed(searched, propose="own.py:next")
    write(searched / "proposed.json", {"base": [{"values": {}, "code": code * 16} for code in ("abcd", "1234")]})
    proposed = Report(searched).markdown
    assert "and 2 that own.py:next proposed from" in proposed
    mixed = "not all made by the same custom code own.py:next: abcdabcd in base, setting 1; 12341234 in base, setting 2"
    assert mixed in proposed
    checklist = (searched / "report/checklist.md").read_text()
    assert mixed in checklist and f"custom code own.py:next: sha256 {'1234' * 16}" in checklist


def test_a_damaged_record_of_tuning_is_an_error(tuned):
    """Another rate's runs would be reported."""
    write(tuned / "tuned.json", {"base": 3})
    with pytest.raises(BadInput, match=r"tuned\.json: is damaged"):
        load_sweep(tuned)


# Analyses


def test_tables_are_averaged_and_plots_are_of_the_first_seed(sweep):
    for seed in (0, 1):
        rows = [[1, "head", 0.25 + seed / 2], [2, "head", "none" if seed else 3]]
        long = {"title": "each head", "columns": ["head"], "rows": [[row] for row in range(101)]}
        plot = {"title": "p", "x": "a", "y": "b", "series": {"line": [[0, 1], [1, 5 + seed]]}}
        found = {"title": "Heads", "tables": [{"title": "T", "columns": ["l", "h", "e"], "rows": rows}, long]}
        write(seed_folder(sweep, "base", seed) / "analysis" / "heads.json", {**found, "plots": [plot]})
    report = Report(sweep)
    (analysis,) = report.content.analyses
    rows = [[row.name, *(cell.text for _, cell in cells)] for row, cells in analysis.tables[0].lines]
    assert rows == [["base", "1", "head", "0.50"], ["base", "2", "head", "3.00 (1 of 2 seeds)"]]
    assert analysis.tables[0].columns[2].cells[0].detail == "± 0.35"
    assert analysis.plots["base"][0].series[0].y == [1.0, 5.0]
    (kept,) = report.json["analyses"]
    values = [["base", "1", "head", 0.5], ["base", "2", "head", 3.0]]
    assert kept["tables"][0] == {"title": "T", "columns": ["variant", "l", "h", "e"], "rows": values}
    assert "| base | 1 | head | 0.50 ± 0.35 |" in report.markdown and ">Analyses</h2>" in report.page
    assert "#### T" in report.markdown and "#### each head" not in report.markdown  # which is on the page only
    with open(report.directory / "analyses.csv") as file:
        first, second = csv.DictReader(file)
    half = 12.706204736 * 0.25  # the quantile of t with one degree of freedom, and the standard error
    assert (first["analysis"], first["table"], first["variant"], first["label"]) == ("heads", "T", "base", "1 head")
    assert (float(first["low"]), float(first["high"])) == pytest.approx((0.5 - half, 0.5 + half))
    assert (second["column"], second["seeds"], second["mean"], second["sd"]) == ("e", "1", "3.0", "")
    assert "each head: a table of 101 rows" in report.markdown and "<h4>each head</h4>" in report.page


def test_tables_of_one_analysis_may_have_the_same_columns(sweep):
    for name, share in (("base", 0.1), ("A h=1", 0.2)):
        tables = [{"columns": ["part", "share"], "rows": [[part, share]]} for part in ("encoder", "decoder")]
        write(seed_folder(sweep, name, 0) / "analysis" / "parts.json", {"tables": tables})
    (analysis,) = Report(sweep).content.analyses
    assert [texts(table)["base"][0] for table in analysis.tables] == ["encoder", "decoder"]
    assert [len(table.rows) for table in analysis.tables] == [2, 2]


def test_rows_of_an_analysis_are_found_by_their_texts_in_every_seed(sweep):
    """Whatever their order, also where a seed lacks one; a whole number names a row only if it never varies."""
    changed(sweep, analyses={"kinds": "own.py:kinds"})
    by_seed = (
        [["verb", 1, 0.9, 3], ["noun", 2, 0.1, 0]],
        [["noun", 2, 0.2, 0], ["verb", 1, 0.7, 4], ["adverb", 3, 0.5, 1]],
    )
    for seed, rows in enumerate(by_seed):
        table = {"title": "T", "columns": ["kind", "layer", "share", "errors"], "rows": rows}
        write(seed_folder(sweep, "base", seed) / "analysis" / "kinds.json", {"tables": [table]})
    table = {"title": "T", "columns": ["kind", "layer", "share", "errors"], "rows": [["verb", 1, 0.3, 0]]}
    write(seed_folder(sweep, "A h=1", 0) / "analysis" / "kinds.json", {"tables": [table]})
    report = Report(sweep)
    (shown,) = report.content.analyses[0].tables
    rows = [[row.name, *(cell.text for _, cell in cells)] for row, cells in shown.lines]
    half = "(1 of 2 seeds)"
    assert rows == [
        ["base", "verb", "1", "0.80", "3.50"],
        ["base", "noun", "2", "0.15", "0.00"],
        ["base", "adverb", "3", f"0.50 {half}", f"1.00 {half}"],
        ["A h=1", "verb", "1", f"0.30 {half}", f"0.00 {half}"],
    ]
    with open(report.directory / "analyses.csv") as file:
        lines = [line for line in csv.DictReader(file) if line["column"] == "errors"]
    assert [(line["variant"], line["label"], float(line["mean"])) for line in lines] == [
        ("base", "verb 1", 3.5),
        ("base", "noun 2", 0.0),
        ("base", "adverb 3", 1.0),
        ("A h=1", "verb 1", 0.0),
    ]
    lacking = [run["unevaluated"] for run in report.json["runs"] if run.get("unevaluated")]
    assert lacking == [["kinds"]] * (len(report.json["runs"]) - 3) and "not evaluated on kinds" in report.markdown


@pytest.mark.parametrize(
    "content", [{"tables": 3}, {"plots": [[]]}, {"tables": [{"rows": [1]}]}, {"plots": [{"series": {"a": [[1], "b"]}}]}]
)
def test_an_analysis_of_another_shape_is_a_problem_of_its_own(sweep, content):
    write(seed_folder(sweep, "base", 0) / "analysis" / "odd.json", content)
    write(seed_folder(sweep, "base", 0) / "analysis" / "empty.json", {})
    report = Report(sweep)
    (problem,) = report.json["problems"]
    assert "odd.json" in problem and "A h=1" in report.markdown


def test_a_table_of_an_analysis_may_have_many_rows(sweep):
    table = {"title": "T", "columns": ["head", "x"], "rows": [[f"head {row}", row / 7] for row in range(288)]}
    changed(sweep, analyses={"heads": "own.py:heads"})
    for seed in (0, 1):
        write(seed_folder(sweep, "base", seed) / "analysis" / "heads.json", {"tables": [table]})
    with open(Report(sweep).directory / "analyses.csv") as file:
        assert len(list(csv.DictReader(file))) == 288
