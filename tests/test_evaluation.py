"""Metrics agree with sacreBLEU and with calculations by hand; a record belongs to what it was made of."""

import dataclasses
import json
import math
import types

import jax
import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics import BLEU

from tests.support.devices import one_device
from tests.support.translating_runs import make_run
from transformer_jax import load_run
from transformer_jax.bootstrap import paired_bootstrap
from transformer_jax.data.prepared import Prepared
from transformer_jax.data.tokenizer import EOS
from transformer_jax.errors import BadInput
from transformer_jax.evaluation import (
    bleu_evaluator,
    bleu_statistics,
    load_bleu,
    load_metrics,
    matches,
    measures,
    paper_bleu,
    perplexities,
)
from transformer_jax.experiment import Evaluation, evaluate_run, identity, split_of, with_vocabulary
from transformer_jax.extension import read_code
from transformer_jax.report.statistics import bleu as bleu_of_statistics
from transformer_jax.runs import records as evaluation_records
from transformer_jax.sweeps import worker

REFERENCES = ["the cat sat on the mat", "a well-known rich-text format .", "it is raining cats and dogs today"] * 5
HYPOTHESES = ["the cat sat on a mat", "a well-known rich text format .", "it rains cats and dogs today"] * 5


def test_scores_and_signatures_are_sacrebleus():
    ours = measures(HYPOTHESES, REFERENCES)
    assert ours["bleu"].score == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert ours["chrf"].score == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    of_their_command = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:"
    assert ours["bleu"].signature == of_their_command + sacrebleu.__version__


CHINESE = (
    ["\u4ed6\u5728\u529e\u516c\u5ba4\u5de5\u4f5c\u3002"],
    ["\u4ed6\u5728\u529e\u516c\u5ba4\u91cc\u5de5\u4f5c\u3002"],
)


@pytest.mark.parametrize("tokenize", ["zh", "char", "intl", "none"])
def test_bleu_of_any_tokenizer_of_sacrebleu(tokenize):
    """With spaces between words, as 13a needs them, a Chinese sentence is one word."""
    found = measures(*CHINESE, tokenize)["bleu"]
    theirs = BLEU(tokenize=tokenize, force=True).corpus_score(CHINESE[0], [CHINESE[1]])
    assert found.score == theirs.score and f"tok:{tokenize}|" in found.signature
    assert bleu_of_statistics(np.sum(bleu_statistics(*CHINESE, tokenize), axis=0)) == pytest.approx(found.score)
    assert paired_bootstrap(CHINESE[0], CHINESE[1], CHINESE[1], None, tokenize)["bleu"]["this"] == found.score
    assert (found.score > measures(*CHINESE)["bleu"].score) == (tokenize in ("zh", "char"))


def test_a_tokenizer_that_cannot_be_used_is_refused_before_anything_is_computed(monkeypatch):
    def missing(*_, **__):
        raise RuntimeError("pip install sacrebleu[ja]")

    monkeypatch.setattr("sacrebleu.metrics.BLEU", missing)
    with pytest.raises(BadInput, match="ja-mecab"):
        load_bleu("ja-mecab")


def test_the_papers_bleu_splits_compounds_and_has_its_signature():
    found = measures(HYPOTHESES, REFERENCES)
    assert found["paper_bleu"] == paper_bleu(HYPOTHESES, REFERENCES)
    assert found["paper_bleu"].score != found["bleu"].score
    assert "tok:13a+compounds-split" in found["paper_bleu"].signature
    # Split at the hyphen, "rich-text" has two words in common with "rich text" and not none.
    assert paper_bleu(["a b c rich-text"], ["a b c rich-tape"]).score > measures(["a b c x"], ["a b c y"])["bleu"].score


