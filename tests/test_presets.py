"""The configs that come with the package, by name: what a wheel's user has in place of configs/."""

import tomllib
from pathlib import Path

import pytest

from transformer_jax import cli
from transformer_jax.commands import configuration
from transformer_jax.errors import BadInput

ROOT = Path(__file__).parent.parent
CONFIGS = sorted(ROOT.glob("configs/*.py"))


def test_every_config_is_a_preset():
    assert list(configuration.presets().values()) == CONFIGS
    assert list(configuration.presets()) == [file.stem for file in CONFIGS]


def test_a_wheel_takes_them_in():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert build["wheel"]["force-include"] == {"configs": "transformer_jax/presets"}


def test_a_preset_is_its_file():
    changes = [("model.num_heads", "8")]
    assert configuration.load("preset:demo", changes) == configuration.load(str(ROOT / "configs/demo.py"), changes)


def test_a_preset_takes_an_argument(tmp_path, monkeypatch):
    file = tmp_path / "sized.py"
    file.write_text("def get_config(steps='1'):\n    return {'train': {'steps': int(steps)}}\n")
    monkeypatch.setattr(configuration, "presets", lambda: {"sized": file})
    assert configuration.load("preset:sized:5000", []).train.steps == 5000


@pytest.mark.parametrize("name", ["deno", "", "../demo", "demo.py"])
def test_an_unknown_name_is_answered_with_all_names(name):
    with pytest.raises(BadInput, match=r"there is no such preset; there are: base, .*, demo, .*, text$"):
        configuration.load(f"preset:{name}", [])


def test_help_names_them(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    assert "multi30k_tiny" in capsys.readouterr().out
