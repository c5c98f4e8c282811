"""evaluate: the record of a test set, its files, and the comparison with another run."""

import copy
import dataclasses
import json

import numpy as np
import pytest

from tests.support.bleu import bleu_of_statistics
from tests.support.places import ROOT
from transformer_jax import cli
from transformer_jax.commands.evaluate import table
from transformer_jax.config import from_config_dict, to_json
from transformer_jax.data.prepare import prepare
from transformer_jax.errors import Failed
from transformer_jax.evaluation import measures
from transformer_jax.extension import read_code
from transformer_jax.files.atomic import write_record
from transformer_jax.files.record import read_record
from transformer_jax.pictures import run_page

PRIME = 13  # sentences of the test set


@pytest.fixture(autouse=True)
def _loaded_once(loaded):
    """Programs are compiled once for all tests."""


@pytest.fixture(scope="module")
def record(folder, model):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer_jax.translation.load.load_run", lambda *_: model)
        assert cli.main(["evaluate", f"--workdir={folder}", "--weights=averaged"]) == 0
    return json.loads((folder / "translations/test.averaged.json").read_text())


def test_a_prime_number_of_sentences_is_scored_whole(folder, model, record):
    hypotheses = (folder / "translations/test.averaged.txt").read_text().split("\n")[:-1]
    references = (folder / "test.target").read_text().splitlines()
    assert record["n"] == len(hypotheses) == len(references) == PRIME
    bleu = measures(hypotheses, references)["bleu"]
    assert record["measures"]["bleu"] == {"score": bleu.score, "signature": bleu.signature}
    sources = (folder / "test.source").read_text().splitlines()
    assert hypotheses == model.translate(sources)
    scores = model.score([*zip(sources, references, strict=True)][::-1])
    total = sum(score.log_probability for score in scores)
    assert record["perplexity"]["log_probability"] == pytest.approx(total, rel=1e-6)
    assert record["perplexity"]["words"] == sum(len(text.split()) + 1 for text in references)


def test_a_records_sentences_add_up_to_its_scores(record):
    """What later comparisons start from."""
    sentences = record["sentences"]
    totals = np.sum(sentences["bleu_statistics"], axis=0)
    assert bleu_of_statistics(totals) == record["measures"]["bleu"]["score"]
    perplexity = np.exp(-sum(sentences["log_probabilities"]) / sum(sentences["tokens"]))
    np.testing.assert_allclose(perplexity, record["perplexity"]["per_token"], rtol=1e-6)
    assert sum(sentences["exact_match"]) == record["exact_match"]["right"]


def test_groups_are_printed_with_their_shares_and_intervals(record):
    one, other = (
        {"right": 1, "total": 1, "low": None, "high": None},
        {"right": 2, "total": 12, "low": 0.0, "high": 41.5},
    )
    exact = {**record["exact_match"], "groups": {"kind": {"one": one, "other": other}}}
    lines = [" ".join(line.split()) for line in table({**record, "exact_match": exact}).splitlines()]
    assert lines[-2:] == ["kind: one 100.00 % 1 of 1", "kind: other 16.67 % 2 of 12 [0.0, 41.5]"]


def test_what_was_cut_is_counted_and_told(folder, capsys, tmp_path):
    for name, text in (("source", "the dog " * 30 + "\n\n"), ("target", "?\n\n")):
        (tmp_path / name).write_text(text)
    texts = [f"--source={tmp_path}/source", f"--target={tmp_path}/target"]
    evaluate(folder, *texts, "--config.decode.max_length=2", "--config.decode.max_source_length=9")
    out = capsys.readouterr().out
    assert "\n1 sources truncated" in out and "\n1 translations cut off" in out


def test_the_table_and_the_comparison(folder, record, capsys):
    """With a record of the same test set; another one is refused."""
    against = f"--against={folder}/translations/test.averaged.json"
    source, target = f"--source={folder}/test.source", f"--target={folder}/test.target"
    assert cli.main(["evaluate", f"--workdir={folder}", "--weights=averaged", source, target, against]) == 0
    out = capsys.readouterr().out
    assert "sacrebleu" not in out
    assert "13 sentences; averaged weights, of step 7" in out
    assert "p = " in out
    target = f"--target={folder}/test.source"
    assert cli.main(["evaluate", f"--workdir={folder}", "--weights=averaged", source, target, against]) == 2
    assert "is of another test set" in capsys.readouterr().err


