"""What `make docs` would refuse, found without building: pages left out, names that are not there."""

import html
import importlib
import re
import sys
import types

import pytest

from tests.support.places import ROOT
from transformer_jax.extension import load_module

DOCS = ROOT / "docs"
NAMED = re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
REFERENCE = [
    (page.name, address)
    for page in sorted(DOCS.glob("api/*.md"))
    for address in re.findall(r"^::: (\S+)$|\]\[(transformer_jax\S+)\]", page.read_text(), re.MULTILINE)
]


def test_every_page_is_in_the_navigation_once():
    assert sorted(NAMED) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize(("page", "address"), [(page, "".join(found)) for page, found in REFERENCE])
def test_every_name_in_the_reference_exists(page, address):
    module, _, name = address.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    assert found.__doc__, f"{page}: {address} has no docstring to show"


def test_every_public_name_is_in_the_reference():
    public = importlib.import_module("transformer_jax").__all__
    documented = {"".join(found).rpartition(".")[2] for page, found in REFERENCE if page != "index.md"}
    assert set(public) - {"__version__"} <= documented


def test_links_of_the_landing_page_lead_to_pages_of_the_site():
    """It is the README, whose links are relative to the root of the repository."""
    page = load_module(str(DOCS / "assets/landing.py")).landing((ROOT / "README.md").read_text())
    links = re.findall(r'(?:\]\(|src=")(?!https?:)([^)#"]+)', page)
    assert len(links) > 20
    assert [link for link in links if not (DOCS / link).is_file()] == []


def test_formulas_of_several_lines_reach_the_converter_as_it_knows_them(monkeypatch):
    """latex2mathml, which only `make docs` has, knows `split` and shows the & of `aligned` as a letter."""
    package, converter = (types.ModuleType(name) for name in ("latex2mathml", "latex2mathml.converter"))
    converter.convert = lambda latex, display: f"<math display={display}>{latex}</math>"
    for module in (package, converter):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    hook = load_module(str(DOCS / "assets/mathml.py"))
    pages = [page.read_text() for page in sorted(DOCS.rglob("*.md"))]
    blocks = [block for page in pages for block in re.findall(r"^```math\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)]
    assert any("{aligned}" in block for block in blocks)
    for block in blocks:
        shown = hook.on_page_content(f'<div class="arithmatex">\\[\n{html.escape(block)}\\]</div>')
        assert shown.startswith('<div class="formula"><math display=block>') and "{aligned}" not in shown
        assert shown.count("{split}") == block.count("{aligned}")