def test_white_space_separates_words_and_nothing_else_is_forgiven():
    references = ["a b", "a b", "", "A b", "a b c", "é"]
    hypotheses = [" a  b ", "ab", " ", "a b", "a b", "e"]
    assert matches(hypotheses, references) == [1, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("score", [measures, paper_bleu, bleu_statistics])
def test_texts_without_a_reference_are_refused_and_not_left_out(score):
    for hypotheses, references in ((["a", "b"], ["a"]), (["a"], ["a", "b"]), ([], [])):
        with pytest.raises(ValueError, match=f"{len(hypotheses)} hypotheses and {len(references)} references"):
            score(hypotheses, references)
    with pytest.raises(ValueError, match="lists of texts, not one text"):
        score("abc", "abc")


def test_accents_as_characters_of_their_own_are_the_same_text():
    """A tokenizer of letters and tags writes NFC, whatever the references are in."""
    composed, decomposed = "\u00e9t\u00e9 \ud55c", "e\u0301te\u0301 \u1112\u1161\u11ab"
    assert matches([composed, decomposed, composed], [decomposed, composed, "ete"]) == [1, 1, 0]


def test_perplexity_by_hand():
    found = perplexities([np.log([0.5, 0.25]), np.log([0.5])], ["ab c", ""])
    assert found["per_token"] == pytest.approx(16 ** (1 / 3))
    assert found["per_word"] == pytest.approx(16 ** (1 / 4))  # ab, c, and two ends
    assert found["per_character"] == pytest.approx(16 ** (1 / 6))
    assert (found["tokens"], found["words"], found["characters"]) == (3, 4, 6)
    assert found["log_probability"] == pytest.approx(-math.log(16))
    with pytest.raises(ValueError, match="1 log-probabilities and 2 references"):
        perplexities([np.log([0.5])], ["a", "b"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "run", test_size=2)


@pytest.fixture(autouse=True, scope="module")
def _one_device():
    with one_device():
        yield


@pytest.fixture(scope="module")
def run(folder):
    return load_run(folder, "averaged")


def test_a_record_belongs_to_its_texts_weights_search_and_code(folder, run, tmp_path):
    """Each of them changed alone is seen."""
    test_set = split_of(folder, run.config, "test")
    metric = tmp_path / "mine.py"
    metric.write_text("def mine(hypotheses, references):\n    return 1.0\n")
    usual = dataclasses.replace(run.config.decode, metrics=(f"{metric}:mine",))

    def differs(found, decode=usual, test_set=test_set, model=run):
        return evaluation_records.difference(found, identity(model, decode, test_set, load_metrics(decode.metrics)))

    found = json.loads(json.dumps(evaluate_run(run, usual, test_set).record))
    assert differs(found) == differs(found, dataclasses.replace(usual, tokens_per_batch=128)) == ""
    assert "search" in differs(found, dataclasses.replace(usual, beam=3))
    other = dataclasses.replace(test_set, references=["x", *test_set.references[1:]])
    assert "test set" in differs(found, test_set=other)
    changed = load_run(folder, "averaged")
    changed.params = jax.tree.map(lambda leaf: leaf.at[(0,) * leaf.ndim].add(1e-3), changed.params)
    assert "weights" in differs(found, model=changed)
    metric.write_text("def mine(hypotheses, references):\n    return 2.0\n")
    assert "has no mine of" in differs(found)


def test_a_metric_may_score_sentences(folder, run, tmp_path):
    """The score is their mean; anything but a finite number or one for each sentence is an error."""
    file, test_set = tmp_path / "mine.py", split_of(folder, run.config, "test")
    file.write_text("def mine(hypotheses, references):\n    return [len(text) for text in references]\n")
    decode = dataclasses.replace(run.config.decode, metrics=(f"{file}:mine",))
    record = evaluate_run(run, decode, test_set).record
    lengths = [len(text) for text in test_set.references]
    assert record["sentence_scores"] == {"mine": lengths}
    assert record["measures"]["mine"].keys() == {"score", "signature"}
    assert record["measures"]["mine"]["score"] == np.mean(lengths)
    for wrong in ("[1.0]", "[1.0, float('nan')]", "'12'", "['1', '2']", "[[1, 2], [3]]", "{1: 2}", "None"):
        file.write_text(f"def mine(hypotheses, references):\n    return {wrong}\n")
        with pytest.raises(BadInput, match="must be one finite number, or a list of 2 of them"):
            load_metrics(decode.metrics)


def test_a_score_has_the_digest_of_the_code_that_made_it(folder, run, tmp_path):
    """The metric's file is edited while the test set is translated."""
    file, test_set = tmp_path / "mine.py", split_of(folder, run.config, "test")
    file.write_text("def mine(hypotheses, references):\n    return 1.0\n")
    decode, digest = dataclasses.replace(run.config.decode, metrics=(f"{file}:mine",)), read_code(f"{file}:mine").digest

    class Edited(type(run)):
        def translations(self, *arguments, **options):
            file.write_text("def mine(hypotheses, references):\n    return 2.0\n")
            return super().translations(*arguments, **options)

    model = load_run(folder, "averaged")
    model.__class__ = Edited
    measure = evaluate_run(model, decode, test_set).record["measures"]["mine"]
    assert measure == {"score": 1.0, "signature": f"{file.name}:mine|sha256:{digest[:12]}"}


def test_a_sweeps_run_is_measured_again_unless_it_was_measured_so(folder, monkeypatch):
    """Its record is taken only if it is of these weights, texts and this search, and has its translations."""
    model, made = load_run(folder, "averaged"), []
    test_set = split_of(folder, model.config, "test")

    def evaluation(model, decode, test_set, weights, metrics):
        made.append(decode.beam)
        record = {**identity(model, decode, test_set, metrics), "decode": dataclasses.asdict(decode), "n": 2}
        record |= {"measures": {key: {"score": 1.0} for key in ("bleu", "chrf")}, "perplexity": {"per_token": 2.0}}
        record |= {"exact_match": {"right": 0, "total": 2}, "test_set": "test", "weights": weights}
        record["sentence_scores"] = {}
        return Evaluation({**record, "hypotheses_sha256": evaluation_records.lines_sha256(["a", "b"])}, ["a", "b"])

    monkeypatch.setattr(worker, "evaluate_run", evaluation)
    run = types.SimpleNamespace(path=folder)
    for beam in (4, 4, 3, 3):
        model.config = dataclasses.replace(model.config, decode=dataclasses.replace(model.config.decode, beam=beam))
        measured = worker.measured_on(run, model, test_set, "latest", {})
    assert made == [4, 3] and measured["decode"]["beam"] == 3 and measured["weights_sha256"] == model.weights_sha256
    (folder / "translations" / "test.latest.txt").write_text("a\nc\n")
    worker.measured_on(run, model, test_set, "latest", {})
    model.params = jax.tree.map(lambda leaf: 1.5 * leaf, model.params)  # of the same step
    worker.measured_on(run, model, test_set, "latest", {})
    assert made == [4, 3, 3, 3]


def test_the_training_loops_evaluator(folder, run):
    prepared = Prepared.open(folder / "data")
    decode = dataclasses.replace(run.config.decode, bleu_sentences=2, beam=1)
    config = with_vocabulary(dataclasses.replace(run.config, decode=decode), prepared)
    sources, references = (side[:2] for side in prepared.texts("valid"))
    expected = measures(run.translate(sources, beam=1), references)
    assert bleu_evaluator(config, prepared)(run.params) == {
        name: expected[name].score for name in ("bleu", "exact_match")
    }


def test_the_groups_and_clusters_of_a_split_are_in_its_record(folder, run, monkeypatch):
    monkeypatch.setattr(Prepared, "groups", lambda self, split: [{"kind": split}, {"kind": "other"}])
    monkeypatch.setattr(Prepared, "clusters", lambda self, split: ["lemma", "lemma"])
    record = evaluate_run(run, run.config.decode, split_of(folder, run.config, "test")).record
    assert record["exact_match"]["groups"]["kind"].keys() == {"other", "test"}
    assert record["exact_match"]["resampled"] == "clusters" and record["exact_match"]["low"] is None  # of one cluster
    assert record["sentences"]["clusters"] == [0, 0] and record["unknown_tokens"] == 0
    # This vocabulary can spell anything, so <eos> stands for <unk>: every reference has one.
    monkeypatch.setattr("transformer_jax.experiment.UNK", EOS)
    assert evaluate_run(run, run.config.decode, split_of(folder, run.config, "test")).record["unknown_tokens"] == 2


def test_a_custom_metric_called_exact_match_takes_the_place_of_the_librarys(folder, run, tmp_path):
    """As it did in runs of versions without the library's."""
    (tmp_path / "mine.py").write_text("def exact_match(hypotheses, references):\n    return 12.5\n")
    decode = dataclasses.replace(run.config.decode, metrics=(f"{tmp_path}/mine.py:exact_match",))
    record = evaluate_run(run, decode, split_of(folder, run.config, "test")).record
    assert record["measures"]["exact_match"]["score"] == 12.5 and record["exact_match"]["right"] == 0
