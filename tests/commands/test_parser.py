"""The parser: one line for an error, and a suggestion for a mistyped argument."""

import pytest

from transformer_jax.commands.parser import Parser
from transformer_jax.errors import BadInput


@pytest.fixture
def parser():
    parser = Parser(prog="transformer-jax train", allow_abbrev=False)
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--config")
    parser.set_defaults(overrides=[])
    return parser


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--wrkdir=a"], "--wrkdir=a: train has no such argument; did you mean --workdir?"),
        (
            ["data.source=a"],
            "data.source=a: train has no such argument; did you mean --config.data.source=a?",
        ),
        ([], "the following arguments are required: --workdir (see transformer-jax train --help)"),
    ],
)
def test_a_mistyped_flag_is_reported_rather_than_the_missing_one(parser, arguments, message):
    with pytest.raises(BadInput) as refused:
        parser.parse_args(arguments)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("word", "suggestion"),
    [
        ("--num_heads=8", "did you mean --config.model.num_heads=8?"),
        ("--model.num-heads", "did you mean --config.model.num_heads?"),
        ("--qqqq", "transformer-jax train --help lists them"),
        ("--preset=text", "did you mean --config=preset:text?"),
        ("--preset", "did you mean --config=preset:NAME?"),
        ("data.source=train.en", "did you mean --config.data.source=train.en?"),
        ("data.sorce=train.en", "did you mean --config.data.source=train.en?"),
        ("surplus", "transformer-jax train --help lists them"),
    ],
)
def test_suggestions(parser, word, suggestion):
    assert str(parser.unknown(word)).endswith(suggestion)


def test_a_command_that_only_decodes_suggests_only_options_of_decoding(parser):
    parser.set_defaults(decode_used=("alpha",))
    assert str(parser.unknown("--alpha=1")).endswith("did you mean --config.decode.alpha=1?")
    assert "num_heads" not in str(parser.unknown("--num_heads=8")).partition(";")[2]