def evaluate(folder, *arguments, status=0):
    assert cli.main(["evaluate", f"--workdir={folder}", "--weights=averaged", *arguments]) == status


def test_the_scores_as_json_are_the_record_without_its_sentences(folder, record, capsys):
    evaluate(folder, "--json")
    shown = json.loads(capsys.readouterr().out)
    assert "sentences" not in shown and shown == {name: record[name] for name in shown}


def test_the_scores_of_other_metrics_are_kept(folder, record, tmp_path):
    """As those of a sweep's run, which is evaluated once more with another metric; not of other translations."""
    metrics, path = tmp_path / "mine.py", folder / "translations/test.averaged.json"
    metrics.write_text("def one(h, r): return 1.0\ndef each(h, r): return [2.0] * len(h)\ndef two(h, r): return 2.0\n")
    for name in ("one", "each", "two"):
        evaluate(folder, f"--config.decode.metrics={metrics}:{name}")
    both = read_record(path)
    assert [both["measures"][name]["score"] for name in ("one", "each", "two")] == [1.0, 2.0, 2.0]
    assert both["sentence_scores"]["each"] == [2.0] * PRIME and both["metrics"].keys() == {"one", "each", "two"}
    metrics.write_text("def each(h, r): return 3.0\n")  # no longer of sentences
    evaluate(folder, f"--config.decode.metrics={metrics}:each")
    record_of_each = read_record(path)
    assert record_of_each["measures"]["each"]["score"] == 3.0 and record_of_each["measures"]["one"]["score"] == 1.0
    assert "each" not in record_of_each["sentence_scores"]
    write_record(path, both | {"hypotheses_sha256": "of others"})
    evaluate(folder)
    assert read_record(path)["measures"].keys() == record["measures"].keys()


def test_a_metric_of_sentences_is_compared(folder, record, capsys, tmp_path):
    """With the other's scores of sentences, unless another version of the metric's code made them."""
    metric = tmp_path / "mine.py"
    metric.write_text("def mine(hypotheses, references):\n    return [len(text) for text in hypotheses]\n")
    record = read_record(folder / "translations/test.averaged.json")
    kept, path = {"sentence_scores": {"mine": [1.0] * PRIME}}, tmp_path / "x.json"
    (tmp_path / "x.txt").write_bytes((folder / "translations/test.averaged.txt").read_bytes())
    digest = read_code(f"{metric}:mine").digest[:12]
    for made_by, compared in ((digest, True), ("another", False)):
        measures = record["measures"] | {"mine": {"score": 1.0, "signature": f"{metric.name}:mine|sha256:{made_by}"}}
        write_record(path, record | kept | {"measures": measures})
        evaluate(folder, f"--against={path}", f"--config.decode.metrics={metric}:mine")
        out, err = capsys.readouterr()
        assert ("mine of the other           1.00   p = " in out) == compared
        assert (f"note: mine is not compared: {path} has no scores by the same code" in err) != compared


def test_the_test_set_is_the_folders_whatever_the_weights(loaded, tmp_path, capsys):
    task = {"train_size": 60, "valid_size": 5, "test_size": 5}
    config = from_config_dict({"data": {"corpus": "copy", "tokenizer": "words", "task": task}})
    prepare(config, tmp_path / "run/data")
    (tmp_path / "run/config.json").write_text(to_json(config))
    evaluate(tmp_path / "run", f"--weights={tmp_path / 'exported'}")
    assert "test of copy: 5 sentences; " in capsys.readouterr().out
    evaluate(tmp_path / "run", f"--weights={tmp_path / 'exported'}", f"--against={tmp_path / 'run'}", status=2)
    assert f"there is no {tmp_path / 'run/translations/test.latest.json'}" in capsys.readouterr().err
    evaluate(tmp_path / "run", "--split=", status=2)


def test_scores_are_printed_although_they_cannot_be_written(folder, record, capsys, monkeypatch):
    def save(*_):
        raise Failed("the disk is full")

    monkeypatch.setattr("transformer_jax.experiment.Evaluation.save", save)
    evaluate(folder, status=1)
    assert "13 sentences; averaged weights" in capsys.readouterr().out


