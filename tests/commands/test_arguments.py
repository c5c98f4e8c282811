"""The parser's suggestions, and types of command-line values."""

import argparse
import os

import pytest

from transformer_jax.commands.arguments import Parser, at_least, path, python_file, utf8
from transformer_jax.errors import BadInput


@pytest.fixture
def parser():
    parser = Parser(prog="transformer-jax train", allow_abbrev=False)
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--config")
    parser.set_defaults(overrides=[])
    return parser


def test_an_error_is_bad_input(parser):
    with pytest.raises(BadInput, match="--workdir"):
        parser.parse_args([])


@pytest.mark.parametrize(
    ("word", "suggestion"),
    [
        ("--wrkdir=a", "did you mean --workdir?"),
        ("--num_heads=8", "did you mean --config.model.num_heads=8?"),
        ("--model.num-heads", "did you mean --config.model.num_heads?"),
        ("data.sorce=train.en", "did you mean --config.data.source=train.en?"),
        ("--qqqq", "transformer-jax train --help lists them"),
    ],
)
def test_suggestions(parser, word, suggestion):
    assert str(parser.unknown(word)).endswith(suggestion)


def test_a_command_that_only_decodes_suggests_only_options_of_decoding(parser):
    parser.set_defaults(decode_used=("alpha",))
    assert str(parser.unknown("--alpha=1")).endswith("did you mean --config.decode.alpha=1?")
    assert "num_heads" not in str(parser.unknown("--num_heads=8")).partition(";")[2]


def test_values():
    assert path("~/run") == os.path.expanduser("~/run")
    assert (python_file("preset:demo"), utf8("été"), at_least(2)("3")) == ("preset:demo", "été", 3)
    for kind, text in ((path, " "), (path, "s3://bucket/run"), (utf8, "a\udcff"), (utf8, "\ud800"), (at_least(2), "1")):
        with pytest.raises(argparse.ArgumentTypeError):
            kind(text)
