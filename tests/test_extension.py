"""Custom code from a file: found, executed once, called with what it takes, and reported with its traceback."""

import pytest

from transformer_jax.errors import BadInput
from transformer_jax.extension import UserCodeError, load_function, load_module, load_object


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mine.py"


def test_a_file_is_executed_once_until_it_is_edited(mine):
    mine.write_text("class Norm: pass")
    first = load_object("mine.py:Norm")
    assert load_object("mine.py:Norm") is first
    mine.write_text("class Norm: edited = True")
    assert load_object("mine.py:Norm").edited


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("mine.txt:f", "mine.txt: is not a Python file (its name must end in .py)"),
        ("none.py:f", "none.py: no such Python file (looked for in "),
        ("folder.py:f", "folder.py: is a directory, not a Python file"),
        ("mine.py:g", "mine.py has no g; there are: f"),
        ("mine.py", "'mine.py': must be path/to/file.py:Name"),
        (":f", "':f': must be path/to/file.py:Name"),
    ],
)
def test_what_is_not_there_is_named(mine, address, message):
    mine.write_text("def f(): pass")
    (mine.parent / "folder.py").mkdir()
    with pytest.raises(BadInput) as error:
        load_object(address)
    assert message in str(error.value)


def test_an_exception_of_custom_code_has_the_traceback_of_its_file(mine):
    mine.write_text("def inner():\n    1 / 0\n\ninner()\n")
    with pytest.raises(UserCodeError, match=r"mine\.py raised ZeroDivisionError") as error:
        load_module("mine.py")
    assert "in inner" in error.value.traceback and "extension.py" not in error.value.traceback


def test_a_function_gets_the_optional_arguments_that_it_takes(mine):
    mine.write_text("def f(a, b, steps=0): return (a, b, steps)\ndef g(a, b): return (a, b)\nh = 3\n")
    taking, plain = (load_function("train.loss", f"mine.py:{name}", ("a", "b"), ("steps",)) for name in "fg")
    assert taking(1, 2, steps=5) == (1, 2, 5) and plain(1, 2, steps=5) == (1, 2)
    with pytest.raises(BadInput, match=r"train.loss = mine.py:g: cannot be called as g\(a, b, c\).*by name, steps"):
        load_function("train.loss", "mine.py:g", ("a", "b", "c"), ("steps",))
    with pytest.raises(BadInput, match="is of type int; must be a function"):
        load_function("train.loss", "mine.py:h")
