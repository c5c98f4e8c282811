"""The content of a report: its parts, and the same findings for other programs."""

from tests.support.finished_sweeps import seed_folder, write
from transformer_jax.report.content import Content, to_document, to_json
from transformer_jax.report.document import Figures, Folded, Table
from transformer_jax.report.results import load_sweep


def test_parts_without_content_are_left_out(whole, sweep):
    assert "Analyses" not in [part.title for part in to_document(whole.content).parts]
    write(seed_folder(sweep, "base", 0) / "analysis" / "a.json", {"title": "A", "text": "t"})
    assert "Analyses" in [part.title for part in to_document(Content(load_sweep(sweep))).parts]


def test_each_test_set_has_its_table_and_figures(whole):
    """The figures of the main test set are those that the report opens with."""
    document = to_document(whole.content)
    (results,) = [part for part in document.parts if part.title == "Results"]
    assert [block for block in results.blocks if isinstance(block, Table)] == whole.content.tables
    figures = [block for block in [*document.findings, *results.blocks] if isinstance(block, Figures)]
    assert [len(block.figures) for block in figures] == [2, 2]
    tip = 'data-tip="A h=1: '
    assert all(tip in figure.image and "; published −" in figures[0].figures[0].image for figure in figures[0].figures)


def test_every_run_is_listed(whole):
    (runs,) = [part for part in to_document(whole.content).parts if part.title == "Runs"]
    (folded,) = runs.blocks
    assert isinstance(folded, Folded) and len(folded.blocks[0].rows) == 15
    assert folded.blocks[0].rows[0].name == "base, seed 0"


def test_json_has_what_the_report_says(whole):
    found = to_json(whole.content)
    assert found["state"] == "All 15 runs are finished." and found["baseline"] == "base"
    assert [test["split"] for test in found["tests"]] == ["test", "test_long"]
    assert found["tests"][0]["words"] == whole.content.words[0]
