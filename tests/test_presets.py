"""The configs that come with the package, by name: what a wheel's user has in place of configs/."""

import re
import shutil
import tomllib

import pytest

from tests.support.places import ROOT
from transformer_jax import cli, schema, shipped
from transformer_jax.commands import configuration
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import BadInput
from transformer_jax.sweeps import spec

CONFIGS = sorted(ROOT.glob("configs/*.py"))
EXPERIMENTS = sorted(set(ROOT.glob("experiments/*.py")) - {ROOT / "experiments/bases.py"})


def test_every_config_and_experiment_is_a_preset():
    for files, presets in ((CONFIGS, shipped.configs()), (EXPERIMENTS, shipped.experiments())):
        assert list(presets.values()) == files
        assert list(presets) == [file.stem for file in files]


def test_a_wheel_takes_them_in():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert build["wheel"]["force-include"] == {
        "configs": "transformer_jax/presets",
        "experiments": "transformer_jax/presets/experiments",
    }


def test_a_preset_is_its_file():
    changes = [("model.num_heads", "8")]
    assert configuration.load("preset:demo", changes) == configuration.load(str(ROOT / "configs/demo.py"), changes)


def test_a_preset_takes_an_argument(tmp_path, monkeypatch):
    file = tmp_path / "sized.py"
    file.write_text("def get_config(steps='1'):\n    return {'train': {'steps': int(steps)}}\n")
    monkeypatch.setattr(shipped, "configs", lambda: {"sized": file})
    assert configuration.load("preset:sized:5000", []).train.steps == 5000


@pytest.mark.parametrize("name", ["deno", "", "../demo", "demo.py"])
def test_an_unknown_name_is_answered_with_all_names(name):
    with pytest.raises(BadInput, match=r"no such preset; there are: base, .*, demo, .*, text$"):
        configuration.load(f"preset:{name}", [])


@pytest.mark.parametrize("name", ["configs/text.py", "text", "elsewhere/text.py:argument"])
def test_a_file_that_is_not_there_but_has_a_presets_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        BadInput, match=f"^{name.partition(':')[0]}: no such config file; preset:text is available by name$"
    ):
        configuration.load(name, [])


def test_the_table_of_what_the_preset_for_own_text_sets():
    config, base = configuration.load("preset:text", [("data.source", "a"), ("data.target", "b")]), ExperimentConfig()
    table = (ROOT / "docs/data.md").read_text().partition("| `preset:text` |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    told = {path: row[1:] for row in rows for path in re.findall(r"`([\w.]+)`", row[0])}
    paths = [option.path for option in schema.options(ExperimentConfig) if not option.path.startswith("data.")]
    differing = [path for path in paths if schema.value_at(config, path) != schema.value_at(base, path)]
    assert sorted(told) == sorted([*differing, "data.tokens_per_batch"])
    for path, numbers in told.items():
        values = [str(schema.value_at(which, path)).lower() for which in (config, base)]
        assert values == [number.partition(":")[0].replace(",", "") for number in numbers], path


def test_experiments_are_there_as_a_wheel_has_them(tmp_path, monkeypatch):
    """In a package's own folders, with nothing of a checkout around, called from somewhere else."""
    shutil.copytree(ROOT / "configs", tmp_path / "package/presets")
    shutil.copytree(ROOT / "experiments", tmp_path / "package/presets/experiments")
    monkeypatch.setattr(shipped, "PACKAGE", tmp_path / "package")
    monkeypatch.chdir(tmp_path)
    assert list(shipped.configs()) == [file.stem for file in CONFIGS]
    files = [("data.source", "a"), ("data.target", "b")]
    for scale in ("demo", "multi30k", "paper"):
        definition = spec.load("preset:width", scale, files if scale == "multi30k" else ())
        assert definition.file == "preset:width" and definition.sweep.name == "width"
    heads = spec.load("preset:heads", "demo")
    assert heads.sweep.analyses["heads"] == "package/presets/experiments/heads.py:what_heads_do"


def test_an_experiment_that_is_not_there_is_answered_with_its_name_or_all_names():
    with pytest.raises(BadInput, match=r"^preset:widht: no such preset; there are: heads, norm, .*, width$"):
        spec.load("preset:widht")
    with pytest.raises(
        BadInput, match=r"^elsewhere/width\.py: no such experiment file; preset:width is available by name$"
    ):
        spec.load("elsewhere/width.py")


def test_help_names_them(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    assert "multi30k_tiny" in capsys.readouterr().out