def test_a_file_called_like_a_split_does_not_replace_its_record(folder, record, tmp_path):
    kept = (folder / "translations" / "test.averaged.json").read_bytes()
    for text in ("a cat\n", "the dog\n"):  # nor do two files of one name replace each other's
        (tmp_path / "test").write_text(text)
        evaluate(folder, f"--source={tmp_path}/test", f"--target={tmp_path}/test")
    assert (folder / "translations" / "test.averaged.json").read_bytes() == kept
    others = [json.loads(path.read_text()) for path in folder.glob("translations/test.????????.averaged.json")]
    assert len({other["test_set_sha256"] for other in others} - {record["test_set_sha256"]}) >= 2


def test_another_search_has_separate_files_and_a_comparison_prints_and_checks_them(
    folder, model, record, capsys, tmp_path
):
    usual = (folder / "translations" / "test.averaged.json").read_bytes()
    metrics = f"--config.decode.metrics={ROOT}/examples/exact_match.py:exact_match"
    evaluate(folder, "--beam=1", "--config.decode.eos=oracle_length", metrics)
    assert "exact_match.py:exact_match|sha256:" in capsys.readouterr().out
    path = folder / "translations" / "test.averaged.beam=1.eos=oracle_length.json"
    assert (folder / "translations" / "test.averaged.json").read_bytes() == usual
    assert json.loads(path.read_text())["decode"]["beam"] == 1
    sources, references = ((folder / f"test.{side}").read_text().splitlines() for side in ("source", "target"))
    expected = model.translations(sources, references=references, whole=True, eos="oracle_length", beam=1)
    assert path.with_suffix(".txt").read_text().split("\n")[:-1] == [translation.line for translation in expected]
    evaluate(folder, f"--against={path}")
    assert "averaged weights, of step 7; with another search: beam = 1, not 4" in capsys.readouterr().out
    for name in ("x.json", "x.txt"):
        (tmp_path / name).write_bytes(path.with_suffix(name[1:]).read_bytes())
    lines = (tmp_path / "x.txt").read_text().splitlines(keepends=True)
    (tmp_path / "x.txt").write_text("".join(lines[::-1]))
    evaluate(folder, f"--against={tmp_path}/x.json", status=2)
    assert "x.txt are missing or have changed" in capsys.readouterr().err


def test_a_runs_page_shows_the_scores_of_what_it_shows(folder, model, record):
    run = copy.copy(model)
    assert run_page.scores(folder, "test", "averaged", run).keys() == {"BLEU on test", "chrF on test"}
    run.config = dataclasses.replace(run.config, decode=dataclasses.replace(run.config.decode, beam=3))
    assert run_page.scores(folder, "test", "averaged", run) == {}


def test_bleu_of_another_tokenizer_has_separate_files(folder, record, capsys):
    usual = (folder / "translations" / "test.averaged.json").read_bytes()
    evaluate(folder, "--config.decode.bleu_tokenize=char")
    assert "tok:char" in capsys.readouterr().out
    other = json.loads((folder / "translations/test.averaged.bleu_tokenize=char.json").read_text())
    assert "tok:char" in other["measures"]["bleu"]["signature"]
    assert (folder / "translations" / "test.averaged.json").read_bytes() == usual


def test_a_smaller_beam_than_the_runs_number_of_translations(folder, model, record, monkeypatch):
    run = copy.copy(model)
    run.config = dataclasses.replace(run.config, decode=dataclasses.replace(run.config.decode, n_best=3))
    monkeypatch.setattr("transformer_jax.translation.load.load_run", lambda *_: run)
    evaluate(folder, "--beam=1")
    beam = json.loads((folder / "translations/test.averaged.beam=1.json").read_text())
    assert beam["decode"]["n_best"] == 1 and beam["n"] == PRIME


def test_a_pair_beyond_the_positions_is_refused_before_anything_is_translated(folder, loaded, monkeypatch, capsys):
    def translations(*_, **__):
        raise AssertionError("translated")

    monkeypatch.setattr(type(loaded), "translations", translations)
    monkeypatch.setattr("transformer_jax.translation.load.position_limit", lambda _: 3)
    evaluate(folder, status=2)
    assert "this model's positions end at 3" in capsys.readouterr().err
