"""The custom code of a run: recorded, compared on resume, kept as a copy, found for inference."""

import shutil
import sys

import pytest

from tests.support.small_runs import experiment
from transformer_jax.errors import BadInput
from transformer_jax.extension import load_object
from transformer_jax.runs.code import CodeSnapshots
from transformer_jax.runs.folder import RunFolder, refuse_foreign

LOSS = "import jax.numpy as jnp\n\ndef loss(a, b, w):\n    return jnp.sum(a[..., 0] * w), w.sum()\n"
EDITED = LOSS + "loss.is_edited = True\n"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The folder as the current directory, with mine.py in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(LOSS)
    return tmp_path


def begun(folder, config, step=6):
    """As a run that has a checkpoint."""
    folder.path.mkdir(exist_ok=True)
    folder.record(config)
    (folder.checkpoints / str(step)).mkdir(parents=True)


def test_a_run_is_not_resumed_with_edited_code_unless_that_is_accepted(mine):
    config = experiment(train__loss="mine.py:loss")
    begun(RunFolder(mine / "run"), config)
    RunFolder(mine / "run").record(config)  # nothing has changed
    (mine / "mine.py").write_text(LOSS + "# a comment\n")
    RunFolder(mine / "run").record(config)
    (mine / "mine.py").write_text(EDITED)
    with pytest.raises(BadInput, match=r"trained with other custom code: train\.loss:loss \(mine\.py\): mine\.py chan"):
        RunFolder(mine / "run").record(config)
    assert RunFolder(mine / "run").notes() == []
    RunFolder(mine / "run", accept_changed_code=True).record(config)
    RunFolder(mine / "run").record(config)  # this is the run's code now
    (note,) = RunFolder(mine / "run").notes()
    assert note == "custom code was changed at step 6: train.loss:loss (mine.py): mine.py changed"
    copies = sorted(path.read_text() for path in (mine / "run" / "code").glob("*/mine.py"))
    assert copies == sorted([LOSS, EDITED])


def test_code_that_moved_with_its_content_is_the_same(mine):
    begun(RunFolder(mine / "run"), experiment(train__loss="mine.py:loss"))
    (mine / "elsewhere").mkdir()
    shutil.move(mine / "mine.py", mine / "elsewhere" / "mine.py")
    RunFolder(mine / "run").record(experiment(train__loss="elsewhere/mine.py:loss"))
    with pytest.raises(BadInput, match="holds another run"):
        RunFolder(mine / "run").record(experiment(train__loss="elsewhere/mine.py:other"))


def test_modules_that_files_names_are_copied(mine):
    (mine / "beside_the_loss.py").write_text("SCALE = 2.0\n")
    text = "from beside_the_loss import SCALE\nFILES = ['beside_the_loss.py']\ndef loss(): return SCALE\n"
    (mine / "mine.py").write_text(text)
    begun(RunFolder(mine / "run"), experiment(train__loss="mine.py:loss"))
    (copy,) = (mine / "run" / "code").glob("*/beside_the_loss.py")
    assert copy.read_text() == "SCALE = 2.0\n"


def test_inference_uses_the_code_of_the_training(mine, capsys, monkeypatch):
    (mine / "mine.py").write_text("class Norm: pass\n")
    config = experiment(model__parts={"feed_forward": "mine.py:Norm"})
    begun(RunFolder(mine / "run"), config)
    assert RunFolder(mine / "run").load_config().model.parts.feed_forward == "mine.py:Norm"
    (mine / "mine.py").write_text("class Norm: edited = True\n")
    found = RunFolder(mine / "run").load_config().model.parts.feed_forward
    assert "has changed since the training; model.parts.feed_forward uses the run's copy" in capsys.readouterr().err
    assert not hasattr(load_object(found), "edited")
    (mine / "mine.py").unlink()
    assert RunFolder(mine / "run").load_config().model.parts.feed_forward == found
    for copy in (mine / "run" / "code").glob("*/mine.py"):
        copy.write_text("class Norm: damaged = True\n")
    with pytest.raises(BadInput, match="has no copy of it"):
        RunFolder(mine / "run").load_config()


def test_inference_uses_the_modules_of_the_training(mine, capsys, monkeypatch):
    """Also where a module of that name in the current directory could be imported."""
    monkeypatch.setattr("sys.path", [str(mine), *sys.path])
    (mine / "beside_the_norm.py").write_text("SCALE = 1\n")
    (mine / "mine.py").write_text("import beside_the_norm\nFILES = ['beside_the_norm.py']\nclass Norm: pass\n")
    config = experiment(model__parts={"feed_forward": "mine.py:Norm"})
    begun(RunFolder(mine / "run"), config)
    del sys.modules["beside_the_norm"]  # as in another process
    (mine / "beside_the_norm.py").write_text("SCALE = 100  # edited\n")
    found = RunFolder(mine / "run").load_config().model.parts.feed_forward
    assert "mine.py has changed since the training; model.parts" in capsys.readouterr().err
    load_object(found)
    assert sys.modules["beside_the_norm"].SCALE == 1


@pytest.mark.parametrize("is_package", [False, True])
def test_inference_uses_the_package_of_the_training(mine, monkeypatch, is_package):
    """One beside the file or on PYTHONPATH, with and without an __init__.py; the rest of it is copied, too."""
    package = mine / "lib" / "my_package"
    package.mkdir(parents=True)
    monkeypatch.setattr("sys.path", [str(mine / "lib"), *sys.path])
    (package / "scale.py").write_text("from my_package.rest import ONE\nSCALE = ONE\n")
    (package / "rest.py").write_text("ONE = 1\n")
    if is_package:
        (package / "__init__.py").write_text("")
    text = "from my_package.scale import SCALE\nFILES = ['lib/my_package/scale.py']\nclass Norm: scale = SCALE\n"
    (mine / "mine.py").write_text(text)
    config = experiment(model__parts={"feed_forward": "mine.py:Norm"})
    begun(RunFolder(mine / "run"), config)
    (package / "scale.py").write_text("SCALE = 100\n")
    found = RunFolder(mine / "run").load_config().model.parts.feed_forward
    assert "run/code" in found and load_object(found).scale == 1
    assert load_object("mine.py:Norm").scale == 100
    shutil.rmtree(mine / "lib")
    assert load_object(RunFolder(mine / "run").load_config().model.parts.feed_forward).scale == 1


