"""The tutorial: every page runs, prints what it says, draws its pictures; the Korean pages have the same code."""

import hashlib
import importlib.util
import json
import re
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
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


RUN, DRAW, NOTEBOOK = script("run"), script("draw"), script("notebook")
TORCH = re.compile(r'^```python title="PyTorch"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def plots_of(text):
    """The pictures that a page's code draws; the others are diagrams."""
    drawn = [name for name in PICTURE.findall(text) if name.endswith(".png")]
    return drawn + [f"pictures/{name}" for name in re.findall(r"<iframe src=\"\S+/(\w+\.html)\"", text)]


@pytest.mark.parametrize(
    "page",
    # These compile a model of twelve layers, and train one.
    [pytest.param(page, marks=pytest.mark.drill) if page.stem in ("6_model", "8_learning") else page for page in PAGES],
    ids=lambda page: page.stem,
)
def test_a_page_does_what_it_says(page, tmp_path, monkeypatch, ipython):
    """As its notebook, which has all of its code, and cells that show what it draws."""
    monkeypatch.chdir(tmp_path)
    text, notebook = page.read_text(), json.loads(NOTEBOOK.notebook(page))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code" and "install" not in tags(cell)]
    blocks = "".join(f"```python\n{cell['source']}\n```\n" for cell in cells)
    printed = RUN.outputs(blocks, str(page))
    of_page = [shown for cell, shown in zip(cells, printed, strict=True) if not tags(cell)]
    assert of_page == [cell.printed for cell in RUN.cells(text)]
    assert {f"pictures/{file.name}" for file in tmp_path.glob("pictures/*")} == set(plots_of(text))


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted(KOREAN.glob("[0-9]_*.md"))], ids=lambda page: f"{page.parts[-3]} {page.stem}"
)
def test_a_notebook_is_made_from_its_page(page):
    file = page.parent / f"notebooks/{page.stem}.ipynb"
    made = NOTEBOOK.notebook(page)
    assert file.read_text(encoding="utf-8") == made + "\n", "python docs/tutorial/notebook.py makes it again"
    cells = json.loads(made)["cells"]
    code = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    assert (
        code[0].startswith("%pip install") and sum(line.startswith("%") for line in "\n".join(code).splitlines()) == 1
    )
    own = [cell["source"] + "\n" for cell in cells if cell["cell_type"] == "code" and not tags(cell)]
    assert own == [cell.code for cell in RUN.cells(page.read_text())]
    words = "\n".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")
    assert "$`" not in words and "```math" not in words and ".png)" not in words
    links = re.findall(r"(?<=\]\()(?!https?:)[^)]+", words)
    assert links and all((file.parent / link).is_file() for link in links)
    assert f"](notebooks/{page.stem}.ipynb)" in page.read_text()


def tags(cell):
    return cell["metadata"].get("tags", [])


def test_the_public_address_is_in_one_place():
    """Without one a notebook installs its checkout."""
    address = "https://example.org/transformer_jax"
    assert NOTEBOOK.source_of_package(TUTORIAL / "notebooks", {}) == "../../..[train,report]"
    assert NOTEBOOK.source_of_package(TUTORIAL, {"Repository": address}).endswith(f"@ git+{address}")
    has_badge = "colab.research.google.com" in (ROOT / "README.md").read_text()
    assert has_badge == ("Repository" in NOTEBOOK.urls())


