"""Types of command-line values."""

import argparse
import os

import pytest

from transformer_jax.commands.arguments import at_least, path, python_file, utf8


def test_values():
    assert path("~/run") == os.path.expanduser("~/run")
    assert (python_file("preset:demo"), python_file("a.py"), utf8("été"), at_least(2)("3")) == (
        "preset:demo",
        "a.py",
        "été",
        3,
    )


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        (path, " ", "is empty; it must be a path"),
        (path, "s3://bucket/run", "is a URL"),
        (utf8, "a\udcff", "is not UTF-8: byte 0xff at 2"),
        (utf8, "\ud800", "has half of a surrogate pair"),
        (at_least(2), "1", "must be a whole number of at least 2"),
        (at_least(2), "x", "must be a whole number of at least 2"),
    ],
)
def test_bad_values(kind, text, problem):
    with pytest.raises(argparse.ArgumentTypeError, match=problem):
        kind(text)