def test_two_runs_with_different_modules_in_one_process(mine):
    """Each model has the module that it was trained with, in any order."""
    (mine / "mine.py").write_text("import my_scale\nFILES = ['my_scale.py']\nclass Norm: scale = my_scale.SCALE\n")
    config = experiment(model__parts={"feed_forward": "mine.py:Norm"})
    for scale in (1, 2, 3):
        (mine / "my_scale.py").write_text(f"SCALE = {scale}\n")
        begun(RunFolder(mine / f"run{scale}"), config)
    for scale in (1, 3, 2, 1):
        found = RunFolder(mine / f"run{scale}").load_config().model.parts.feed_forward
        assert ("/code/" in found) == (scale != 3)
        assert load_object(found).scale == scale


def test_a_module_that_is_imported_later_is_that_of_the_training(mine):
    """Also if another custom file was loaded meanwhile; and if the module is a link to a file of another name."""
    (mine / "shared").mkdir()
    (mine / "shared/scale_v1.py").write_text("SCALE = 1\n")
    (mine / "my_late_scale.py").symlink_to(mine / "shared/scale_v1.py")
    text = "FILES = ['my_late_scale.py']\nclass Norm:\n    def scale(self):\n        import my_late_scale\n"
    (mine / "mine.py").write_text(text + "        return my_late_scale.SCALE\n")
    (mine / "metric.py").write_text("def m(h, r): return 1.0\n")
    begun(RunFolder(mine / "run"), experiment(model__parts={"feed_forward": "mine.py:Norm"}))
    (mine / "my_late_scale.py").unlink()
    (mine / "my_late_scale.py").write_text("SCALE = 100\n")
    norm = load_object(RunFolder(mine / "run").load_config().model.parts.feed_forward)()
    load_object("metric.py:m")
    assert norm.scale() == 1


def test_a_metric_may_be_edited_after_the_training(mine, capsys):
    (mine / "mine.py").write_text("def exact(hypotheses, references): return 0\n")
    config = experiment(decode__metrics=("mine.py:exact",))
    begun(RunFolder(mine / "run"), config)
    (mine / "mine.py").write_text("def exact(hypotheses, references): return 1\n")
    assert RunFolder(mine / "run").load_config().decode.metrics == ("mine.py:exact",)
    RunFolder(mine / "run").record(config)  # the training is resumed
    assert RunFolder(mine / "run").notes() == [] and capsys.readouterr().err == ""
    (mine / "mine.py").unlink()
    (copy,) = RunFolder(mine / "run").load_config().decode.metrics
    assert load_object(copy)([], []) == 1


@pytest.mark.parametrize("decides", [False, True])
def test_a_metric_that_validations_use_is_noted_and_one_that_chooses_the_best_is_refused(mine, decides):
    (mine / "mine.py").write_text("def exact(hypotheses, references): return 0\n")
    best = {"train__best_metric": "exact"} if decides else {}
    config = experiment(decode__metrics=("mine.py:exact",), decode__bleu_sentences=2, **best)
    begun(RunFolder(mine / "run"), config)
    (mine / "mine.py").write_text("def exact(hypotheses, references): return 1\n")
    if decides:
        with pytest.raises(BadInput, match=r"decode\.metrics:exact"):
            RunFolder(mine / "run").record(config)
    RunFolder(mine / "run", accept_changed_code=decides).record(config)
    assert "changed at step 6: decode.metrics:exact" in RunFolder(mine / "run").notes()[0]


def test_a_damaged_record_is_refused(mine):
    begun(RunFolder(mine / "run"), experiment(train__loss="mine.py:loss"))
    kept = CodeSnapshots(mine / "run")
    kept.record.write_text(kept.record.read_text().replace('"mine.py"', '"mime.py"', 1))
    with pytest.raises(BadInput, match="is damaged"):
        kept.latest()


def test_code_of_a_start_that_made_no_step_is_forgotten(mine, capsys):
    config = experiment(model__parts={"feed_forward": "mine.py:Norm"})
    original, edited = "class Norm: pass\n", "class Norm: edited = True\n"
    for number, text in enumerate([original, edited, original]):
        (mine / "mine.py").write_text(text)
        folder = RunFolder(mine / "run", accept_changed_code=True)
        folder.record(config) if number else begun(folder, config)
    assert RunFolder(mine / "run").load_config().model.parts.feed_forward == "mine.py:Norm"
    assert RunFolder(mine / "run").notes() == []


def test_a_start_that_is_killed_while_it_copies_the_code_can_be_repeated(mine, monkeypatch):
    config = experiment(train__loss="mine.py:loss")

    def killed(*_):
        raise KeyboardInterrupt

    (mine / "run").mkdir()
    with monkeypatch.context() as killing:
        killing.setattr("transformer_jax.runs.code.write_record", killed)
        with pytest.raises(KeyboardInterrupt):
            RunFolder(mine / "run").record(config)
    assert (mine / "run" / "code").is_dir()
    refuse_foreign(mine / "run")
    begun(RunFolder(mine / "run"), config)
    assert RunFolder(mine / "run").code.latest().keys() == {"train.loss:loss"}
