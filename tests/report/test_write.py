"""The files of a report: the page is self-contained, and text is escaped in every format."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import Primitive

from tests.support.finished_sweeps import Report, changed, make_sweep, variant, write
from tests.support.pages import HOSTILE, Reader
from transformer_jax import cli
from transformer_jax.report.write import write_report
from transformer_jax.sweeps import Variant


def test_page_has_every_part(whole):
    headings = re.findall(r"<h2>(.*?)</h2>", whole.page)
    parts = ["Results", "Compared with the published figures", "Scores against compute", "Learning curves"]
    assert all(link.startswith("data:") for link in Reader(whole.page).links) and "url(" not in whole.page
    assert headings == [*parts, "Runs", "Method"]
    assert "transformer-jax sweep experiments/made_up.py" in whole.page
    assert "2 cpu" in whole.page and "0.10.2" in whole.page


def test_the_checklist_answers_from_the_records(whole, tmp_path):
    text = (whole.directory / "checklist.md").read_text()
    test = whole.content.tests[0]
    digest = test.findings.measured[0].digest
    for answer in (
        "Parameters, by variant: 150 k to 300 k.",
        f"test of made-up: 40 sentences; SHA-256 of the texts: {digest}",
        "All 15 runs are finished.",
        "Seeds: 0, 1, 2. Differences between seeds include",
        "Learning rates were not tuned",
        "Interim looks: none",
        "no primary metric; margin: none; evaluated weights: latest.",
        "Contrasts, which may be added later: none.",
        "15 min",
        "Limitation: Nothing here was trained.",
    ):
        assert answer in " ".join(text.split()), answer
    declared = make_sweep(tmp_path / "sweep", seeds=(0,), sentences=5, primary="bleu", margin={"bleu": 0.5})
    text = " ".join((Report(declared).directory / "checklist.md").read_text().split())
    assert "the primary metric, bleu on test, differences from the baseline; margin: 0.5 BLEU;" in text


def test_hostile_text_is_shown_and_not_interpreted(tmp_path, capsys):
    evil = variant(HOSTILE, -1.0, slug="evil", group=HOSTILE, note=HOSTILE, changes={"model.positions": HOSTILE})
    made = make_sweep(tmp_path, (variant("base"), evil, variant("Größe=大 | `x`", slug="g")), sentences=20)
    changed(made, question=HOSTILE, notes=[HOSTILE])
    plot = {"title": HOSTILE, "x": HOSTILE, "y": "b", "series": {HOSTILE: [[1, 2], [2, 3]]}}
    shown = {"title": HOSTILE, "columns": [HOSTILE], "rows": [[HOSTILE]]}
    analysis = {"title": HOSTILE, "text": HOSTILE, "tables": [shown], "plots": [plot]}
    write(made / "runs" / "evil" / "seed-0" / "analysis" / "a.json", analysis)
    write(made / "runs" / "evil" / "seed-1" / "attempt.json", {"state": "failed", "error": HOSTILE})
    (made / "runs" / "evil" / "seed-1" / "result.json").unlink()
    report = Report(made)
    read = Reader(report.page)
    assert read.tags.count("script") == 1
    assert read.tags.count("img") == report.page.count('src="data:image/svg+xml;base64,')
    assert sum(HOSTILE in words for words in read.words) >= 10
    assert "<img" not in report.markdown
    assert "Größe=大 \\| \\`x\\`" in report.markdown and "Größe=大" in report.page
    changed(made, question="\x1b[31m", notes=["red\x1b[31m\nline"], name="\x1b")
    assert cli.main(["report", str(made)]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_names_in_any_script_reach_every_file(tmp_path):
    names = ("기준", "基线", "базовый", "मूल", "الأساس")
    assert [Variant(name).slug for name in names] == list(names)
    variants = [variant(name, 0.1 * number, slug=name) for number, name in enumerate(names)]
    sweep = make_sweep(tmp_path, variants, sentences=20, seeds=(0, 1))
    changed(sweep, name="크기", baseline="기준")
    for forms in (("html",), ("latex",), ("svg",)):
        write_report(sweep, formats=forms)
    for name in ("index.html", "report.md", "table.csv", "runs.csv", "curves.csv", "table_test.tex"):
        text = (sweep / "report" / name).read_text()
        assert all(each in text for each in names), name
    assert r"\label{tab:test}" in text


def test_figures_of_groups_that_differ_in_punctuation_have_a_file_each(tmp_path):
    groups = ("a/b", "a:b", "A b", "가" * 200, "가" * 201)
    many = [variant(f"v{n}", group=groups[n % 5], slug=f"v{n}") for n in range(10)]
    sweep = make_sweep(tmp_path, [variant("base"), *many], sentences=20, seeds=(0, 1))
    report, files = write_report(sweep, formats=("svg",))
    assert len({file.name.lower() for file in files}) == len(report.plots) == len(list((sweep / "report").glob("*")))
    drawn = [file.name for file in files if file.name.startswith("curves_validation_perplexity_")]
    assert [name.partition("perplexity_")[2] for name in drawn][:3] == ["a_b.svg", "a_b-2.svg", "A_b-3.svg"]


def test_nothing_is_computed_on_a_device(sweep, monkeypatch):
    """So that a report can be made where all accelerators are in use."""

    def bind(self, *arguments, **options):
        raise AssertionError(f"{self} was computed")

    monkeypatch.setattr(Primitive, "bind", bind)
    with jax.disable_jit(), pytest.raises(AssertionError):
        jnp.arange(3)
    with jax.disable_jit():
        assert cli.main(["report", str(sweep)]) == 0
