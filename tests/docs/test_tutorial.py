"""The tutorial: every page runs, prints what it says, draws its pictures; the Korean pages have the same code."""

import hashlib
import importlib.util
import re
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import pytest

from tests.support.places import ROOT
from transformer_jax import ModelConfig, Transformer

TUTORIAL, KOREAN = ROOT / "docs/tutorial", ROOT / "docs/ko/tutorial"
PAGES = sorted(TUTORIAL.glob("[0-9]_*.md"))
PICTURE = re.compile(r"!\[[^\]]+\]\(([^)]+)\)")


def script(name):
    spec = importlib.util.spec_from_file_location(f"tutorial_{name}", TUTORIAL / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RUN, DRAW = script("run"), script("draw")


def plots_of(text):
    """The pictures that a page's code draws; the others are diagrams."""
    return [name for name in PICTURE.findall(text) if name.endswith(".png")]


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
    assert {f"pictures/{file.name}" for file in tmp_path.glob("pictures/*")} == set(plots_of(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_code_and_no_picture_is_left_out(page):
    """A block whose fence is misspelt would go unnoticed."""
    text = page.read_text()
    assert len(RUN.cells(text)) == len(re.findall("^```py", text, re.MULTILINE)) > 0
    assert all((TUTORIAL / name).is_file() for name in PICTURE.findall(text))


@pytest.mark.parametrize("language", DRAW.FOLDERS)
@pytest.mark.parametrize("name", DRAW.DIAGRAMS)
def test_a_diagram_is_drawn_as_its_code_says(name, language):
    drawn = DRAW.drawn(name, language)
    file = DRAW.FOLDERS[language] / f"{name}.svg"
    assert file.read_text(encoding="utf-8") == drawn, "python docs/tutorial/draw.py draws it again"
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    pages = (page.read_text() for page in (TUTORIAL if language == "en" else KOREAN).glob("[0-9]_*.md"))
    assert sum(f"](pictures/{name}.svg)" in page for page in pages) == 1


def test_both_languages_have_the_same_labels():
    for _, names in DRAW.DIAGRAMS.values():
        assert names["en"].keys() == names["ko"].keys()


def test_figure_1_has_the_shapes_of_the_base_model():
    config = ModelConfig.base(vocab_size=37_000)
    tokens = {axis: jax.ShapeDtypeStruct((2, size), jnp.int32) for axis, size in (("S", 7), ("T", 5))}
    logits, seen = jax.eval_shape(
        lambda *inputs: Transformer(config).init_with_output(jax.random.key(0), *inputs), tokens["S"], tokens["T"]
    )
    drawn = DRAW.drawn("figure_1", "en")
    assert logits.shape == (2, 5, 37_000) and "[B, T, 37000]" in drawn
    assert (37_000, 512) in [leaf.shape for leaf in jax.tree.leaves(seen)] and "[B, S, 512]" in drawn
    assert drawn.count("× 6") == 2 and config.num_encoder_layers == config.num_decoder_layers == 6
    assert f"feed-forward ({config.d_ff})" in drawn


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_korean_page_was_looked_at_since_its_english_one_changed(page):
    digest = hashlib.sha256(page.read_bytes()).hexdigest()[:12]
    first = (KOREAN / page.name).read_text().partition("\n")[0]
    assert first == f"<!-- english: {digest} -->", "compare the pages, then write this digest into the Korean one"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_has_exercises_with_solutions(page):
    for folder, title in ((TUTORIAL, "## Exercises"), (KOREAN, "## 연습 문제")):
        _, _, exercises = (folder / page.name).read_text().partition(title)
        assert exercises.count('<details markdown="1">') == exercises.count("</details>") == 1
        asked, _, solved = exercises.partition("<details")
        numbered = [re.findall(r"^(\d)\. ", text, re.MULTILINE) for text in (asked, solved)]
        assert numbered[0] == numbered[1] and 3 <= len(numbered[0]) <= 5


def test_every_page_is_in_the_table_of_contents():
    assert len(PAGES) == 10
    for folder in (TUTORIAL, KOREAN):
        rows = re.findall(r"^\| \[[0-9]\. [^]]+\]\((\w+\.md)\)", (folder / "README.md").read_text(), re.MULTILINE)
        assert rows == [page.name for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_korean_page_has_the_same_code_formulas_and_pictures(page):
    english, korean = page.read_text(), (KOREAN / page.name).read_text()
    assert RUN.cells(korean) and [cell[:2] for cell in RUN.cells(korean)] == [cell[:2] for cell in RUN.cells(english)]
    formulas = re.compile(r"^```math\n.*?^```$", re.MULTILINE | re.DOTALL)
    assert formulas.findall(korean) == formulas.findall(english)
    plots = plots_of(english)
    pictures = [f"../../tutorial/{name}" if name in plots else name for name in PICTURE.findall(english)]
    assert sorted(PICTURE.findall(korean)) == sorted(pictures)


def test_the_korean_readme_has_the_same_examples():
    """Commands and code; the lines of comment may be translated."""

    def examples(file):
        blocks = re.findall(r"^```(?:sh|python)\n(.*?)^```$", file.read_text(), re.MULTILINE | re.DOTALL)
        return [re.sub(r"\s*#.*", "", block) for block in blocks]

    assert examples(ROOT / "docs/ko/README.md") == examples(ROOT / "README.md")
