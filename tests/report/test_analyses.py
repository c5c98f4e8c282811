"""Tables, plots and pictures of analyses."""

import pytest

from tests.support.finished_sweeps import Report, seed_folder, write
from transformer_jax.report.analyses import analyses


def test_tables_are_averaged_and_plots_are_of_the_first_seed(sweep):
    for seed in (0, 1):
        rows = [[1, "head", 0.25 + seed / 2], [2, "head", "none" if seed else 3]]
        plot = {"title": "p", "x": "a", "y": "b", "series": {"line": [[0, 1], [1, 5 + seed]]}}
        found = {"title": "Heads", "text": "t", "tables": [{"title": "T", "columns": ["l", "h", "e"], "rows": rows}]}
        write(seed_folder(sweep, "base", seed) / "analysis" / "heads.json", {**found, "plots": [plot]})
    report = Report(sweep)
    (analysis,) = analyses(report.content.sweep)
    rows = [[row.name, *(cell.text for cell in row.cells)] for row in analysis.tables[0].rows]
    assert rows == [["1", "head", "0.5"], ["2", "head", "3"]]
    assert analysis.seeds == 2 and "line: 5 at 1" in analysis.plots[0].image
    assert "| base | 1 | head | 0.5 |" in report.markdown


def test_long_table_is_on_the_page_only(sweep):
    def table(title, rows):
        return {"title": title, "columns": ["head", "loss"], "rows": [[row, 1.0] for row in range(rows)]}

    found = {"title": "what heads do", "text": "", "tables": [table("few", 8), table("each head", 9)]}
    write(seed_folder(sweep, "base", 0) / "analysis" / "heads.json", found)
    report = Report(sweep)
    text = report.markdown
    assert "#### few" in text and "#### each head" not in text
    assert "Longer tables, one per variant, are in index.html: each head." in text
    assert "<h4>each head</h4>" in report.page


@pytest.mark.parametrize(
    "content",
    [{}, {"tables": 3, "plots": [[]]}, {"tables": [{"rows": [1, [None]]}], "plots": [{"series": {"a": [[1], "b"]}}]}],
)
def test_analysis_of_another_shape_is_tolerated(sweep, content):
    write(seed_folder(sweep, "base", 0) / "analysis" / "odd.json", content)
    assert Report(sweep).json["problems"] == []


def test_rows_of_different_length_are_padded(sweep):
    table = {"title": "ragged", "columns": ["a"], "rows": [[1], [2, "x", "y"], []]}
    write(seed_folder(sweep, "base", 0) / "analysis" / "odd.json", {"tables": [table]})
    report = Report(sweep)
    assert "| base | 2 | x | y |" in report.markdown and "| base | 1 |  |  |" in report.markdown
    assert ">y</td>" in report.page


def test_pictures_are_included_unless_they_are_too_large(sweep):
    folder = seed_folder(sweep, "base", 0) / "analysis"
    folder.mkdir()
    (folder / "small.png").write_bytes(b"\x89PNG")
    (folder / "big.svg").write_bytes(b"x" * 400_000)
    report = Report(sweep)
    assert 'src="data:image/png;base64,iVBORw=="' in report.page
    assert "Pictures too large for this page, in the runs' folders: 1." in report.markdown
    assert len(report.page) < 300_000
