"""Custom code from a file: found, executed once, called with what it takes, and reported with its traceback."""

import sys
import types

import pytest

from transformer_jax.errors import BadInput
from transformer_jax.extension import UserCodeError, load_function, load_module, load_object, read_code


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


def test_a_file_is_executed_again_if_a_module_in_its_files_is_edited(mine):
    (mine.parent / "my_words.py").write_text("WORD = 'a'\n")
    mine.write_text("from my_words import WORD\nFILES = ['my_words.py']\nclass Norm: word = WORD\n")
    first = load_object("mine.py:Norm")
    assert load_object("mine.py:Norm") is first and first.word == "a"
    (mine.parent / "my_words.py").write_text("WORD = 'another'\n")
    assert load_object("mine.py:Norm").word == "another"


def test_a_program_that_is_the_custom_file_itself_stays_importable(mine, monkeypatch):
    """Functions of `__main__` cannot be pickled without it."""
    program = types.ModuleType("__main__")
    program.__file__ = str(mine)
    monkeypatch.setitem(sys.modules, "__main__", program)
    for number in (1, 2):
        mine.write_text(f"number = {number}\n")
        assert load_object("mine.py:number") == number
    assert sys.modules.get("__main__") is program


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("mine.txt:f", "(its name must end in .py)"),
        ("none.py:f", "none.py: no such Python file in "),
        ("folder.py:f", "folder.py: no such Python file"),
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
    with pytest.raises(BadInput, match=r"train.loss = mine.py:g: must be callable with \(a, b, c\).*by name, .*steps"):
        load_function("train.loss", "mine.py:g", ("a", "b", "c"), ("steps",))
    with pytest.raises(BadInput, match="not a callable"):
        load_function("train.loss", "mine.py:h")


def test_modules_beside_a_custom_file_can_be_imported_but_take_no_name_of_an_installed_one(mine):
    (mine.parent / "beside_it.py").write_text("VALUE = 3\n")
    (mine.parent / "random.py").write_text("raise SystemExit('the wrong random')\n")
    mine.write_text("import random\nfrom beside_it import VALUE\nvalue = random.Random(0) and VALUE\n")
    assert load_object("mine.py:value") == 3


DEFINING = """
import math
SIZE = 3

ROWS = [0]
ROWS[0], BOTH = 1, 2
TWICE = [(NEAR := 2)]

def helper(x):
    return x * SIZE + ROWS[0] + NEAR

class Layer:
    def __call__(self, x):
        return helper(x)

Layer.widths = [4 * i for i in range(2)]

def get_sweep():
    return ["one"]
"""


@pytest.mark.parametrize(
    ("old", "new", "is_edited"),
    [
        ("SIZE = 3", "SIZE = 4", True),
        ("x * SIZE", "x + SIZE", True),
        ("return helper(x)", "return -helper(x)", True),
        ("import math", "import math\nif math.pi > 3:\n    SIZE = 5", True),
        ("ROWS[0], BOTH = 1, 2", "ROWS[0], BOTH = 3, 2", True),
        ("TWICE = [(NEAR := 2)]", "TWICE = [(NEAR := 3)]", True),
        ("Layer.widths = [4 * i for i in range(2)]", "Layer.widths = [8 * i for i in range(2)]", True),
        ('["one"]', '["one", "two"]', False),
        ("class Layer:\n", 'class Layer:\n    """As in the paper."""\n\n', False),
        ("return helper(x)", "return (helper(x))  # as in the paper", False),
        ("import math", '"""A file."""\nimport math\nOTHER = 1', False),
    ],
)
def test_the_digest_is_of_what_a_name_is_defined_by(mine, old, new, is_edited):
    mine.write_text(DEFINING)
    before = read_code("mine.py:Layer")
    mine.write_text(DEFINING.replace(old, new))
    now = read_code("mine.py:Layer")
    assert (now.digest != before.digest) == is_edited
    assert now.changed_since(before) == ["mine.py"] * is_edited


def test_files_are_part_of_the_identity(mine):
    mine.write_text("FILES = 'table.txt'\ndef f(): pass\n")
    with pytest.raises(BadInput, match=r"FILES names table\.txt"):
        read_code("mine.py:f")
    (mine.parent / "table.txt").write_text("1")
    before = read_code("mine.py:f")
    (mine.parent / "table.txt").write_text("2")
    assert read_code("mine.py:f").changed_since(before) == ["table.txt"]


def test_the_digest_is_the_same_in_every_version_of_python(mine):
    """How ast prints a tree, and f-strings as source, differs between versions."""
    mine.write_text("def f(x: int = None):\n    return f\"{x!r:>{x}} 'quoted'\"\n")
    assert read_code("mine.py:f").source[:16] == "4099ccd8f4481c1e"


def test_files_may_be_paths_and_nothing_else(mine):
    (mine.parent / "words.txt").write_text("a b")
    mine.write_text("from pathlib import Path\nFILES = [Path('words.txt')]\ndef f(): pass\n")
    assert list(read_code("mine.py:f").files) == ["words.txt"] and len(read_code("mine.py:f").digest) == 64
    mine.write_text("FILES = [3]\ndef f(): pass\n")
    with pytest.raises(BadInput, match=r"mine\.py: FILES = \[3\]: must be a text, or a list of texts"):
        read_code("mine.py:f")


def test_any_custom_file_may_import_what_is_beside_it(mine, monkeypatch):
    """A config file or a sweep's file, too."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(mine.parent))])
    (mine.parent / "folder").mkdir()
    (mine.parent / "folder/beside_my_config.py").write_text("number = 7\n")
    (mine.parent / "folder/config.py").write_text("from beside_my_config import number\n")
    assert load_module("folder/config.py").number == 7
