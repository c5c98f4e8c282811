"""translate: a line in, a line out, whatever the line."""

import io
import json
import os
import signal
import subprocess
import sys
import types

import pytest

from tests.commands.conftest import messages
from transformer_jax import cli
from transformer_jax.commands.translate import as_read, training_words
from transformer_jax.config import from_config_dict, to_json
from transformer_jax.data.prepare import prepare
from transformer_jax.data.prepared import Prepared
from transformer_jax.data.tokenizer import UNK
from transformer_jax.translation.translate import Hypothesis


@pytest.fixture
def translate(folder, loaded, capsys, tmp_path):
    """The command on a file with this content: (status, stdout, stderr). The model is loaded and compiled once."""

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
    (warning,) = messages(err)
    assert status == 0 and warning.startswith("warning: never seen in training: <i>&</i>, ")
    assert out == "".join(text.replace("\n", " ") + "\n" for text in model.translate(texts))
    assert out.split("\n")[1::2][:2] == ["", ""]


def test_white_space_that_is_no_separator_of_the_vocabulary_is_told(translate, model, monkeypatch):
    """As a tokenizer of words has it, whose words are known."""
    encode = model.tokenizer.encode
    monkeypatch.setattr(model.tokenizer, "encode", lambda text: [UNK] if "  " in text else encode(text))
    _, _, err = translate(b"the dog\nthe  dog\nthe  dog\n")
    (warning,) = messages(err)
    assert "in.txt:2, and 1 more lines: tokens that the vocabulary lacks" in warning


def test_the_words_of_an_exported_model_are_not_those_of_the_folders_text(translate, tmp_path):
    assert messages(translate(b"the zebra\n", "--weights=latest")[2])
    assert messages(translate(b"the zebra\n", f"--weights={tmp_path}")[2]) == []


def test_empty_translations_are_counted_in_one_warning(translate, model, monkeypatch):
    usual = model.translations

    def emptied(texts, **options):
        first, *others = usual(texts, **options)
        return [first._replace(hypotheses=(first.hypotheses[0]._replace(text=" "),)), *others]

    monkeypatch.setattr(model, "translations", emptied)
    status, _, err = translate(b"the dog\n\nthe cat\nthe dog\n")
    (warning,) = [text for text in messages(err) if "empty" in text]
    assert status == 0 and warning.startswith("warning: 1 of 4")


def test_an_empty_file_and_ten_thousand_blank_lines(translate):
    assert translate(b"") == (0, "", "")
    assert translate(b"\n" * 10_000) == (0, "\n" * 10_000, "")


def test_a_line_of_10_000_words_is_cut_with_a_warning_that_names_it(translate):
    status, out, err = translate(b"the dog\n" + b"the dog " * 5_000 + b"\nthe dog\n")
    assert (status, out.count("\n")) == (0, 3)
    (warning,) = messages(err)
    assert "in.txt:2: " in warning and "truncated to 40" in warning


def test_a_line_that_is_no_text_is_named_and_what_came_before_it_is_not_lost(translate):
    status, out, err = translate(b"the dog\nthe \xff cat\nthe dog\n")
    assert (status, out.count("\n")) == (2, 1)
    assert "in.txt:2: is not UTF-8: byte 0xff at 5" in err


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
    assert lines[4:] == ["-inf\t", "-inf\t"], "a blank line has one translation"


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


def test_a_run_that_started_from_another_saw_more_words_than_its_text(folder, tmp_path):
    """As `train --init-from` makes it: the other run's tokenizer, and text of its own."""
    (tmp_path / "new.tsv").write_text("a zebra\tb\n" * 3)
    tokenizer = Prepared.open(folder / "data").tokenizer_files["source"]
    data = {"source": (str(tmp_path / "new.tsv"),), "tokenizer_file": str(tokenizer), "valid_size": 0, "test_size": 0}
    config = from_config_dict({"data": data})
    prepare(config, tmp_path / "tuned" / "data")
    (tmp_path / "tuned" / "config.json").write_text(to_json(config))
    assert training_words(tmp_path / "tuned") == training_words(tmp_path) == set()
    assert "the" in training_words(folder)


def test_sentences_that_are_typed(folder, model, loaded, capsys, monkeypatch):
    typed = ["the dog sees a tree", "", "The zebra the zebra near near near near near"]
    keyboard = io.BytesIO("".join(f"{line}\n" for line in typed).encode())
    keyboard.read1 = lambda size=-1: keyboard.readline()
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=keyboard, isatty=lambda: True))
    assert cli.main(["translate", f"--workdir={folder}", "--beam=3"]) == 0
    out, err = capsys.readouterr()
    assert out.split("\n")[:-1] == model.translate(typed, beam=3)
    assert [line.lstrip("> ") for line in messages(err) if "never seen" in line] == [
        "warning: never seen in training: The, zebra"
    ]


# Separate processes: pipes, signals and time.


def process(folder):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or a child of a background job ignores it
    command = [sys.executable, "-m", "transformer_jax.cli", "translate", f"--workdir={folder / 'averaged'}"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, **pipes, env={**os.environ, "XLA_FLAGS": os.environ["XLA_FLAGS_OF_COMMANDS"]})


def test_output_comes_before_the_input_ends_and_ctrl_c_is_clean(folder):
    with process(folder) as running:
        for _ in range(2):
            running.stdin.write(b"the dog\n")
            running.stdin.flush()
            assert running.stdout.readline().endswith(b"\n")
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=120) == 1
        assert messages(running.stderr.read().decode()) == ["interrupted"]


def test_a_word_that_the_tokenizer_changes_is_what_it_reads():
    def model(tokens):
        return types.SimpleNamespace(tokenizer=types.SimpleNamespace(encode=lambda _: tokens, decode=lambda _: "the"))

    assert as_read(model([7]), "The") == ["the"] and as_read(model([7, UNK]), "Thé") == ["Thé"]
