"""Choosing a model and how it decodes: bad options, and folders without weights."""

import pytest

from transformer_jax import cli


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--beam=0"], "--beam = 0: must be at least 1"),
        (["--beam=x"], "--beam = 'x': must be a whole number"),
        (["--n-best=0"], "--n-best = 0: must be at least 1"),
        (["--n-best=9"], "n_best = 9 is more than beam = 4"),
        (["--top-p=1.5"], "--top-p = 1.5: must be at most 1 and above 0"),
        (["--config.decode.alhpa=1"], "--config.decode.alhpa: only decode.* can be changed here; did you mean"),
        (["--config.decode.bleu_sentences=8"], "--config.decode.bleu_sentences: has no effect on translate"),
        (
            ["--config.model.d_model=8"],
            "--config.model.d_model: only decode.* can be changed here; a run keeps its mod",
        ),
        (["--attention"], "--attention: has no effect without --json"),
        (["--temperature=0.7"], "--temperature: has no effect here: it needs decode.sample = true (--sample)"),
        (["--config.decode.top_k=3"], "--config.decode.top_k: has no effect here: it needs decode.sample = true"),
        (["--sample", "--beam=8"], "--beam: has no effect here: it needs decode.sample = false"),
        (["--config.decode.length_penalty=none", "--config.decode.alpha=1"], "decode.alpha: has no effect here"),
        (["a\n\x1b[31m\udcff"], r"a\n\x1b[31m\xff: there is no such file"),
        (["no_such_file"], "no_such_file: there is no such file"),
    ],
    ids=str,
)
def test_bad_options(folder, loaded, capsys, monkeypatch, options, message):
    assert cli.main(["translate", f"--workdir={folder}", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_folder_without_weights(tmp_path, folder, capsys):
    for arguments, message in [
        ([f"--workdir={tmp_path}"], "is not a run (it has no config.json)"),
        ([f"--workdir={folder}"], "has no checkpoint"),
        ([f"--workdir={folder}", "--weights=bets"], "--weights=bets: is neither latest, best, averaged nor"),
        ([f"--workdir={folder}", f"--weights={tmp_path}"], "is no exported model"),
    ]:
        assert cli.main(["translate", *arguments]) == 2
        assert message in capsys.readouterr().err
