"""Choosing a model and how it decodes: bad options, and folders without weights."""

import pytest

from transformer_jax import cli


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--beam=0"], "beam = 0"),
        (["--beam=x"], "beam"),
        (["--n-best=9"], "n_best = 9"),
        (["--config.decode.alhpa=1"], "did you mean"),
        (["--config.decode.bleu_sentences=8"], "--config.decode.bleu_sentences"),
        (["--config.model.d_model=8"], "only decode.*"),
        (["--attention"], "--json"),
        (["--temperature=0.7"], "decode.temperature: has no effect here: it needs decode.sample"),
        (["--sample", "--beam=8"], "decode.beam: has no effect"),
        (["--config.decode.length_penalty=none", "--config.decode.alpha=1"], "decode.alpha: has no effect"),
        (["a\n\x1b[31m\udcff"], r"a\n\x1b[31m\xff: there is no such file"),
    ],
    ids=str,
)
def test_bad_options(folder, loaded, capsys, options, message):
    assert cli.main(["translate", f"--workdir={folder}", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err and captured.err.count("\n") == 1


def test_a_folder_without_weights(tmp_path, folder, capsys):
    for arguments in (
        [f"--workdir={tmp_path}"],
        [f"--workdir={folder}"],
        [f"--workdir={folder}", "--weights=bets"],
        [f"--workdir={folder}", f"--weights={tmp_path}"],
    ):
        assert cli.main(["translate", *arguments]) == 2
        assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["evaluate", "--split=nope"], "has no texts of the split 'nope'"),
        (["evaluate", "--source=one", "--target=two"], "one has 1 lines and two 2"),
        (["score", "one", "two"], "one has 1 lines and two 2"),
        (["translate", "one", "none"], "none: there is no such file"),
    ],
    ids=str,
)
def test_texts_are_checked_before_the_weights_are_read(folder, tmp_path, monkeypatch, capsys, command, message):
    (tmp_path / "one").write_text("a\n")
    (tmp_path / "two").write_text("a\nb\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr("transformer_jax.translation.load.load_run")
    assert cli.main([*command, f"--workdir={folder}"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err
