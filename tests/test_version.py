"""The version, which is the same wherever it is written, and the digest of the source."""

import re

from tests.support.places import ROOT
from transformer_jax.version import __version__, commit, source_digest


def test_the_version_and_the_digest_of_the_source():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", __version__)
    assert re.fullmatch("[0-9a-f]{16}", source_digest()) and source_digest.__wrapped__() == source_digest()


def test_the_commit_of_a_checkout():
    assert bool(commit()) == (ROOT / ".git").exists()
    assert re.fullmatch("([0-9a-f]{40}(-dirty)?)?", commit() or "")


def test_the_citation_and_the_changelog_are_about_this_version():
    citation = (ROOT / "CITATION.cff").read_text()
    (released,) = re.findall(r"^date-released: (\S+)$", citation, re.MULTILINE)
    assert f"\nversion: {__version__}\n" in citation
    newest = re.search(r"^## \[(\d.*?)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and newest.groups() == (__version__, released)