@pytest.mark.drill
@pytest.mark.parametrize("page", [page for page in PAGES if TORCH.search(page.read_text())], ids=lambda page: page.stem)
def test_the_same_in_pytorch(page, tmp_path, monkeypatch):
    """A block of PyTorch runs behind the page's blocks before it, with whose results it compares its own."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    text, names = page.read_text(), {"__name__": "__tutorial__"}
    places = sorted([*RUN.CELL.finditer(text), *TORCH.finditer(text)], key=lambda place: place.start())
    last = max(number for number, place in enumerate(places) if place.re is TORCH)
    for place in places[: last + 1]:
        code = place[1] if place.re is TORCH else place["code"]
        exec(compile(code, str(page), "exec"), dict(names) if place.re is TORCH else names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_code_and_no_picture_is_left_out(page):
    """A block whose fence is misspelt would go unnoticed."""
    text = page.read_text()
    assert len(RUN.cells(text)) == len(re.findall("^```py", text, re.MULTILINE)) - len(TORCH.findall(text)) > 0
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


def test_the_numbers_of_heads_are_those_of_a_reshape():
    numbers = np.arange(18).reshape(3, 6)
    assert (numbers.reshape(3, 2, 3).transpose(1, 0, 2) == DRAW.cut(is_right=True)).all()
    assert (numbers.reshape(2, 3, 3) == DRAW.cut(is_right=False)).all()


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
    title, _, below, *_ = (KOREAN / page.name).read_text().splitlines()  # a site takes the title from the first line
    assert title.startswith("# ")
    assert below == f"<!-- english: {digest} -->", "compare the pages, then write this digest into the Korean one"


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


def test_the_table_of_topics_has_every_picture_and_every_exercise():
    row = re.compile(r"^\| [^|]+ \| ([^|]+) \| \[(\w+)\]\((\S+)\) \| ([\d., ]+) \|$", re.MULTILINE)
    found = {folder: row.findall((folder / "README.md").read_text()) for folder in (TUTORIAL, KOREAN)}
    for folder, topics in found.items():
        for cell, picture, address, _ in topics:
            pages = re.findall(r"\[(\d)\]\((\w+\.md)\)", cell)
            assert (folder / address).is_file() and pages and all(page[0] == number for number, page in pages)
            texts = "".join((folder / page).read_text() for _, page in pages)
            assert re.search(rf"pictures/{picture}\.\w+[)\"]", texts), f"{cell} lacks {picture}"
    english, korean = ([topic[:2] + topic[3:] for topic in topics] for topics in found.values())
    assert english == korean
    shown = {name for page in PAGES for name in re.findall(r"pictures/(\w+)\.\w+[)\"]", page.read_text())}
    assert {picture for _, picture, _ in english} == shown
    asked = {f"{page.stem[0]}.{number}" for page in PAGES for number in exercises_of(page.read_text())}
    assert {number for *_, numbers in english for number in numbers.split(", ")} == asked


def exercises_of(text):
    return re.findall(r"^(\d)\. ", text.partition("## Exercises")[2].partition("<details")[0], re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_korean_page_has_the_same_code_formulas_and_pictures(page):
    english, korean = page.read_text(), (KOREAN / page.name).read_text()
    assert len(own_cells(page.name)) == (page.stem == "5_layers")
    shared = [cell[:2] for cell in RUN.cells(korean) if cell[:2] not in own_cells(page.name)]
    assert shared and shared == [cell[:2] for cell in RUN.cells(english)]
    assert TORCH.findall(korean) == TORCH.findall(english)
    formulas = re.compile(r"^```math\n.*?^```$", re.MULTILINE | re.DOTALL)
    assert formulas.findall(korean) == formulas.findall(english)
    plots = plots_of(english)
    pictures = [f"../../tutorial/{name}" if name in plots else name for name in PICTURE.findall(english)]
    assert sorted(PICTURE.findall(korean)) == sorted(pictures)


def own_cells(name):
    """The code and output of a Korean page that its English one lacks."""
    english, korean = ([cell[:2] for cell in RUN.cells((folder / name).read_text())] for folder in (TUTORIAL, KOREAN))
    return [cell for cell in korean if cell not in english]


def test_code_on_korean_words_prints_what_its_page_says():
    """A block that only the Korean page has; it needs the one before it."""
    page = KOREAN / "5_layers.md"
    cells = RUN.cells(page.read_text())[:2]
    assert cells[1][:2] in own_cells(page.name)
    blocks = "".join(f"```python\n{cell.code}```\n" for cell in cells)
    assert RUN.outputs(blocks, str(page)) == [cell.printed for cell in cells]


def test_the_korean_readme_has_the_same_examples():
    """Commands and code; the lines of comment may be translated."""

    def examples(file):
        blocks = re.findall(r"^```(?:sh|python)\n(.*?)^```$", file.read_text(), re.MULTILINE | re.DOTALL)
        return [re.sub(r"\s*#.*", "", block) for block in blocks]

    assert examples(ROOT / "docs/ko/README.md") == examples(ROOT / "README.md")
