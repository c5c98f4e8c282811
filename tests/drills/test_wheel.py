"""Drill: sdist and wheel, built and put into an empty environment, do the library's work outside of any checkout.

Needs an index to install from: the build's requirements, and all that the package depends on.
"""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.places import ROOT

# The preset `copy`, small enough for seconds.
SMALL = {
    "train.steps": 4,
    "train.log_every": 2,
    "train.eval_every": 4,
    "train.checkpoint_every": 4,
    "train.compile_cache": "none",
    "optimizer.warmup_steps": 2,
    "data.task.train_size": 200,
    "data.task.valid_size": 20,
    "data.task.test_size": 20,
}


def environment(directory):
    """A new, empty virtual environment; the folder of its programs."""
    venv.create(directory, with_pip=True)
    return directory / ("Scripts" if os.name == "nt" else "bin")


def done(*command, cwd):
    """Runs it with nothing of this checkout in sight; what it wrote to stdout."""
    hidden = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ended = subprocess.run([str(word) for word in command], cwd=cwd, env=hidden, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(sdist, wheel): the wheel is made of the sdist, so that what the sdist lacks the wheel lacks."""
    place = tmp_path_factory.mktemp("built")
    programs = environment(place / "builder")
    done(programs / "pip", "install", "--quiet", "build", cwd=place)
    done(programs / "python", "-m", "build", "--outdir", place / "dist", ROOT, cwd=place)
    (sdist,), (wheel,) = (place / "dist").glob("*.tar.gz"), (place / "dist").glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The programs of an environment that has the wheel and what it depends on, and an empty folder to work in."""
    place = tmp_path_factory.mktemp("installed")
    programs = environment(place / "empty")
    done(programs / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", f"{built[1]}[train]", cwd=place)
    (place / "work").mkdir()
    return programs, place / "work"


def test_what_the_wheel_holds(built):
    with zipfile.ZipFile(built[1]) as wheel:
        names = set(wheel.namelist())
    files = (ROOT / "transformer_jax").rglob("*.*")
    package = {f"{file.relative_to(ROOT)}" for file in files if file.suffix in (".py", ".html", ".css", ".js")}
    presets = {f"transformer_jax/presets/{file.name}" for file in (ROOT / "configs").glob("*.py")}
    presets |= {f"transformer_jax/presets/experiments/{file.name}" for file in (ROOT / "experiments").glob("*.py")}
    assert package | presets | {"transformer_jax/py.typed"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "docs", "configs", "benchmarks"))]


def test_what_the_sdist_holds(built):
    with tarfile.open(built[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "Makefile", "constraints.txt"}
    assert wanted | {"configs/demo.py", "docs/paper.md", "experiments/table3.py", "tests/test_shipped.py"} <= names


def test_it_is_imported_from_where_it_was_installed(installed):
    programs, work = installed
    code = "import transformer_jax as t; print(t.__file__); [getattr(t, name) for name in t.__all__]"
    place = Path(done(programs / "python", "-c", code, cwd=work).strip())
    assert place.is_relative_to(programs.parent) and not place.is_relative_to(ROOT)


def test_a_preset_is_inspected_trained_and_used(installed):
    programs, work = installed
    program = programs / "transformer-jax"
    assert "* data.corpus" in done(program, "inspect", "--config=preset:copy", cwd=work)
    options = [f"--config.{name}={value}" for name, value in SMALL.items()]
    done(program, "train", "--config=preset:copy", "--workdir=run", *options, cwd=work)
    assert "transformer_jax" in (work / "run/versions.json").read_text()
    code = "from transformer_jax import load_run; print(len(load_run('run').translate(['a b c d'])))"
    assert done(programs / "python", "-c", code, cwd=work).strip() == "1"


def test_a_shipped_experiment_is_planned(installed):
    programs, work = installed
    shown = done(
        programs / "python", "-m", "transformer_jax", "sweep", "preset:table3", "--workdir=s", "--dry-run", cwd=work
    )
    assert "C d_model=256" in shown and not (work / "s").exists()


def test_nothing_of_tensorflow_is_asked_for(installed):
    programs, work = installed
    code = "import importlib.util as u; print([n for n in ('tensorflow', 'torch', 'transformers') if u.find_spec(n)])"
    assert done(programs / "python", "-c", code, cwd=work).strip() == "[]", sys.version
