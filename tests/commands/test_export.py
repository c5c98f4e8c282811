"""export: a folder that is loaded like a run."""

import jax
import numpy as np

from transformer_jax import cli, load_run


def test_an_exported_folder_has_the_same_model(folder, model, tmp_path, capsys):
    output = tmp_path / "model"
    assert cli.main(["export", f"--workdir={folder}", "--weights=averaged", f"--output={output}"]) == 0
    assert capsys.readouterr().out == f"{output}: the weights of step 7\n"
    exported = load_run(output)
    jax.tree.map(np.testing.assert_array_equal, exported.params, model.params)
    assert cli.main(["export", f"--workdir={folder}", "--weights=averaged", f"--output={output}"]) == 2
