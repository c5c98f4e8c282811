"""The configs that come with the package, by name: what a wheel's user has in place of configs/."""

import shutil

import pytest

from tests.support.places import ROOT
from transformer_jax import shipped
from transformer_jax.errors import BadInput
from transformer_jax.sweeps import resolved

CONFIGS = sorted(ROOT.glob("configs/*.py"))
EXPERIMENTS = sorted(
    set(ROOT.glob("experiments/*.py")) - {ROOT / f"experiments/{name}.py" for name in shipped.NOT_EXPERIMENTS}
)


def test_every_config_and_experiment_is_a_preset():
    for files, presets in ((CONFIGS, shipped.configs()), (EXPERIMENTS, shipped.experiments())):
        assert list(presets.values()) == files
        assert list(presets) == [file.stem for file in files]


def test_experiments_are_there_as_a_wheel_has_them(tmp_path, monkeypatch):
    """In a package's own folders, with nothing of a checkout around, called from somewhere else."""
    shutil.copytree(ROOT / "configs", tmp_path / "package/presets")
    shutil.copytree(ROOT / "experiments", tmp_path / "package/presets/experiments")
    monkeypatch.setattr(shipped, "PACKAGE", tmp_path / "package")
    monkeypatch.chdir(tmp_path)
    assert list(shipped.configs()) == [file.stem for file in CONFIGS]
    files = [("data.source", "a"), ("data.target", "b")]
    for scale in ("demo", "multi30k", "paper"):
        definition = resolved.load("preset:width", scale, files if scale == "multi30k" else ())
        assert definition.file == "preset:width" and definition.sweep.name == "width"
    heads = resolved.load("preset:heads", "demo")
    assert heads.sweep.analyses["heads"] == "package/presets/experiments/heads.py:what_heads_do"


def test_an_experiment_that_is_not_there_is_answered_with_its_name_or_all_names():
    for missing, hint in (
        ("preset:widht", "did you mean preset:width"),
        ("elsewhere/width.py", "did you mean preset:width"),
        ("preset:zzz", "modern,"),
    ):
        with pytest.raises(BadInput, match=f"^{missing}: .*{hint}"):
            resolved.load(missing)
