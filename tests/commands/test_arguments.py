"""Types of command-line values. The parser's errors and suggestions: tests/test_cli.py."""

import argparse
import os

import pytest

from transformer_jax import extras
from transformer_jax.commands import average, sweep, train
from transformer_jax.commands.arguments import Parser, add_run, at_least, path, python_file, utf8
from transformer_jax.errors import BadInput


def parse(argument):
    parser = Parser(prog="transformer-jax average")
    add_run(parser)
    return parser.parse_args([argument])


def test_values():
    assert path("~/run") == os.path.expanduser("~/run")
    assert (python_file("preset:demo"), utf8("été"), at_least(2)("3")) == ("preset:demo", "été", 3)
    for kind, text in ((path, " "), (path, "s3://bucket/run"), (utf8, "a\udcff"), (utf8, "\ud800"), (at_least(2), "1")):
        with pytest.raises((argparse.ArgumentTypeError, ValueError)):
            kind(text)


def test_a_bucket_that_cannot_be_read_is_said_by_its_reason(monkeypatch):
    monkeypatch.setattr(extras, "missing", lambda *_: ["gcsfs"])
    with pytest.raises(BadInput, match=r"--workdir: gs://b/r needs gcsfs: pip install 'transformer_jax\[gcs\]'"):
        parse("--workdir=gs://b/r")
    for text in ("gs://", "gs:///", "gs:///folder"):
        with pytest.raises(BadInput, match=f"{text}: must be gs://BUCKET/FOLDER"):
            parse(f"--workdir={text}")


@pytest.mark.parametrize(
    ("kind", "text", "form"),
    [
        (train.span, "5", "START:STEPS, as in 50:5"),
        (train.span, "5:a", "a whole number of at least 1"),
        (average.steps, "4,a", "a whole number of at least 0"),
        (sweep.seeds, "1.5", "a whole number of at least 0"),
        (sweep.factors, "a,b", "numbers, as in 0.5,1,2, or none"),
    ],
)
def test_a_value_of_another_form_is_answered_with_the_right_one(kind, text, form):
    with pytest.raises(argparse.ArgumentTypeError, match=f"must be {form}"):
        kind(text)


def test_a_flag_is_suggested_before_an_option():
    parser = Parser(prog="transformer-jax sweep")
    sweep.add_arguments(parser)
    assert "did you mean --seeds?" in str(parser.unknown("--seed=5"))
    assert "did you mean --config.train.steps=5?" in str(parser.unknown("--steps=5"))
