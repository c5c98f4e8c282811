"""Which code made the runs of a sweep: compared when it is launched again, and reported where it differs."""

import dataclasses
import json

import pytest

from tests.runs.test_code import LOSS
from tests.support import sweep_runs
from transformer_jax.errors import ConfigError, Failed
from transformer_jax.files.atomic import write_json
from transformer_jax.sweeps import provenance
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.provenance import Made, mixtures


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with a custom loss; the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(LOSS)
    return tmp_path


@pytest.fixture
def sweep(mine):
    """A sweep of two variants with a custom loss; the first run is finished."""
    base = {**sweep_runs.BASE, "train": {**sweep_runs.BASE["train"], "loss": "mine.py:loss"}}
    definition = sweep_runs.defined(sweep_runs.FOUR, base=base)
    definition = dataclasses.replace(definition, code=provenance.digests(definition))
    folder = SweepFolder(mine / "sweep")
    finished, _ = folder.runs(definition)
    sweep_runs.pretend_finished(finished)
    result = json.loads((finished.path / "result.json").read_text())
    write_json(finished.path / "result.json", {**result, "code": provenance.digests(definition, finished)})
    return folder, definition


def test_a_sweep_refuses_runs_of_other_code(mine, sweep, capsys):
    folder, definition = sweep
    provenance.check(folder, definition)
    folder.save(definition)
    assert folder.load().code == definition.code != {}
    (mine / "mine.py").write_text(LOSS + "loss.is_edited = True\n")
    edited = dataclasses.replace(definition, code=provenance.digests(definition))
    with pytest.raises(ConfigError, match=r"mine\.py:loss .*base, seed 0") as error:
        provenance.check(folder, edited)
    assert not any("\n" in problem for problem in error.value.problems), "a line each"
    provenance.check(folder, dataclasses.replace(edited, accept_changed_code=True))
    assert "the report mentions it" in capsys.readouterr().err
    with pytest.raises(Failed, match=r"mine\.py was edited after the sweep was launched"):
        provenance.refuse_edited(folder.runs(definition)[1], definition)


def test_mixtures_are_named_and_uniform_runs_are_not():
    one = Made("base, seed 0", {"a.py:f": "1" * 64}, {"jax": "0.10"})
    assert mixtures([one, one._replace(name="base, seed 1")]) == []
    other = Made("base, seed 1", {"a.py:f": "2" * 64}, {"jax": "0.12"}, ("custom code was changed at step 6",))
    code, versions, note = mixtures([one, other])
    assert all(word in code for word in ("a.py:f", "11111111 in base, seed 0", "22222222 in base, seed 1"))
    assert "0.10 in base, seed 0" in versions and "0.12 in base, seed 1" in versions and "at step 6" in note
