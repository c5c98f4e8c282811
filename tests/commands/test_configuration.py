"""Config files and presets, and the changes of the command line."""

import pytest

from tests.support.places import ROOT
from transformer_jax import cli, shipped
from transformer_jax.commands import configuration
from transformer_jax.errors import BadInput, ConfigError

# Each: the text of a config file, and what stderr must say.
BAD_FILES = [
    ("x = 1", "get_config()"),
    ("def get_config():\n    return 7", "ConfigDict"),
    ("def get_config():\n    return {'model': 3}", "model = 3: is a group of options, not a value"),
    ("def get_config():\n    return {'model': {'d_model': True}}", "model.d_model = True: must be a whole number"),
    ("def get_config():\n    return {3: 4}", "3: no such option"),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES)
def test_bad_config_file(tmp_path, text, message):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(BadInput) as error:
        configuration.load(str(file), [])
    assert message in str(error.value) and str(file) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["def get_config(:", "import sys; sys.exit(0)", "def get_config():\n    return name"])
def test_an_error_in_a_users_file_comes_with_its_traceback(tmp_path, text, capsys):
    file = tmp_path / "mine.py"
    file.write_text(text)
    assert cli.main(["inspect", f"--config={file}"]) == 2
    err = capsys.readouterr().err
    assert str(file) in err.splitlines()[-1] and "line" in err
    assert "transformer_jax/extension.py" not in err, "only the user's own frames"


def test_everything_wrong_is_reported_at_once():
    changes = [("model.num_head", "4"), ("model.dropout", "2"), ("seed", "x")]
    with pytest.raises(ConfigError) as error:
        configuration.load("preset:base", changes)
    assert len(error.value.problems) == 3


def test_a_preset_is_its_file():
    changes = [("model.num_heads", "8")]
    assert configuration.load("preset:demo", changes) == configuration.load(str(ROOT / "configs/demo.py"), changes)


@pytest.mark.parametrize(
    ("parameters", "argument", "message"),
    [("", ":9", "takes no argument"), ("kind", "", "needs an argument, as in --config=.*mine.py:ARGUMENT")],
)
def test_an_argument_that_a_file_does_not_take_or_lacks(tmp_path, parameters, argument, message):
    file = tmp_path / "mine.py"
    file.write_text(f"def get_config({parameters}):\n    return {{}}\n")
    with pytest.raises(BadInput, match=f"its get_config\\(\\) {message}"):
        configuration.load(f"{file}{argument}", [])


def test_a_preset_takes_an_argument(tmp_path, monkeypatch):
    file = tmp_path / "sized.py"
    file.write_text("def get_config(steps='1'):\n    return {'train': {'steps': int(steps)}}\n")
    monkeypatch.setattr(shipped, "configs", lambda: {"sized": file})
    assert configuration.load("preset:sized:5000", []).train.steps == 5000


@pytest.mark.parametrize("name", ["preset:textt", "preset:../text", "configs/text.py"])
def test_an_unknown_name_is_answered_with_presets(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"\btext\b"):
        configuration.load(name, [])


@pytest.mark.parametrize(("argument", "steps"), [("", 6000), (":5000", 5000)])
def test_a_path_may_have_a_colon(tmp_path, argument, steps):
    (tmp_path / "at 10:00").mkdir()
    file = tmp_path / "at 10:00/sized.py"
    file.write_text("def get_config(steps='6000'):\n    return {'train': {'steps': int(steps)}}\n")
    assert configuration.load(f"{file}{argument}", []).train.steps == steps


def test_paths_in_a_config_may_be_path_objects_and_begin_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "mine.py"
    file.write_text(
        "from pathlib import Path\n\n\ndef get_config():\n"
        "    tests = {'long': {'source': Path('b.en'), 'target': [Path('b.de')]}}\n"
        "    return {'data': {'source': Path('a.en'), 'target': [Path('a.de')], 'tests': tests}}\n"
    )
    experiment = configuration.load(str(file), [("train.loss", "~/mine.py:loss"), ("optimizer.name", "~/mine.py:own")])
    assert experiment.data.source == ("a.en",) and experiment.data.target == ("a.de",)
    assert experiment.data.tests == {"long": {"source": ("b.en",), "target": ("b.de",)}}
    assert experiment.train.loss == f"{file}:loss" and experiment.optimizer.name == f"{file}:own"


def test_an_error_in_a_typed_test_set_is_not_the_files(tmp_path):
    with pytest.raises(ConfigError) as error:
        configuration.load("preset:text", [("data.source", "a"), ("data.target", "b"), ("data.tests.2016.source", "c")])
    assert error.value.problems == (
        "--config.data.tests.2016: must be a letter and up to 40 letters, digits and _, and not train, valid, test",
    )
