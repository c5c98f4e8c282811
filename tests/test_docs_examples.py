"""The examples in README.md and docs/ are executed.

A ```python block after a line `<!-- runnable -->` is run, in a directory of its own for each document; the blocks of a
document share their names. After `<!-- file: NAME -->` it is a file that the document's blocks use.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(
    r"^<!-- (runnable|file: (?P<name>\S+)) -->\n+```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]


def blocks(document):
    """(name of the file to write or None, code, its line in the document) of every marked block."""
    text = document.read_text()
    return [(m["name"], m["code"], text[: m.start("code")].count("\n")) for m in BLOCK.finditer(text)]


@pytest.mark.slow
@pytest.mark.parametrize("document", [d for d in DOCUMENTS if blocks(d)], ids=lambda document: document.name)
def test_examples_run(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example"}
    for name, code, line in blocks(document):
        if name is not None:
            Path(name).write_text(code)
        else:
            exec(compile("\n" * line + code, str(document), "exec"), names)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_every_marked_block_was_found(document):
    """A mark whose block is misspelt would go unnoticed."""
    marks = re.findall(r"^<!-- (?:runnable|file:)", document.read_text(), re.MULTILINE)
    assert len(marks) == len(blocks(document))


def test_the_classifier_takes_less_than_thirty_lines():
    (classifier,) = (code for _, code, _ in blocks(ROOT / "docs/modules.md") if "class Classifier" in code)
    assert len(classifier.splitlines()) < 30
