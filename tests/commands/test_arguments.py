"""Types of command-line values. The parser's errors and suggestions: tests/test_cli.py."""

import argparse
import os

import pytest

from transformer_jax.commands.arguments import at_least, path, python_file, utf8


def test_values():
    assert path("~/run") == os.path.expanduser("~/run")
    assert (python_file("preset:demo"), utf8("été"), at_least(2)("3")) == ("preset:demo", "été", 3)
    for kind, text in ((path, " "), (path, "s3://bucket/run"), (utf8, "a\udcff"), (utf8, "\ud800"), (at_least(2), "1")):
        with pytest.raises((argparse.ArgumentTypeError, ValueError)):
            kind(text)
