"""What a report says: its parts, the same numbers in every format, and sweeps whose runs are not all done."""

import csv
import io
import json
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.support.finished_sweeps import (
    VARIANTS,
    Report,
    changed,
    make_run,
    make_sweep,
    record_file,
    variant,
)
from transformer_jax.report.write import latex_table
from transformer_jax.report.write import write as write_report_files


def test_json_has_what_the_report_says(whole):
    found = whole.json
    assert found["state"] == "All 15 runs are finished." and found["baseline"] == "base"
    assert [test["split"] for test in found["tests"]] == ["test", "test_long"]
    assert found["tests"][0]["words"] == whole.content.tests[0].words
    assert "Nothing here was trained." in found["remarks"] and len(whole.content.runs.rows) == 15
    assert found["tests"][0]["rows"][0]["bleu_mean"] == pytest.approx(np.mean(found["tests"][0]["bleu"]["base"]))


def test_means_and_deviations_are_over_seeds(whole):
    line = next(line for line in whole.lines if (line["test"], line["variant"]) == ("test_long", "A h=1"))
    records = [record_file(whole.content.sweep.path, "A h=1", seed, "test_long") for seed in range(3)]
    scores = [json.loads(record.read_text())["measures"]["bleu"]["score"] for record in records]
    assert float(line["bleu_mean"]) == pytest.approx(np.mean(scores))
    assert float(line["bleu_sd"]) == pytest.approx(np.std(scores, ddof=1))
    shown = f"{np.mean(scores):.2f} ± {np.std(scores, ddof=1):.2f}"
    assert shown in whole.markdown and shown.replace(" ±", "<small>±") in whole.page


def test_all_formats_have_the_same_difference(whole):
    line = next(line for line in whole.lines if (line["test"], line["variant"]) == ("test", "A h=1"))
    found = whole.json["tests"][0]["bleu_differences"]["A h=1"]
    assert float(line["bleu_difference_value"]) == found["value"]
    assert float(line["bleu_difference_corrected_p"]) == found["corrected_p"]
    assert float(line["bleu_difference_detectable"]) == found["detectable"]  # the names of these in files
    assert float(line["bleu_difference_freedom"]) == found["freedom"]
    value, interval = f"{found['value']:+.2f}", f"[{found['low']:+.2f}, {found['high']:+.2f}]"
    assert rf"{value} {interval} \*".replace("-", "−") in whole.markdown
    assert f">{value}<small>{interval}</small>".replace("-", "−") in whole.page
    assert found["seeds"] == [3, 3] and found["seed_spread"] == "own" and found["resolved"] is True


def test_the_runs_are_a_matrix_of_scores(whole):
    """runs.csv: a row for each variant, seed, test set and metric, as rliable's matrices are made from."""
    lines = list(csv.DictReader(io.StringIO((whole.directory / "runs.csv").read_text())))
    assert len(lines) == 5 * 3 * 2 * 2
    of_one = [line for line in lines if (line["variant"], line["test"], line["metric"]) == ("A h=1", "test", "bleu")]
    assert [line["seed"] for line in of_one] == ["0", "1", "2"]
    assert [float(line["score"]) for line in of_one] == whole.json["tests"][0]["bleu"]["A h=1"]


def test_seeds_are_counted_by_test_set(sweep):
    """test_long was added later, and one seed of each variant is evaluated on it."""
    changed(sweep, tests=["test", "test_long"])
    for each in VARIANTS[:3]:
        make_run(sweep, each, 0, ("test", "test_long"), 20)
    (sweep / "data" / "key" / "test_long.texts.jsonl").write_text("")
    report = Report(sweep)
    assert report.content.state == "Of 6 runs: 3 finished, 3 not evaluated on all test sets."
    assert not report.content.is_complete
    assert ("base, seed 1", "finished, not evaluated on test_long") in report.content.unfinished
    assert [run.get("unevaluated") for run in report.json["runs"]] == [None, ["test_long"]] * 3
    seeds = [{column.key: column for column in test.table.columns}["seeds"].cells for test in report.content.tests]
    assert [[cell.text for cell in cells] for cells in seeds] == [["2"] * 3, ["1 of 2"] * 3]
    assert [line["seeds"] for line in report.lines] == ["2"] * 3 + ["1"] * 3
    assert "over 2 seeds" in latex_table(report.content, report.content.tests[0])
    assert "one seed" in latex_table(report.content, report.content.tests[1])


def test_a_split_without_any_result_is_missing_but_not_damaged(sweep):
    report = Report(changed(sweep, tests=["test", "test_long"]))
    assert report.content.state == "Of 6 runs: 6 not evaluated on all test sets."
    assert report.content.tests[1].words == ["On test_long, nothing is measured yet."]
    assert report.json["problems"] == []


BOLD = [
    # Differences in skill of two variants from the baseline, and what is bold.
    (0.1, -0.1, set()),  # all may be the same
    (2.5, -2.5, {"A h=1"}),
    (0.1, -2.0, {"base", "A h=1"}),  # only another row is worse: the top two are not distinguished
]


@pytest.mark.parametrize(("of_h1", "of_h4", "bold"), BOLD)
def test_bold_is_what_is_not_significantly_worse_than_the_top(tmp_path, of_h1, of_h4, bold):
    made = make_sweep(tmp_path, (variant("base"), variant("A h=1", of_h1), variant("A h=4", of_h4)), sentences=60)
    report = Report(made)
    (test,) = report.content.tests
    (column,) = [column for column in test.table.columns if column.key == "bleu"]
    found = {row.name for row, cell in zip(test.table.rows, column.cells, strict=True) if cell.mark == "best"}
    assert found == bold
    latex = latex_table(report.content, test)
    assert report.markdown.count("| **") == report.page.count('scores best"') == latex.count(r"\textbf{")
    assert (report.markdown.count("| **") > 0) == bool(bold)


def test_unverified_published_scores_are_marked(tmp_path):
    made = [{**each, "unverified": ["bleu"] if each["name"] == "A h=1" else []} for each in VARIANTS[:3]]
    report = Report(make_sweep(tmp_path, made, seeds=(0, 1), sentences=20))
    (column,) = [c for c in report.content.tests[0].table.columns if c.key == "published_bleu"]
    assert [cell.text for cell in column.cells] == ["25.8", "24.9 ?", "25.5"]
    verified = [[row["verified"] for row in each["rows"]] for each in report.json["published"]]
    assert verified == [[False, True], [True, True]]
    assert "not verified" in report.markdown and "not verified" in report.page


def test_figures_of_the_page_are_those_for_the_paper(whole):
    files = write_report_files(whole.content, None, ["svg"])
    assert {file.name for file in files} >= {"differences_bleu_test.svg", "compute.svg"}
    assert whole.page.count('src="data:image/svg+xml;base64,') == len(files)
    for file in files:
        ElementTree.parse(file)


def test_scores_are_plotted_against_compute_where_it_differs(whole, sweep):
    points = {curve.name: curve.x for curve in whole.content.scatter.series}
    assert points["base"] == [2e12] and len(points["A: heads"]) == 2
    assert Report(sweep).content.scatter is None  # all three have the same size
