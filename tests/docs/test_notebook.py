"""The notebook runs from its first to its last cell, in an empty folder and a process of its own."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.places import ROOT
from transformer_jax.sweeps import spec

NOTEBOOK = ROOT / "examples/first_run.ipynb"
# What IPython does with the cells: files are written, `!transformer-jax` is the command line.
RUN = """
import json, shlex, sys, types
from pathlib import Path

from transformer_jax import cli

display = types.ModuleType("IPython.display")
display.Image = lambda path: Path(path).read_bytes()
ipython = types.ModuleType("IPython")
ipython.version_info = (9, 0)  # matplotlib looks at it
sys.modules |= {"IPython": ipython, "IPython.display": display}
names = {"__name__": "__main__"}
for number, cell in enumerate(json.loads(sys.argv[1])):
    first, _, rest = cell.partition("\\n")
    if first.startswith("%%writefile "):
        Path(first.split()[1]).write_text(rest)
    elif first.startswith("!"):
        for line in cell.splitlines():
            program, *arguments = shlex.split(line.removeprefix("!"))
            assert program == "transformer-jax" and cli.main(arguments) == 0, line
    else:
        exec(compile(cell, f"cell {number}", "exec"), names)
assert names["translation"].text == "f e d c b a"
"""


def cells(*skipped):
    found = json.loads(NOTEBOOK.read_text())["cells"]
    return [
        cell for cell in found if cell["cell_type"] == "code" and not {*skipped} & {*cell["metadata"].get("tags", ())}
    ]


def run(place, *skipped):
    """Runs all cells but those with such tags, compiled fast and not for speed."""
    flags = os.environ.get("XLA_FLAGS", "").replace("device_count=8", "device_count=1")
    settings = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    code = json.dumps(["".join(cell["source"]) for cell in cells(*skipped)])
    ended = subprocess.run([sys.executable, "-c", RUN, code], cwd=place, env=settings, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]


@pytest.mark.slow
def test_the_notebook_runs_without_its_sweep(tmp_path):
    run(tmp_path, "install", "sweep")
    assert (tmp_path / "attention.png").is_file()


@pytest.mark.drill
def test_the_notebook_runs(tmp_path):
    run(tmp_path, "install")
    assert (tmp_path / "runs/ablation/report/index.html").is_file()


def test_the_sweep_of_the_notebook_is_one(tmp_path, monkeypatch):
    """Without a training: the definition is read and checked."""
    for cell in cells():
        first, _, rest = "".join(cell["source"]).partition("\n")
        if first.startswith("%%writefile "):
            (tmp_path / first.split()[1]).write_text(rest)
    monkeypatch.chdir(tmp_path)
    assert spec.load("ablation.py").chosen(None) == ["sinusoidal", "none"]


def test_the_notebook_is_stored_without_outputs():
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells())
