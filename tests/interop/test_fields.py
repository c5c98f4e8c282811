"""Strict reading of a JSON object: every field is read once, of the right type, or refused."""

from pathlib import Path

import pytest

from transformer_jax.errors import BadInput
from transformer_jax.interop.fields import Fields


def fields(**values):
    return Fields(Path("config.json"), values)


def test_a_known_field_is_read_and_null_is_missing():
    found = fields(a=1, b=None, c=2.5, d=7, e="x")
    assert (found.take("a", int), found.take("b", int, 9), found.take("c", (int, float)), found.size("d", 10)) == (
        1,
        9,
        2.5,
        7,
    )
    found.finish("e", "not there")


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda f: f.take("z", int), "config.json: has no z"),
        (lambda f: f.take("text", int), 'text = "x": must be int'),
        (lambda f: f.take("flag", int), "flag = true: must be int"),
        (lambda f: f.size("zero", 5), "zero = 0: must be at least 1 and at most 5"),
        (lambda f: f.expect("flag", 1), "flag = true: is not supported; 1 is"),
        (lambda f: f.expect("zero"), "zero = 0: is not supported; null is"),
        (lambda f: f.finish(), 'text = "x": is an unknown field, which may change the model'),
    ],
)
def test_all_else_is_refused_by_name(read, message):
    with pytest.raises(BadInput) as error:
        read(fields(text="x", flag=True, zero=0))
    assert message in str(error.value)


def test_a_number_may_be_written_as_an_integer_or_not():
    found = fields(one=1.0, none=None)
    found.expect("one", 1)
    found.expect("none", 3)
    found.finish()
