"""The notebook runs from its first to its last cell, in an empty folder."""

import json
import shlex
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from tests.support.places import ROOT
from transformer_jax import cli
from transformer_jax.sweeps import resolved

NOTEBOOK = ROOT / "examples/first_run.ipynb"


def cells(*skipped):
    found = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    return [cell for cell in found if not {*skipped} & {*cell["metadata"].get("tags", ())}]


def write(cell):
    """What `%%writefile` does; False for another cell."""
    first, _, rest = "".join(cell["source"]).partition("\n")
    if first.startswith("%%writefile "):
        Path(first.split()[1]).write_text(rest)
    return first.startswith("%%writefile ")


def run(*skipped):
    """Does what IPython does with the cells but those with such tags: `!transformer-jax` is the command line."""
    names = {"__name__": "__main__"}
    for cell in cells(*skipped):
        code = "".join(cell["source"])
        if code.startswith("!"):
            for line in code.splitlines():
                program, *arguments = shlex.split(line.removeprefix("!"))
                assert program == "transformer-jax" and cli.main(arguments) == 0, line
        elif not write(cell):
            exec(compile(code, str(NOTEBOOK), "exec"), names)
    assert names["translation"].text == "f e d c b a"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    """With no compiled programs of earlier times."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    yield
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()


@pytest.mark.drill
def test_the_notebook_runs(ipython):
    run("install")
    assert Path("attention.png").is_file()
    assert Path("runs/ablation/report/index.html").is_file()


def test_the_sweep_of_the_notebook_is_one():
    """Without a training: the definition is read and checked."""
    assert sum(map(write, cells())) == 2
    assert resolved.load("ablation.py").chosen(None) == ["sinusoidal", "none"]


def test_the_notebook_is_stored_without_outputs():
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells())
