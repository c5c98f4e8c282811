"""Words that the training text lacks: found by its words, or by unknown tokens, and summed up in one line."""

from transformer_jax.commands.training_words import TrainingWords
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
