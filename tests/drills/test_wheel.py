"""Drill: sdist and wheel, built and put into empty environments of every Python, do the library's work anywhere.

Needs an index to install from: the build's requirements, and all that the package depends on.
`make release-check` runs it and keeps what was built in dist/.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.places import ROOT

PYTHONS = ("3.11", "3.12", "3.13")
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


def run(*command, cwd):
    """Runs it with nothing of this checkout in sight, settings of the tests included."""
    hidden = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JAX_", "XLA_"))}
    return subprocess.run([str(word) for word in command], cwd=cwd, env=hidden, capture_output=True, text=True)


def done(*command, cwd):
    """What a command that must succeed wrote to stdout."""
    ended = run(*command, cwd=cwd)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def interpreter(version):
    """The path of this Python, or None. Under pyenv a version that is not selected is found by its folder alone."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for found in (shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python")):
        if found and subprocess.run([found, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0:
            return found
    return None


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(sdist, wheel): the wheel is made of the sdist, so that what the sdist lacks the wheel lacks."""
    place = tmp_path_factory.mktemp("built")
    venv.create(place / "builder", with_pip=True)
    python = place / "builder/bin/python"
    done(python, "-m", "pip", "install", "--quiet", "build", "twine", cwd=place)
    folder = Path(os.environ.get("DIST_FOLDER", place / "dist")).absolute()
    done(python, "-m", "build", "--outdir", folder, ROOT, cwd=place)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    done(python, "-m", "twine", "check", "--strict", sdist, wheel, cwd=place)
    return sdist, wheel


@pytest.fixture(scope="module", params=PYTHONS)
def light(request, built, tmp_path_factory):
    """The programs of an environment that has the wheel and what it depends on, and an empty folder to work in."""
    python = interpreter(request.param)
    if python is None:
        # A release is checked with all of them; a drill with those that are there.
        missing = pytest.fail if "DIST_FOLDER" in os.environ else pytest.skip
        missing(f"there is no Python {request.param} here (with venv and ensurepip)")
    place = tmp_path_factory.mktemp("installed")
    done(python, "-m", "venv", place / "empty", cwd=place)
    install(place / "empty/bin", built[1], place)
    (place / "work").mkdir()
    return place / "empty/bin", place / "work"


@pytest.fixture(scope="module")
def full(light, built):
    """The same with the packages for training and reports; what has this fixture comes last in this file."""
    programs, work = light
    install(programs, f"{built[1]}[train,report]", work)
    return light


def install(programs, requirement, cwd):
    done(programs / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", requirement, cwd=cwd)


def test_what_the_wheel_holds(built):
    with zipfile.ZipFile(built[1]) as wheel:
        names = set(wheel.namelist())
    files = (ROOT / "transformer_jax").rglob("*.*")
    package = {f"{file.relative_to(ROOT)}" for file in files if file.suffix in (".py", ".html", ".css", ".js", ".csv")}
    presets = {f"transformer_jax/presets/{file.name}" for file in (ROOT / "configs").glob("*.py")}
    presets |= {f"transformer_jax/presets/experiments/{file.name}" for file in (ROOT / "experiments").glob("*.py")}
    assert package | presets | {"transformer_jax/py.typed"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"transformer_jax"}


def test_what_the_sdist_holds(built):
    with tarfile.open(built[0]) as sdist:
        names = {name.split("/")[1] for name in sdist.getnames() if "/" in name}
    files = {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "PKG-INFO", "pyproject.toml", ".gitignore"}
    assert names == files | {"transformer_jax", "configs", "experiments"}


def test_the_light_install_is_imported_from_where_it_is_and_has_the_model(light):
    programs, work = light
    code = "from transformer_jax import Transformer; import transformer_jax; print(transformer_jax.__file__)"
    place = Path(done(programs / "python", "-c", code, cwd=work).strip())
    assert place.is_relative_to(programs.parent) and not place.is_relative_to(ROOT)


def test_a_preset_is_trained_and_used(full):
    programs, work = full
    program = programs / "transformer-jax"
    assert "* data.corpus" in done(program, "inspect", "--config=preset:copy", cwd=work)
    options = [f"--config.{name}={value}" for name, value in SMALL.items()]
    done(program, "train", "--config=preset:copy", "--workdir=run", *options, cwd=work)
    assert "transformer_jax" in (work / "run/versions.json").read_text()
    code = "from transformer_jax import load_run; print(len(load_run('run').translate(['a b c d'])))"
    assert done(programs / "python", "-c", code, cwd=work).strip() == "1"
    done(program, "evaluate", "--workdir=run", "--split=test", cwd=work)
    done(program, "plot", "page", "--workdir=run", cwd=work)
    assert (work / "run/page.html").is_file()


def test_a_shipped_experiment_is_planned(full):
    programs, work = full
    shown = done(
        programs / "python", "-m", "transformer_jax", "sweep", "preset:table3", "--workdir=s", "--dry-run", cwd=work
    )
    assert "C d_model=256" in shown and not (work / "s").exists()


def test_nothing_of_tensorflow_is_asked_for(full):
    programs, work = full
    names = ("tensorflow", "tensorflow_datasets", "torch", "transformers")
    code = f"import importlib.util as u; print([n for n in {names} if u.find_spec(n)])"
    assert done(programs / "python", "-c", code, cwd=work).strip() == "[]", sys.version
