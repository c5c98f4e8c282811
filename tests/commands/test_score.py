"""score: a log-probability for each pair of lines."""

import pytest

from transformer_jax import cli


def test_score(folder, loaded, monkeypatch, tmp_path, capsys):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("the dog\na cat\n")
    target.write_text("a dog\n\n")
    assert cli.main(["score", f"--workdir={folder}", str(source), str(target)]) == 0
    lines = capsys.readouterr().out.splitlines()
    scores = loaded.score([("the dog", "a dog"), ("a cat", "")])
    assert lines == [f"{score.log_probability:.4f}\t{len(score.tokens)}" for score in scores]
    few = "--config.decode.tokens_per_batch=1"  # a pair at a time
    assert cli.main(["score", f"--workdir={folder}", few, str(source), str(target)]) == 0
    assert [float(line.split()[0]) for line in capsys.readouterr().out.splitlines()] == pytest.approx(
        [score.log_probability for score in scores], abs=1e-3
    )
    assert cli.main(["score", f"--workdir={folder}", "--config.decode.beam=2", str(source), str(target)]) == 2
    assert "decode.tokens_per_batch" in capsys.readouterr().err
    target.write_text("a dog\n")
    assert cli.main(["score", f"--workdir={folder}", str(source), str(target)]) == 2
    assert "has 2 lines and" in capsys.readouterr().err
