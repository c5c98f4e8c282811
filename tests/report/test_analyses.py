"""Tables, plots and pictures of analyses."""

import pytest

from tests.support.finished_sweeps import Report, seed_folder, write


def test_tables_are_averaged_and_plots_are_of_the_first_seed(sweep):
    for seed in (0, 1):
        rows = [[1, "head", 0.25 + seed / 2], [2, "head", "none" if seed else 3]]
        plot = {"title": "p", "x": "a", "y": "b", "series": {"line": [[0, 1], [1, 5 + seed]]}}
        found = {"title": "Heads", "text": "t", "tables": [{"title": "T", "columns": ["l", "h", "e"], "rows": rows}]}
        write(seed_folder(sweep, "base", seed) / "analysis" / "heads.json", {**found, "plots": [plot]})
    report = Report(sweep)
    (analysis,) = report.content.analyses
    rows = [[row.name, *(cell.text for _, cell in cells)] for row, cells in analysis.tables[0].lines]
    assert rows == [["base", "1", "head", "0.5"], ["base", "2", "head", "3"]]
    assert analysis.plots["base"][0].series[0].y == [1.0, 5.0]
    assert "| base | 1 | head | 0.5 |" in report.markdown and ">Analyses</h2>" in report.page


def test_long_table_is_on_the_page_only(sweep):
    def table(title, rows):
        return {"title": title, "columns": ["head", "loss"], "rows": [[row, 1.0] for row in range(rows)]}

    found = {"title": "what heads do", "text": "", "tables": [table("few", 8), table("each head", 101)]}
    write(seed_folder(sweep, "base", 0) / "analysis" / "heads.json", found)
    report = Report(sweep)
    assert "#### few" in report.markdown and "#### each head" not in report.markdown
    assert "each head: a table of 101 rows" in report.markdown and "<h4>each head</h4>" in report.page


@pytest.mark.parametrize(
    "content", [{"tables": 3}, {"plots": [[]]}, {"tables": [{"rows": [1]}]}, {"plots": [{"series": {"a": [[1], "b"]}}]}]
)
def test_an_analysis_of_another_shape_is_a_problem_of_its_own(sweep, content):
    write(seed_folder(sweep, "base", 0) / "analysis" / "odd.json", content)
    write(seed_folder(sweep, "base", 0) / "analysis" / "empty.json", {})
    report = Report(sweep)
    (problem,) = report.json["problems"]
    assert "odd.json" in problem and "A h=1" in report.markdown
