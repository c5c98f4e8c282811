"""export: a folder that is loaded like a run."""

import shutil

import jax
import numpy as np

from tests.support.translating_runs import make_run
from transformer_jax import cli, load_run


def test_an_exported_folder_has_the_same_model(folder, model, tmp_path, capsys):
    output = tmp_path / "model"
    assert cli.main(["export", f"--workdir={folder}", "--weights=averaged", f"--output={output}"]) == 0
    assert capsys.readouterr().out == f"{output}: the weights of step 7\n"
    exported = load_run(output)
    jax.tree.map(np.testing.assert_array_equal, exported.params, model.params)
    assert cli.main(["export", f"--workdir={folder}", "--weights=averaged", f"--output={output}"]) == 2
    capsys.readouterr()
    assert cli.main(["evaluate", f"--workdir={output}"]) == 2
    assert capsys.readouterr().err.endswith("has no test sets, as an exported folder; give --source and --target\n")


def test_custom_code_is_in_the_exported_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from transformer_jax.model.layers import FeedForward\n\n\nclass Mine(FeedForward):\n    pass\n"
    )
    run = make_run(tmp_path / "run", parts={"feed_forward": "mine.py:Mine"})
    (run / "averaged").rename(tmp_path / "averaged")
    for source, output in (("averaged", "first"), ("first", "second")):
        assert cli.main(["export", f"--workdir={source}", f"--output={output}"]) == 0
    shutil.rmtree(run)
    (tmp_path / "mine.py").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    exported = load_run(tmp_path / "second")
    assert str(tmp_path / "second" / "code") in exported.config.model.parts.feed_forward
