"""Words that the training text lacks: found by its words, or by unknown tokens, and summed up in one line."""

from transformer_jax.commands.training_words import TrainingWords
from transformer_jax.config import from_config_dict, to_json
from transformer_jax.data.prepare import prepare
from transformer_jax.data.prepared import Prepared
from transformer_jax.data.tokenizer import UNK


def test_sentences_with_unseen_words_are_counted_and_the_first_words_named(model, folder, capsys):
    words = TrainingWords(model, str(folder))
    words.count(["the dog", "", "The zebra"])
    words.count(["a b c d e f g", "the zebra"])
    words.summarize()
    said = "3 of 4 sentences, the first of them The (but the was), zebra, b, c, d"
    assert capsys.readouterr().err == f"warning: never seen in training: words in {said}\n"
    known = TrainingWords(model, str(folder))
    known.count(["the dog", ""])
    known.summarize()
    assert capsys.readouterr().err == ""


def test_without_its_data_a_model_warns_of_unknown_tokens_only(model, tmp_path, monkeypatch):
    words = TrainingWords(model, str(tmp_path))
    assert words.unseen("the zebra") == []  # spelled in bytes
    monkeypatch.setattr(model.tokenizer, "encode", lambda word: [UNK] if word == "zebra" else [7])
    assert words.unseen("the zebra") == ["zebra"]


def test_the_words_of_the_run_it_started_from_were_seen(model, folder, tmp_path):
    """As `train --init-from` makes it: the other run's tokenizer, and text of its own."""
    tokenizer = Prepared.open(folder / "data").tokenizer_files["source"]
    source, copied = tmp_path / "new.tsv", tmp_path / tokenizer.name
    source.write_text("a zebra\tb\n" * 3)
    data = {
        "source": (str(source),),
        "tokenizer_file": str(tokenizer),
        "valid_size": 0,
        "test_size": 0,
    }
    config = from_config_dict({"data": data})
    prepare(config, tmp_path / "tuned" / "data")
    (tmp_path / "tuned" / "config.json").write_text(to_json(config))
    words = TrainingWords(model, str(tmp_path / "tuned"))
    assert words.unseen("the zebra and the giraffe") == ["giraffe"]
    # Where the other's text is not known, nothing is said to be unseen.
    copied.write_bytes(tokenizer.read_bytes())
    config = from_config_dict({"data": {**data, "tokenizer_file": str(copied)}})
    (tmp_path / "tuned" / "config.json").write_text(to_json(config))
    assert TrainingWords(model, str(tmp_path / "tuned")).unseen("the giraffe") == []
