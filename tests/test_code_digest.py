"""The identity of custom code. As a run keeps it: runs/test_code.py."""

import pytest

from tests.support.custom_loss import LOSS, in_folder_with_loss
from tests.support.small_runs import experiment
from transformer_jax.code_digest import module_files, read_code
from transformer_jax.data.corpora import open_corpus
from transformer_jax.errors import BadInput
from transformer_jax.extension import load_object


@pytest.fixture
def mine(tmp_path, monkeypatch):
    return in_folder_with_loss(tmp_path, monkeypatch)


def test_a_file_alone_has_its_own_checksum(mine):
    import hashlib

    assert read_code("mine.py").digest == hashlib.sha256(LOSS.encode()).hexdigest()


def test_an_experiment_file_with_layers_may_get_another_variant(mine):
    text = LOSS + "\ndef get_sweep():\n    return 'one'\n\nVALUE = {}\n"
    (mine / "mine.py").write_text(text.format(1))
    before = read_code("mine.py").digest
    (mine / "mine.py").write_text(text.format(1).replace("'one'", "'one', \\\n        'two'"))
    assert read_code("mine.py").digest == before
    (mine / "mine.py").write_text(text.format(2))
    assert read_code("mine.py").digest != before


def test_what_a_file_imports_from_beside_itself_belongs_to_it_wherever_the_import_stands(mine):
    (mine / "mine.py").write_text("import json\nimport numpy\nimport here_a\n\ndef f():\n    from here_p.b import x\n")
    (mine / "here_a.py").write_text("")
    (mine / "here_p").mkdir()
    for name, text in {"__init__": "", "b": "from . import c\nx = 1\n", "c": ""}.items():
        (mine / "here_p" / f"{name}.py").write_text(text)
    (mine / "not_imported.py").write_text("")
    names = ["here_a.py", "here_p/__init__.py", "here_p/b.py", "here_p/c.py", "mine.py"]
    assert sorted(module_files("mine.py")) == names
    before = read_code("mine.py")
    (mine / "here_p" / "c.py").write_text("# edited")
    after = read_code("mine.py")
    assert after.changed_since(before) == ["here_p/c.py"] and after.digest != before.digest


def test_modules_beside_a_custom_file_can_be_imported_but_take_no_name_of_an_installed_one(mine):
    (mine / "beside_it.py").write_text("VALUE = 3\n")
    (mine / "random.py").write_text("raise SystemExit('the wrong random')\n")
    (mine / "mine.py").write_text("import random\nfrom beside_it import VALUE\nvalue = random.Random(0) and VALUE\n")
    assert load_object("mine.py:value") == 3
    assert "random.py" not in module_files("mine.py")


def test_a_module_of_the_same_name_from_another_custom_folder_is_refused(mine):
    for number, folder in enumerate((mine / "one", mine / "two")):
        folder.mkdir()
        (folder / "twin_helper.py").write_text(f"def value():\n    return {number}\n")
        (folder / "mine.py").write_text("from twin_helper import value\n")
    assert load_object("one/mine.py:value")() == 0
    with pytest.raises(BadInput, match="imports twin_helper, but another custom file has already loaded"):
        load_object("two/mine.py:value")


def test_an_edited_file_is_loaded_anew_and_an_edited_import_is_refused(mine):
    (mine / "edited_helper.py").write_text("VALUE = 1\n")
    (mine / "mine.py").write_text("from edited_helper import VALUE\nvalue = VALUE\n")
    assert load_object("mine.py:value") == 1
    read_code("mine.py")
    (mine / "mine.py").write_text("from edited_helper import VALUE\nvalue = VALUE + 1\n")
    assert load_object("mine.py:value") == 2
    (mine / "edited_helper.py").write_text("VALUE = 5\n")
    with pytest.raises(BadInput, match="edited after this process had imported it; start a new process"):
        read_code("mine.py")


def test_files_are_part_of_the_identity(mine):
    (mine / "mine.py").write_text("FILES = 'table.txt'\n" + LOSS)
    with pytest.raises(BadInput, match=r"FILES names table\.txt, and there is no such file"):
        read_code("mine.py")
    (mine / "table.txt").write_text("1")
    before = read_code("mine.py")
    (mine / "table.txt").write_text("2")
    assert read_code("mine.py").changed_since(before) == ["table.txt"]


def test_a_corpus_is_identified_by_what_it_imports_too(mine):
    (mine / "words_of_it.py").write_text("WORDS = 'a'\n")
    text = "from words_of_it import WORDS\ndef pairs(split):\n    yield WORDS, WORDS\n"
    (mine / "corpus.py").write_text(text)
    identity = open_corpus(experiment(data__corpus="corpus.py:pairs").data).identity()
    assert list(identity) == ["function", "checksum of corpus.py", "checksum of words_of_it.py"]
