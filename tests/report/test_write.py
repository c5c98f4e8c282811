"""The files of a report: the page is self-contained, and text is escaped in every format."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import Primitive

from tests.support.finished_sweeps import Report, changed, make_sweep, variant, write
from tests.support.pages import HOSTILE, Reader
from transformer_jax import cli


def test_page_has_every_part(whole):
    headings = re.findall(r"<h2>(.*?)</h2>", whole.page)
    parts = ["Results", "Compared with the published figures", "Scores against compute", "Learning curves"]
    assert all(link.startswith("data:") for link in Reader(whole.page).links) and "url(" not in whole.page
    assert headings == [*parts, "Runs", "Method"]
    assert "transformer-jax sweep experiments/made_up.py" in whole.page
    assert "2 cpu" in whole.page and "0.10.2" in whole.page


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


def test_nothing_is_computed_on_a_device(sweep, monkeypatch):
    """So that a report can be made where all accelerators are in use."""

    def bind(self, *arguments, **options):
        raise AssertionError(f"{self} was computed")

    monkeypatch.setattr(Primitive, "bind", bind)
    with jax.disable_jit(), pytest.raises(AssertionError):
        jnp.arange(3)
    with jax.disable_jit():
        assert cli.main(["report", str(sweep)]) == 0
