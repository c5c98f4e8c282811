"""The version, which is the same wherever it is written, and the digest of the source."""

import re

from tests.support.places import ROOT
from transformer_jax import version
from transformer_jax.version import __version__, commit, source_digest


def test_the_version_and_the_digest_of_the_source(tmp_path, monkeypatch):
    """It is of the content and the place of every Python file, but for the presets of a wheel."""
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", __version__)
    assert re.fullmatch("[0-9a-f]{16}", source_digest())
    monkeypatch.setattr(version, "__file__", str(tmp_path / "version.py"))
    digests = []
    for name, text in (("a/b.py", "1"), ("presets/c.py", "1"), ("a/b.txt", "1"), ("a/b.py", "2"), ("a/d.py", "")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        digests.append(source_digest.__wrapped__())
    assert digests[0] == digests[1] == digests[2] and len(set(digests)) == 3


def test_the_commit_of_a_checkout():
    assert bool(commit()) == (ROOT / ".git").exists()
    assert re.fullmatch("([0-9a-f]{40}(-dirty)?)?", commit() or "")


def test_the_citation_and_the_changelog_are_about_this_version():
    citation = (ROOT / "CITATION.cff").read_text()
    (released,) = re.findall(r"^date-released: (\S+)$", citation, re.MULTILINE)
    assert f"\nversion: {__version__}\n" in citation
    newest = re.search(r"^## \[(\d.*?)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and newest.groups() == (__version__, released)
