"""The measures are what their names say, to the last digit, on every sentence."""

import dataclasses
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from translating_runs import make_run

from transformer_jax import cli, load_run
from transformer_jax.data.prepared import Prepared
from transformer_jax.evaluation import (
    bleu_evaluator,
    bleu_of_statistics,
    measures,
    paired_bootstrap,
    paper_bleu,
    perplexities,
)
from transformer_jax.runs import with_vocabulary

REFERENCES = ["the cat sat on the mat", "a well-known rich-text format .", "it is raining cats and dogs today"] * 5
HYPOTHESES = ["the cat sat on a mat", "a well-known rich text format .", "it rains cats and dogs today"] * 5


def command_line(tmp_path, hypotheses, references, metric):
    files = []
    for name, texts in (("ref", references), ("hyp", hypotheses)):
        files.append(tmp_path / name)
        files[-1].write_text("".join(f"{text}\n" for text in texts))
    command = [sys.executable, "-m", "sacrebleu", files[0], "-i", files[1], "-m", metric, "-w", "13"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_scores_and_signatures_are_the_sacrebleu_command_lines(tmp_path, metric):
    theirs, ours = command_line(tmp_path, HYPOTHESES, REFERENCES, metric), measures(HYPOTHESES, REFERENCES)[metric]
    assert round(ours.score, 13) == theirs["score"]
    assert ours.signature == theirs["signature"]


def test_the_papers_bleu_splits_compounds_and_has_a_signature_of_its_own():
    found = measures(HYPOTHESES, REFERENCES)
    assert found["paper_bleu"] == paper_bleu(HYPOTHESES, REFERENCES)
    assert found["paper_bleu"].score != found["bleu"].score
    assert "tok:13a+compounds-split" in found["paper_bleu"].signature
    # Split at the hyphen, "rich-text" has two words in common with "rich text" and not none.
    assert paper_bleu(["a b c rich-text"], ["a b c rich-tape"]).score > measures(["a b c x"], ["a b c y"])["bleu"].score


def test_no_sentence_may_be_missing():
    with pytest.raises(ValueError, match="14 hypotheses for 15 references"):
        measures(HYPOTHESES[:-1], REFERENCES)
    with pytest.raises(ValueError, match="0 hypotheses for 0"):
        measures([], [])


def test_perplexity_by_hand():
    found = perplexities([np.log([0.5, 0.25]), np.log([0.5])], ["ab c", ""])
    assert found["per_token"] == pytest.approx(16 ** (1 / 3))
    assert found["per_word"] == pytest.approx(16 ** (1 / 4))  # ab, c, and two ends
    assert found["per_character"] == pytest.approx(16 ** (1 / 6))
    assert (found["tokens"], found["words"], found["characters"]) == (3, 4, 6)
    assert found["log_probability"] == pytest.approx(-math.log(16))


def test_the_bootstrap_tells_a_difference_from_none():
    result = paired_bootstrap(HYPOTHESES, HYPOTHESES[:3] + ["wrong"] * 12, REFERENCES)["bleu"]
    assert result["this"] == measures(HYPOTHESES, REFERENCES)["bleu"].score
    assert result["p_value"] < 0.01
    assert "bs:1000" in result["signature"]


PRIME = 13


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "run", test_size=PRIME)


@pytest.fixture(scope="module")
def record(folder):
    assert cli.main(["evaluate", f"--workdir={folder}", "--weights=averaged"]) == 0
    return json.loads((folder / "translations/test.averaged.json").read_text())


def test_a_prime_number_of_sentences_on_eight_devices_is_scored_whole(folder, record):
    hypotheses = (folder / "translations/test.averaged.txt").read_text().split("\n")[:-1]
    references = (folder / "test.target").read_text().splitlines()
    assert record["n"] == len(hypotheses) == len(references) == PRIME
    assert record["measures"]["bleu"] == measures(hypotheses, references)["bleu"]._asdict()
    run = load_run(folder, "averaged")
    sources = (folder / "test.source").read_text().splitlines()
    assert hypotheses == run.translate(sources)
    scores = run.score([*zip(sources, references, strict=True)][::-1])
    total = sum(score.log_probability for score in scores)
    assert record["perplexity"]["log_probability"] == pytest.approx(total, rel=1e-6)
    assert record["perplexity"]["words"] == sum(len(text.split()) + 1 for text in references)


def test_a_record_says_what_was_measured(record):
    assert record["steps"] == [7]
    assert record["weights"] == "averaged"
    assert record["test_set"].endswith("test.source")
    assert record["decode"]["beam"] == 4
    assert set(record["measures"]) == {"bleu", "chrf", "paper_bleu"}


def test_another_search_has_files_of_its_own(folder, record):
    usual = (folder / "translations" / "test.averaged.json").read_bytes()
    assert cli.main(["evaluate", f"--workdir={folder}", "--weights=averaged", "--beam=2"]) == 0
    assert (folder / "translations" / "test.averaged.json").read_bytes() == usual
    assert json.loads((folder / "translations" / "test.averaged.beam=2.json").read_text())["decode"]["beam"] == 2


def test_a_records_sentences_add_up_to_its_scores(record):
    """What later comparisons start from."""
    sentences = record["sentences"]
    totals = np.sum(sentences["bleu_statistics"], axis=0)
    assert bleu_of_statistics(totals) == record["measures"]["bleu"]["score"]
    perplexity = np.exp(-sum(sentences["log_probabilities"]) / sum(sentences["tokens"]))
    np.testing.assert_allclose(perplexity, record["perplexity"]["per_token"], rtol=1e-6)


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


def test_the_training_loops_evaluator(folder):
    run = load_run(folder, "averaged")
    prepared = Prepared.open(folder / "data")
    decode = dataclasses.replace(run.config.decode, bleu_sentences=5)
    config = with_vocabulary(dataclasses.replace(run.config, decode=decode), prepared)
    sources, references = (side[:5] for side in prepared.texts("valid"))
    expected = measures(run.translate(sources), references)["bleu"].score
    assert bleu_evaluator(config, prepared)(run.params) == {"bleu": expected}
