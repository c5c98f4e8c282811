"""`translate` and `score` on the command line: a line in, a line out, whatever the line; and bad input, told."""

import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.translating_runs import make_run
from transformer_jax import cli, load_run
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import BadInput
from transformer_jax.translation.translate import Hypothesis


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def model(folder):
    return load_run(folder, "averaged")


def complaints(err):
    """What stderr says, but for one thing: a model with random weights knows no end."""
    return [line for line in err.splitlines() if "its translation was cut off at" not in line]


@pytest.fixture
def translate(folder, model, capsys, monkeypatch, tmp_path):
    """The command on a file with this content: (status, stdout, stderr). The model is loaded and compiled once."""
    monkeypatch.setattr("transformer_jax.translation.load.load_run", lambda *_: model)

    def translate(content: bytes, *options):
        file = tmp_path / "in.txt"
        file.write_bytes(content)
        status = cli.main(["translate", f"--workdir={folder}", *options, str(file)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return translate


def test_a_line_in_is_a_line_out(translate, model):
    texts = ["the old dog", "", "a cat sees the house", "   ", "<i>&</i>", "🦜", "שלום", "\x07\x1b[0m"]
    status, out, err = translate("".join(f"{text}\n" for text in texts).encode())
    assert (status, complaints(err)) == (0, [])
    assert out == "".join(text.replace("\n", " ") + "\n" for text in model.translate(texts))
    assert out.split("\n")[1::2][:2] == ["", ""]


def test_an_empty_file_and_ten_thousand_blank_lines(translate):
    assert translate(b"") == (0, "", "")
    assert translate(b"\n" * 10_000) == (0, "\n" * 10_000, "")


def test_a_line_of_100_000_words_is_cut_with_a_warning_that_names_it(translate):
    status, out, err = translate(b"the dog\n" + b"the dog " * 50_000 + b"\nthe dog\n")
    assert (status, out.count("\n")) == (0, 3)
    (warning,) = complaints(err)
    assert "in.txt:2: has " in warning
    assert "was truncated to 40" in warning


def test_a_line_that_is_no_text_is_named_and_what_came_before_it_is_not_lost(translate):
    status, out, err = translate(b"the dog\nthe \xff cat\nthe dog\n")
    assert (status, out.count("\n")) == (2, 1)
    assert err.strip().endswith("in.txt:2: is not UTF-8: byte 0xff at 5")


def test_a_nul_is_refused_from_a_file_and_from_stdin(translate, model, folder, capsys, monkeypatch):
    content = b"the dog\na\0b\na cat\n"
    assert [told.strip().partition("in.txt:")[2] for told in complaints(translate(content)[2])] == [
        "2: has a NUL character at 2"
    ]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert cli.main(["translate", f"--workdir={folder}"]) == 2
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1
    assert complaints(captured.err) == ["error: stdin:2: has a NUL character at 2"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16"])
def test_what_is_printed_is_utf_8_whatever_the_locale(folder, model, monkeypatch, tmp_path, encoding):
    monkeypatch.setattr("transformer_jax.translation.load.load_run", lambda *_: model)
    written, text = io.BytesIO(), "été 🦜 \u2028"
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding=encoding))
    (tmp_path / "in.txt").write_bytes(text.encode() + b"\n")
    assert cli.main(["translate", f"--workdir={folder}", "--json", str(tmp_path / "in.txt")]) == 0
    assert json.loads(written.getvalue())["source"] == text


def test_a_translation_is_one_line_whatever_bytes_the_model_spells():
    assert Hypothesis("a\nb\rc\0d\u2028e", (), 0.0, 0.0, False).line == "a b c d\u2028e"


def test_n_best_with_scores(translate, model):
    _, out, _ = translate(b"the dog\n\n", "--n-best=3", "--scores")
    lines = out.split("\n")[:-1]
    assert len(lines) == 6
    (translation,) = model.translations(["the dog"], n_best=3)
    assert [float(line.partition("\t")[0]) for line in lines[:3]] == pytest.approx(
        [hypothesis.score for hypothesis in translation.hypotheses], abs=1e-4
    )
    assert lines[4:] == ["", ""], "a blank line has one translation"


def test_json_has_it_all(translate, model):
    _, out, _ = translate(b"the dog\n\n", "--json", "--attention")
    record, blank = map(json.loads, out.splitlines())
    (translation,) = model.translations(["the dog"])
    assert record["source"] == "the dog"
    assert record["source_tokens"][-1] == record["translations"][0]["tokens"][-1] == "<eos>"
    assert record["translations"][0]["score"] == pytest.approx(translation.hypotheses[0].score)
    assert set(record["attention"]) == {"encoder", "decoder", "cross"}
    assert len(record["attention"]["cross"][0][0]) == len(record["translations"][0]["tokens"])
    assert blank["translations"][0]["text"] == ""


def test_the_same_seed_draws_the_same(translate):
    drawn = [translate(b"the dog\nthe dog\n", "--sample", f"--seed={seed}")[1] for seed in (1, 1)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0].splitlines())) == 2, "equal lines are drawn for apart"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--beam=0"], "--beam = 0: must be at least 1"),
        (["--beam=x"], "--beam = 'x': must be a whole number"),
        (["--n-best=9"], "n_best = 9 is more than beam = 4"),
        (["--top-p=1.5"], "--top-p = 1.5: must be at most 1 and above 0"),
        (["--config.decode.alhpa=1"], "--config.decode.alhpa: only decode.* can be changed here; did you mean"),
        (["--config.decode.bleu_sentences=8"], "--config.decode.bleu_sentences: has no effect on translate"),
        (["--config.model.d_model=8"], "--config.model.d_model: only decode.*"),
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
def test_bad_options(folder, model, capsys, monkeypatch, options, told):
    monkeypatch.setattr("transformer_jax.translation.load.load_run", lambda *_: model)
    assert cli.main(["translate", f"--workdir={folder}", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert told in captured.err
    assert captured.err.count("\n") == 1


def test_a_folder_without_weights(tmp_path, folder, capsys):
    for arguments, told in [
        ([f"--workdir={tmp_path}"], "is not a run (it has no config.json)"),
        ([f"--workdir={folder}"], "has no checkpoint"),
        ([f"--workdir={folder}", "--weights=bets"], "--weights=bets: is neither latest, best, averaged nor"),
        ([f"--workdir={folder}", f"--weights={tmp_path}"], "is no exported model"),
    ]:
        assert cli.main(["translate", *arguments]) == 2
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sources", "shown"),
    [(["", "the dog", "a cat"], "in sentence 2 above"), (["", "  "], None), ([], None)],
    ids=["the first is blank", "all are blank", "no test sentences"],
)
def test_the_page_of_a_run_whose_test_sentences_are_blank(folder, model, monkeypatch, tmp_path, sources, shown):
    monkeypatch.setattr("transformer_jax.translation.load.load_run", lambda *_: model)
    monkeypatch.setattr(Prepared, "texts", lambda *_: (sources, sources))
    output = tmp_path / "page.html"
    assert cli.main(["plot", "page", f"--workdir={folder}", f"--output={output}"]) == 0
    assert ("Cross-attention of the last layer" in output.read_text()) == (shown is not None)
    assert shown is None or shown in output.read_text()


def test_a_text_without_tokens_has_no_attention(model):
    (blank,) = model.translations(["  "])
    with pytest.raises(BadInput, match="has no tokens, so that there is no attention to them"):
        model.attention(blank)


def test_plot_attention_refuses_what_it_cannot_show_and_tells_of_a_cut_text(
    folder, model, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr("transformer_jax.translation.load.load_run", lambda *_: model)
    plot = ["plot", "attention", f"--workdir={folder}", f"--output={tmp_path / 'a.html'}"]
    assert cli.main([*plot, "--text=a\udcff"]) == 2
    assert cli.main([*plot, "--text=a", "--head=1"]) == 2
    assert complaints(capsys.readouterr().err) == [
        "error: argument --text: is not UTF-8: byte 0xff at 2 (see transformer-jax plot attention --help)",
        "error: --head=1: has no effect on an .html page, which shows them all",
    ]
    assert cli.main([*plot, f"--text={'the dog ' * 20}"]) == 0
    assert "warning: --text: has " in capsys.readouterr().err


def test_score(folder, model, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("transformer_jax.translation.load.load_run", lambda *_: model)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("the dog\na cat\n")
    target.write_text("a dog\n\n")
    assert cli.main(["score", f"--workdir={folder}", str(source), str(target)]) == 0
    lines = capsys.readouterr().out.splitlines()
    scores = model.score([("the dog", "a dog"), ("a cat", "")])
    assert lines == [f"{score.log_probability:.4f}\t{len(score.tokens)}" for score in scores]
    target.write_text("a dog\n")
    assert cli.main(["score", f"--workdir={folder}", str(source), str(target)]) == 2
    assert "has 2 lines and" in capsys.readouterr().err


# Processes of their own: what depends on pipes, signals and time.


def process(folder):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or a child of what runs in a background ignores it
    command = [sys.executable, "-m", "transformer_jax.cli", "translate", f"--workdir={folder / 'averaged'}"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, **pipes, env={**os.environ, "XLA_FLAGS": ""})


def test_output_comes_before_the_input_ends_and_ctrl_c_is_clean(folder):
    with process(folder) as running:
        for _ in range(2):
            running.stdin.write(b"the dog\n")
            running.stdin.flush()
            assert running.stdout.readline().endswith(b"\n")
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=120) == 1
        assert complaints(running.stderr.read().decode()) == ["interrupted"]


def test_a_closed_pipe_is_no_error(folder):
    with process(folder) as running:
        running.stdout.close()
        running.stdin.write(b"the dog\n")
        running.stdin.flush()
        time.sleep(0.1)
        running.stdin.close()
        assert running.wait(timeout=120) == 1
        assert complaints(running.stderr.read().decode()) == []
