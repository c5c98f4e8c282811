"""The digest of the source, which distinguishes builds of the same version."""

import re

from transformer_jax.version import __version__, source_digest


def test_the_version_and_the_digest_of_the_source():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", __version__)
    assert re.fullmatch("[0-9a-f]{16}", source_digest()) and source_digest.__wrapped__() == source_digest()
