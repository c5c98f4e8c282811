"""The tutorial: every page runs, prints what it says, draws its pictures; the Korean pages have the same code."""

import importlib.util
import re

import pytest

from tests.support.places import ROOT

TUTORIAL, KOREAN = ROOT / "docs/tutorial", ROOT / "docs/ko/tutorial"
PAGES = sorted(TUTORIAL.glob("[1-9]_*.md"))
PICTURE = re.compile(r"!\[[^\]]+\]\(([^)]+)\)")


def runner():
    spec = importlib.util.spec_from_file_location("tutorial_run", TUTORIAL / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RUN = runner()


@pytest.mark.parametrize(
    "page",
    # These compile a model of twelve layers, and train one.
    [pytest.param(page, marks=pytest.mark.drill) if page.stem in ("6_model", "8_learning") else page for page in PAGES],
    ids=lambda page: page.stem,
)
def test_a_page_does_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    assert [cell.printed for cell in RUN.cells(text)] == RUN.outputs(text, str(page))
    assert {f"pictures/{file.name}" for file in tmp_path.glob("pictures/*")} == set(PICTURE.findall(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_code_and_no_picture_is_left_out(page):
    """A block whose fence is misspelt would go unnoticed."""
    text = page.read_text()
    assert len(RUN.cells(text)) == len(re.findall("^```py", text, re.MULTILINE)) > 0
    assert all((TUTORIAL / name).is_file() for name in PICTURE.findall(text))


def test_every_page_is_in_the_table_of_contents():
    assert len(PAGES) == 8
    for folder in (TUTORIAL, KOREAN):
        rows = re.findall(r"^\| \[[1-9]\. [^]]+\]\((\w+\.md)\)", (folder / "README.md").read_text(), re.MULTILINE)
        assert rows == [page.name for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_korean_page_has_the_same_code_formulas_and_pictures(page):
    english, korean = page.read_text(), (KOREAN / page.name).read_text()
    assert RUN.cells(korean) and [cell[:2] for cell in RUN.cells(korean)] == [cell[:2] for cell in RUN.cells(english)]
    formulas = re.compile(r"^```math\n.*?^```$", re.MULTILINE | re.DOTALL)
    assert formulas.findall(korean) == formulas.findall(english)
    pictures = [f"../../tutorial/{name}" for name in PICTURE.findall(english)]
    assert PICTURE.findall(korean) == pictures


def test_the_korean_readme_has_the_same_examples():
    """Commands and code; the lines of comment may be translated."""

    def examples(file):
        blocks = re.findall(r"^```(?:sh|python)\n(.*?)^```$", file.read_text(), re.MULTILINE | re.DOTALL)
        return [re.sub(r"\s*#.*", "", block) for block in blocks]

    assert examples(ROOT / "docs/ko/README.md") == examples(ROOT / "README.md")
