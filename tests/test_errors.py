"""Errors that users meet, and text made safe to print."""

import pytest

from transformer_jax.errors import BadInput, ConfigError, did_you_mean, padded, terminal_width, visible


def test_a_config_error_has_all_problems_and_a_line_for_each():
    error = ConfigError(["a = 1: must be 2", "b: no such option"])
    assert isinstance(error, BadInput) and isinstance(error, ValueError)
    assert str(error).splitlines() == list(error.problems) == ["a = 1: must be 2", "b: no such option"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain Grüße 日本", "plain Grüße 日本"),
        ("two\nlines\ttab", "two\\nlines\\ttab"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        (b"caf\xe9.txt".decode(errors="surrogateescape"), "caf\\xe9.txt"),
        ("right\u202eleft", "right\\u202eleft"),
    ],
)
def test_text_is_shown_as_one_printable_line(text, shown):
    assert visible(text) == shown


def test_an_unknown_name_is_answered_with_the_closest_or_all():
    options = ["model.num_heads", "model.dropout", "train.steps"]
    assert (
        did_you_mean("num_heads", options) == did_you_mean("model.num_head", options) == "did you mean model.num_heads?"
    )
    lengths = ["model.max_length", "data.max_length"]
    assert did_you_mean("data.max_len", lengths) == "did you mean data.max_length?"
    for name in ("model.residual", "model"):
        assert did_you_mean(name, options) == "there are: model.num_heads, model.dropout"
    assert did_you_mean("residual", ["seed", *options]).startswith("there are: seed, model.num_heads, ")
    assert did_you_mean("zzz", options) == "there are: model.num_heads, model.dropout, train.steps"
    assert did_you_mean("zzz", map(str, range(1000))).endswith("49 ... (1,000 in all)")


def test_letters_that_take_two_columns_are_aligned():
    assert [terminal_width(text) for text in ("base", "기준", "基线", "é", "e\u0301", "−0.5")] == [4, 4, 4, 1, 1, 4]
    assert (padded("기준", 6), padded("기준", 6, right=True)) == ("기준  ", "  기준")
