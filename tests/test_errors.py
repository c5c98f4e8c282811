"""Errors that users meet, and text made safe to print."""

import pytest

from transformer_jax.errors import BadInput, ConfigError, visible


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
