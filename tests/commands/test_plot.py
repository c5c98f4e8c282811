"""The page of a run, and the attention of a run."""

import pytest

from transformer_jax import cli
from transformer_jax.data.prepared import Prepared


@pytest.mark.parametrize(
    ("sources", "shown"),
    [(["", "the dog", "a cat"], "in sentence 2 above"), (["", "  "], None), ([], None)],
    ids=["the first is blank", "all are blank", "no test sentences"],
)
def test_the_page_of_a_run_whose_test_sentences_are_blank(folder, loaded, monkeypatch, tmp_path, sources, shown):
    monkeypatch.setattr(Prepared, "texts", lambda *_: (sources, sources))
    output = tmp_path / "page.html"
    monkeypatch.chdir(folder)
    assert cli.main(["plot", "page", "--workdir=.", f"--output={output}"]) == 0
    assert f"<title>{folder.name}</title>" in output.read_text()
    assert ("Cross-attention of the last layer" in output.read_text()) == (shown is not None)
    assert shown is None or shown in output.read_text()
    steps = ", ".join(map(str, loaded.steps))
    assert f"latest weights, of step {steps}" in output.read_text()


def test_plot_attention_refuses_what_it_cannot_show_and_warns_of_a_truncated_text(folder, loaded, tmp_path, capsys):
    plot = ["plot", "attention", f"--workdir={folder}", f"--output={tmp_path / 'a.html'}"]
    for bad in ("--text=a\udcff", "--text= ", "--head=1"):
        assert cli.main([*plot, "--text=a", bad]) == 2
    assert cli.main([*plot, f"--text={'the dog ' * 20}"]) == 0
    assert "warning: --text: " in capsys.readouterr().err
